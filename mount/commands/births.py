"""Common parts of `init` and `adopt`: the chosen disks, the owner, and carrying out the plan."""

import grp
import json
import os
import pwd
from contextlib import ExitStack

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import format_size, parse_size
from commitlogfs.mount.config.model import Config, config_path, disks_from_list, load_config
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import NEW_ROOT_MODE, RootAttributes
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.birth import BirthPlan


def chosen_disks(
    which: str | None, disks: str | None, segment_size: str | None
) -> tuple[tuple[DiskSpec, ...], int | None, Config | None]:
    """Disks and segment size from a configuration or from --disks. Raises UsageError."""
    size = None
    if segment_size is not None:
        try:
            size = parse_size(segment_size)
        except ValueError as error:
            raise UsageError(f"--segment-size: {error}") from None
        if size <= 0 or size % 4096 or size > 2**31 - 4096:
            raise UsageError(f"--segment-size: {size} is not supported; give a multiple of 4096 below 2GiB")
    if disks is None:
        which = settings.or_default(which)
    if (which is None) == (disks is None):
        raise UsageError("give either a configuration (NAME|FILE) or --disks DISK,DISK,...")
    if which is not None:
        config = load_config(config_path(which))
        return disk_specs(config), size or configured_segment_size(config), config
    return specs_from_list(disks or ""), size, None


def specs_from_list(disks: str) -> tuple[DiskSpec, ...]:
    """The disks of --disks. Raises UsageError."""
    return tuple(DiskSpec(disk.path, disk.thresholds) for disk in disks_from_list(disks))


def parse_owner(text: str | None, mode: str | None, default: RootAttributes | None) -> RootAttributes | None:
    """Owner and mode of the mounted directory, from USER[:GROUP] and an octal mode. Raises UsageError."""
    if text is None and mode is None:
        return default
    base = default or RootAttributes(NEW_ROOT_MODE, os.geteuid(), os.getegid())
    uid, gid = base.uid, base.gid
    if text is not None:
        user, _, group = text.partition(":")
        try:
            account = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
            uid, gid = account.pw_uid, account.pw_gid
        except KeyError:
            if not user.isdigit():
                raise UsageError(
                    f"--owner: no such user: {user!r}; name the user that the broker runs as, or make it: "
                    f"`useradd --system {user}`"
                ) from None
            uid = gid = int(user)
        if group:
            try:
                gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
            except KeyError:
                raise UsageError(
                    f"--owner: no such group: {group!r}; without :GROUP it is that of the user"
                ) from None
    bits = base.mode
    if mode is not None:
        try:
            bits = int(mode, 8)
        except ValueError:
            raise UsageError(f"--mode: {mode!r} is not an octal mode; write it as in 0750") from None
        if bits & ~0o777:
            raise UsageError(f"--mode: {mode} has more than permission bits; give at most 0777")
    return RootAttributes(bits, uid, gid)


def carry_out(
    plan: BirthPlan, specs: tuple[DiskSpec, ...], stack: ExitStack, *, dry_run: bool, as_json: bool, done: str
) -> None:
    """Make the pool, or with `dry_run` only print the plan."""
    findings = list(plan.findings)
    if not dry_run:
        findings += [finding for finding in birth.execute(plan, specs, stack) if finding not in findings]
    for finding in findings:
        typer.echo(f"commitlogfs: {finding.severity.name.lower()}: {finding}", err=True)
    if settings.wants_json(as_json):
        document = {
            "pool": plan.pool_id,
            "segment_size": plan.segment_size,
            "segments": plan.segments,
            "disks": [{"number": m.number, "id": m.disk_id, "path": m.path} for m in plan.members],
            "replaced": list(plan.replaced),
            "dry_run": dry_run,
            "findings": [finding.as_json() for finding in findings],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    verb = f"would be {done}" if dry_run else done
    contents = f"{plan.segments} segments" if plan.segments else "no segments"
    settings.say(f"pool {plan.pool_id}: {verb}: {contents} of {format_size(plan.segment_size)}")
    for former in plan.replaced:
        settings.say(f"  in the place of the empty pool {former}")
    for member in plan.members:
        made = " (directory to be made)" if dry_run and member.path in plan.created else ""
        settings.say(f"  disk {member.number}  {member.path}{made}")
