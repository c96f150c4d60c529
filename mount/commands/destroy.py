"""`commitlogfs destroy`: end a pool, and remove what `init` and its daemons have made."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, RefusedError, UsageError
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.births import specs_from_list
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.journal.file import read_journal
from commitlogfs.mount.journal.ring import is_journal_of
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.name_lock import hold_file
from commitlogfs.mount.location.which_mount import configuration_file
from commitlogfs.mount.preflight.configured_pool import disk_specs
from commitlogfs.mount.preflight.unmounted import kept_unmounted
from commitlogfs.store.errors import NoIdentityError, PoolError
from commitlogfs.store.pool import destruction
from commitlogfs.store.pool.destruction import DestructionPlan, DiskContent

_UNKNOWN_SHOWN = 3


def register(app: typer.Typer) -> None:
    app.command()(destroy)


def destroy(
    which: options.Configuration = None,
    disks: options.Disks = None,
    with_segments: Annotated[
        bool, typer.Option("--with-segments", help="Also remove the segments, with all messages in them.")
    ] = False,
    degraded: Annotated[bool, typer.Option("--degraded", help="Even if disks of the pool are missing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.PoolJson = False,
) -> None:
    """End a pool that is not mounted: its disks become plain directories again. Asks before it changes anything.

    It removes what `init` and the daemons have made: the records of the pool on each disk, removed segments that
    were set aside, and what a killed daemon has left in the runtime directory. Segments only with --with-segments.
    Other files stay, and so do the directories, the configuration file, the log file, and the guard of the
    mountpoint (`umount --unguard`).

    Interrupted at any moment, it can be repeated; until then no disk of the pool can be mounted.

    EXIT STATUS: 0 destroyed; 1 there is no pool on these disks; 2 bad options or configuration, or nobody could be
    asked; 4 refused: the pool is mounted or in use, holds segments, a disk is missing or cannot be written, or the
    answer was no.
    """
    if disks is not None and which is not None:
        raise UsageError("destroy: give either a configuration (NAME|FILE) or --disks DISK,DISK,...")
    config = None if disks is not None else load_config(configuration_file(settings.or_default(which)))
    specs = specs_from_list(disks or "") if config is None else disk_specs(config)
    name = "destroy" if config is None else config.name

    @contextlib.contextmanager
    def planned() -> Iterator[DestructionPlan]:
        with ExitStack() as stack:
            if config is not None:
                stack.enter_context(kept_unmounted(config, "so its pool is in use"))
            try:
                yield destruction.plan_destruction(specs, stack, with_segments=with_segments, degraded=degraded)
            except NoIdentityError as error:
                if config is not None and not dry_run:
                    _remove_traces(config.name, None)
                raise AbsentError(f"{name}: {error}") from error
            except PoolError as error:
                raise RefusedError(f"{name}: {error}") from error

    with planned() as plan:
        shown = _as_json(name, plan, dry_run=dry_run)
    if not _confirm(shown, plan, yes=yes, dry_run=dry_run, as_json=settings.wants_json(as_json)):
        return
    with planned() as plan:
        if _as_json(name, plan, dry_run=dry_run) != shown:
            raise RefusedError(f"{name}: the pool has changed meanwhile; repeat the command")
        destruction.mark(plan)
        if config is not None:
            _remove_traces(config.name, plan.pool_id)
        destruction.strip(plan)
    _report(shown, plan, config, as_json=settings.wants_json(as_json))


def _confirm(document: dict[str, Any], plan: DestructionPlan, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Shows what would be removed, and asks. Raises UsageError if nobody can be asked, RefusedError after a no."""
    if dry_run and as_json:
        typer.echo(json.dumps(document, indent=2))
    elif dry_run or not yes:
        for line in _describe(document["name"], plan, "would be destroyed"):
            typer.echo(line, err=not dry_run)
    if dry_run or yes:
        return not dry_run
    if not sys.stdin.isatty():
        raise UsageError(
            f"{document['name']}: standard input is not a terminal, so nobody can be asked; read what would be "
            "removed with --dry-run, then add --yes"
        )
    if not typer.confirm("Destroy it?", err=True):
        raise RefusedError(f"{document['name']}: nothing has changed")
    return True


def _report(document: dict[str, Any], plan: DestructionPlan, config: Config | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    for line in _describe(document["name"], plan, "is destroyed"):
        settings.say(line)
    if config is not None:
        settings.say(
            f"{config.file} stays; `commitlogfs umount --unguard {config.mountpoint}` removes the guard there"
        )


def _describe(name: str, plan: DestructionPlan, done: str) -> Iterator[str]:
    yield f"{name}: pool {plan.pool_id} {done}:"
    for disk in plan.disks:
        yield f"  {disk.path}: {_describe_content(disk)}"
    for member in plan.missing:
        yield (
            f"  {member.path}: missing, so it keeps what it has; when it is back: "
            f"`commitlogfs destroy --degraded --disks {member.path}`"
        )


def _describe_content(disk: DiskContent) -> str:
    parts = ["the records of the pool"]
    if disk.segments:
        parts.append(f"{count_of(len(disk.segments), 'segment')} ({approximate_size(disk.segment_bytes)})")
    if disk.set_aside:
        parts.append(f"{count_of(len(disk.set_aside), 'file')} set aside")
    text = ", ".join(parts)
    if disk.others:
        more = ", ..." if len(disk.others) > _UNKNOWN_SHOWN else ""
        text += f"; files of others stay ({', '.join(disk.others[:_UNKNOWN_SHOWN])}{more})"
    return text


def _as_json(name: str, plan: DestructionPlan, *, dry_run: bool) -> dict[str, Any]:
    return {
        "name": name,
        "pool": plan.pool_id,
        "disks": [disk.as_json() for disk in plan.disks],
        "missing_disks": [member.path for member in plan.missing],
        "dry_run": dry_run,
    }


def _remove_traces(name: str, pool_id: str | None) -> None:
    """Remove the files that a killed daemon and its keeper have left in the runtime directory. The caller holds the
    name. A journal of another pool stays."""
    for path in (runtime_directory.keeper_lock_path(name), runtime_directory.daemons_path(name)):
        _remove_unlocked(path)
    with contextlib.suppress(OSError):
        for path in (
            runtime_directory.socket_path(name),
            runtime_directory.status_socket_path(name),
            runtime_directory.notify_path(name),
        ):
            path.unlink(missing_ok=True)
        journal = runtime_directory.journal_path(name)
        if pool_id is not None and is_journal_of(read_journal(journal) or b"", pool_id):
            journal.unlink(missing_ok=True)


def _remove_unlocked(path: Path) -> None:
    """Unless a process that is still ending holds it."""
    with contextlib.suppress(OSError):
        fd = hold_file(path, 0.0) if path.exists() else None
        if fd is not None:
            path.unlink()
            os.close(fd)
