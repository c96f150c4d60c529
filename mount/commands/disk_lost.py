"""`commitlogfs disk remove --lost`: give up a disk that will not come back, mounted or not."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, RefusedError, UnreachableError, UsageError
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.mount.commands.disk_calls import (
    ask,
    hand_over,
    plan_removal,
    rehearse,
    require_configuration,
    take_back,
    wait_until_gone,
)
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, configuration_file, find_target
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs
from commitlogfs.mount.preflight.unmounted import kept_unmounted
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.giving_up import GivingUp, find_member, plan_giving_up
from commitlogfs.store.disks.identity import DiskIdentity
from commitlogfs.store.disks.membership import Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.pool.open import Pool, open_pool

_RANGES_SHOWN = 10
_NOT_DECIDED_BESIDE: Final = (FindingCode.POOL_IN_USE, FindingCode.SEGMENT_IN_USE, FindingCode.MEMBERS_DIFFER)
"""Findings beside which no disk is given up: the pool is in use, or which list would be changed is not known."""


def give_up(disk: str, which: str | None, timeout: float, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """`disk` is a number or a path. Raises RefusedError, UsageError, ConfigError, UnreachableError."""
    which = settings.or_default(which)
    target = _mounted(which)
    if target is None:
        _give_up_unmounted(disk, configuration_file(which), yes=yes, dry_run=dry_run, as_json=as_json)
    else:
        _give_up_mounted(disk, target, timeout, yes=yes, dry_run=dry_run, as_json=as_json)


def _mounted(which: str | None) -> Target | None:
    """The mount, whose daemon answers; None if there is none. Raises UnreachableError if it has no daemon now."""
    try:
        target = find_target(which)
    except (UnreachableError, UsageError):
        return None
    try:
        control_socket.ask(target.socket, "status")
    except control_socket.NotMountedError:
        return None
    except UnreachableError as error:
        raise UnreachableError(f"{error}; after `commitlogfs umount`, this needs no daemon") from error
    return target


def _give_up_mounted(disk: str, target: Target, timeout: float, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    plan = ask(target, "disk-give-up", disk=disk, dry_run=True)
    require_configuration(target.name, control_socket.ask(target.socket, "status"))
    if confirm_loss(plan, yes=yes, dry_run=dry_run, as_json=as_json):
        _report(give_up_served(disk, target, timeout), as_json=as_json, more="")


def give_up_served(disk: str, target: Target, timeout: float) -> dict[str, Any]:
    """Give up a disk of a mounted pool; what is lost. Raises RefusedError, ConfigError, UnreachableError;
    AbsentError after `timeout` seconds."""
    with ExitStack() as stack:
        status = control_socket.ask(target.socket, "status")
        file = require_configuration(target.name, status)
        stack.enter_context(config_edit.only_editor(file))
        plan = ask(target, "disk-give-up", disk=disk, dry_run=True)
        served = {d["number"]: d["path"] for d in status["disks"]}
        path = served.get(plan["number"], plan["path"])
        is_of_another = plan["number"] not in served and path in served.values()
        present = load_config(file)
        planned = None if is_of_another else plan_removal(present, file, path)
        config = present if planned is None else planned.config
        rehearse(target, config, planned, "given up", may_lack_segments=True)
        if planned is not None:
            config_edit.write(planned)
        try:
            given_up = ask(target, "disk-give-up", disk=disk)
        except RefusedError:  # a daemon that dies may have recorded the change: then the entry must not come back
            take_back(planned)
            raise
        try:
            hand_over(target, timeout, ExitStack())
        except RefusedError as error:
            completed = f"`commitlogfs restart {target.name}` completes that"
            raise AbsentError(f"{error}; disk {plan['number']} is given up, and {completed}") from error
        wait_until_gone(target, plan["number"], timeout)
    return given_up


def _give_up_unmounted(disk: str, file: Path, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Nothing is locked while the operator is asked: a mount that is made meanwhile is not refused, but this is."""
    with _opened(file) as (config, pool):
        shown = {"name": config.name, **_plan_unmounted(config.name, pool, disk).as_json()}
    if not confirm_loss(shown, yes=yes, dry_run=dry_run, as_json=as_json):
        return
    with config_edit.only_editor(str(file)), _opened(file) as (config, pool):
        plan = _plan_unmounted(config.name, pool, disk)
        document = {"name": config.name, **plan.as_json()}
        if document != shown:
            raise RefusedError(f"{config.name}: the loss has changed meanwhile; repeat the command")
        path, number = plan.member.path, plan.member.number
        is_of_another = any(disk.path == path and disk.number != number for disk in pool.disks)
        planned = None if is_of_another else plan_removal(config, str(file), path)
        if planned is not None:
            config_edit.write(planned)
        try:
            _record(config.name, pool, plan)
        except RefusedError:
            take_back(planned)
            raise
    _report(document, as_json=as_json, more="; mount it")


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Config, Pool]]:
    """The configuration and its pool, which nobody mounts meanwhile. Raises RefusedError, ConfigError."""
    config = load_config(file)
    with kept_unmounted(config, "and only its daemon can give a disk up"):
        try:
            pool = open_pool(disk_specs(config), configured_segment_size(config))
        except PoolError as error:
            raise RefusedError(f"{config.name}: {error}") from error
        with closing(pool):
            yield config, pool


def _plan_unmounted(name: str, pool: Pool, text: str) -> GivingUp:
    for finding in pool.findings:
        if finding.code in _NOT_DECIDED_BESIDE:
            raise RefusedError(f"{name}: {finding}")
    try:
        member = find_member(pool.membership, text)
    except PoolError as error:
        raise RefusedError(f"{name}: {error}") from error
    if any(disk.number == member.number for disk in pool.disks):
        raise RefusedError(f"{name}: {member.path}: is there and can be read, so it is not lost; mount the pool")
    newest = max((n for d in pool.disks if (n := identity.read_newest(d.dirfd)) is not None), default=None)
    bases = [segment.base_offset for segment in pool.inventory.catalog if segment.size]
    spaces = min(disk.filesystem.attribute_bytes for disk in pool.disks)

    def is_recordable(membership: Membership) -> bool:
        return identity.is_recordable(_identity_of(pool, pool.disks[0], membership), spaces)

    return plan_giving_up(
        pool.membership,
        member,
        bases,
        newest,
        pool.segment_size,
        round(time.time()),
        is_recordable=is_recordable,
        missing=pool.missing,
    )


def _identity_of(pool: Pool, disk: Disk, membership: Membership) -> DiskIdentity:
    return DiskIdentity(pool.pool_id, disk.disk_id, disk.number, pool.segment_size, membership)


def _record(name: str, pool: Pool, plan: GivingUp) -> None:
    """On every disk that can be written. Raises RefusedError if there is none."""
    recorded = 0
    for disk in pool.disks:
        own = _identity_of(pool, disk, plan.membership)
        if disk.state is DiskState.RW and not disk.is_joining:
            try:
                identity.write_identity(disk.dirfd, own)
                recorded += 1
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                typer.echo(f"{disk.path}: has not recorded the change yet ({reason})", err=True)
    if not recorded:
        raise RefusedError(f"{name}: no disk could record the change; repair one, and repeat the command")


def confirm_loss(plan: dict[str, Any], *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Shows what is lost, and asks. Raises UsageError if nobody can be asked, RefusedError after a no."""
    if dry_run and as_json:
        typer.echo(json.dumps(plan))
    elif dry_run or not yes:
        for line in _describe(plan):
            typer.echo(line, err=not dry_run)
    if dry_run:
        return False
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "standard input is not a terminal, so the loss cannot be confirmed; read what is lost with "
                "--dry-run, then add --yes"
            )
        if not typer.confirm("Give it up?", err=True):
            raise RefusedError(f"{plan['name']}: nothing has changed")
    return True


def _describe(plan: dict[str, Any]) -> list[str]:
    """The loss, in sentences, and the disk that would take the place of the lost one."""
    return [*_describe_loss(plan), *_describe_joining(plan)]


def _describe_joining(plan: dict[str, Any]) -> list[str]:
    joins = plan.get("joins")
    if joins is None:
        return []
    return [f"{joins['path']} would become disk {joins['number']} of the pool."]


def _describe_loss(plan: dict[str, Any]) -> list[str]:
    giving_up = f"{plan['name']}: Giving up disk {plan['number']} ({plan['path']}) loses"
    size = sum(end - start for start, end in plan["lost"])
    if not plan["lost"]:
        return [f"{giving_up} nothing that is known, but segments before the log's first one may be lost."]
    lines = [
        f"{giving_up} {approximate_size(size)} of the log, in {count_of(len(plan['lost']), 'range')} of offsets:"
    ]
    lines += [f"  {start:,} to {end:,}" for start, end in plan["lost"][:_RANGES_SHOWN]]
    if len(plan["lost"]) > _RANGES_SHOWN:
        lines.append(f"  and {len(plan['lost']) - _RANGES_SHOWN:,} more (--dry-run --json lists all)")
    if plan.get("also_missing"):  # a daemon of a former version does not report it
        lines.append(
            f"Some of these may be on {' and '.join(plan['also_missing'])}, missing as well: they count as lost "
            "until that is back."
        )
    lines.append("Messages there are lost, unless a slave or a copy has them. Consumers skip them silently.")
    if plan["used_again_from"] is not None:
        lines.append(
            "The newest segment is among them: a broker that restarts gives log offsets from "
            f"{plan['used_again_from']:,} on to other messages; a slave that has the old ones differs from then on."
        )
    return lines


def _report(document: dict[str, Any], *, as_json: bool, more: str) -> None:
    if as_json:
        typer.echo(json.dumps(document))
    else:
        disk = f"disk {document['number']} ({document['path']})"
        settings.say(f"{document['name']}: {disk} is given up, and its gaps are accepted losses{more}")
