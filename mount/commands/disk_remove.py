"""`commitlogfs disk remove`: an empty disk leaves the pool of a running mount."""

import json
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import (
    DiskArgument,
    Timeout,
    ask,
    hand_over,
    number_or_path,
    plan_removal,
    rehearse,
    require_configuration,
    require_recorded,
    served_disks,
    take_back,
    wait_until_gone,
)
from commitlogfs.mount.commands.disk_lost import give_up
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.edit import Edit
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.preflight.successor_check import require_same_mount


def remove(
    disk: DiskArgument,
    which: options.Mount = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Give up a dead disk, with the segments that no other disk holds.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --lost: do not ask.")] = False,
    timeout: Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Take an empty disk out of the pool of a running mount. Nothing is unmounted.

    The configuration file loses its entry, another daemon takes the mount over (as with `restart`), and the disk
    loses its identity. Interrupted at any moment, the command can be repeated; `disk uncordon` takes it back until
    the configuration is changed.

    With --lost, a disk that will not come back is given up, also while nothing is mounted. What is lost is shown
    and has to be confirmed. The gaps of its segments are accepted losses from then on: they refuse no mount.

    EXIT STATUS: 0 removed; 1 it is still served after the timeout; 2 no such mount, the configuration file cannot
    be edited, or a loss could not be confirmed; 3 no daemon answers; 4 refused, and nothing has changed: the disk
    holds something, is not lost, or no daemon could take over.
    """
    disk = number_or_path(disk)
    if lost:
        give_up(disk, which, timeout, yes=yes, dry_run=dry_run, as_json=settings.wants_json(as_json))
        return
    target = find_target(which)
    if dry_run:
        _show_removal(plan_removal_of(target, disk), as_json=as_json)
        return
    left = leave_pool(target, disk, timeout)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, **left}))
    elif left["number"] is None:
        typer.echo(f"{target.name}: {left['path']} has left the pool; unmount it")
    else:
        settings.say(f"{target.name}: disk {left['number']} ({left['path']}) has left the pool; unmount it")


def plan_removal_of(target: Target, disk: str) -> dict[str, Any]:
    """The disk that would leave, with the configuration file as `file`. Raises as `leave_pool`."""
    with ExitStack() as stack:
        file, present, status = _open_configuration(stack, target)
        if _is_left(disk, status):
            ask(target, "disk-forget", directory=disk, dry_run=True)
            plan_removal(present, file, disk)
            return {"name": target.name, "number": None, "path": disk, "pid": None}
        plan = ask(target, "disk-leave", disk=disk, dry_run=True)
        plan_removal(present, file, plan["path"])
        rehearse(target, present, None, "removed")
        return {**plan, "file": file}


def leave_pool(target: Target, disk: str, timeout: float) -> dict[str, Any]:
    """Take an empty disk, by its number or path, out of a mounted pool.

    Its number and path, and the pid of the next daemon; number and pid are None if only the rest of an interrupted
    change was done.

    Raises RefusedError, ConfigError, UnreachableError; AbsentError after `timeout` seconds.
    """
    with ExitStack() as stack:
        file, present, status = _open_configuration(stack, target)
        if _is_left(disk, status):
            _forget_left(target, disk, plan_removal(present, file, disk))
            return {"number": None, "path": disk, "pid": None}
        plan = ask(target, "disk-leave", disk=disk, dry_run=True)
        path: str = plan["path"]
        planned = plan_removal(present, file, path)
        undo = stack.enter_context(ExitStack())
        undo.callback(_keep, target, file, path, planned)
        lagging = ask(target, "disk-leave", disk=disk)["lagging"]
        require_recorded(target, lagging)
        rehearse(target, present if planned is None else planned.config, planned, "removed")
        if planned is not None:
            config_edit.write(planned)
        pid = hand_over(target, timeout, undo)
        wait_until_gone(target, plan["number"], timeout)
        _forget_record(target, path)
    return {"number": plan["number"], "path": path, "pid": pid}


def _open_configuration(stack: ExitStack, target: Target) -> tuple[str, Config, dict[str, Any]]:
    """The configuration file, its content, and the daemon's status. Locked as long as `stack`."""
    status = control_socket.ask(target.socket, "status")
    file = require_configuration(target.name, status)
    stack.enter_context(config_edit.only_editor(file))
    present = load_config(file)
    require_same_mount(target.name, present, status, "the disk is not removed")
    return file, present, status


def _is_left(disk: str, status: dict[str, Any]) -> bool:
    """Whether the daemon does not serve this path, so that an interrupted change is to be completed or undone."""
    return disk.startswith("/") and all(served["path"] != disk for served in status["disks"])


def _forget_left(target: Target, path: str, planned: Edit | None) -> None:
    """Complete a removal, or undo an addition, that was interrupted: the daemon does not serve the directory."""
    ask(target, "disk-forget", directory=path, dry_run=True)
    if planned is not None:
        config_edit.write(planned)
    ask(target, "disk-forget", directory=path)


def _forget_record(target: Target, path: str) -> None:
    """The disk has left. What it records of the pool has no effect any more, so it may stay."""
    try:
        ask(target, "disk-forget", directory=path)
    except RefusedError as error:
        typer.echo(f"commitlogfs: warning: {error}; the disk has left the pool, and still records it", err=True)


def _keep(target: Target, file: str, path: str, planned: Edit | None) -> None:
    """Undo a removal, unless a daemon that was started meanwhile has dropped the disk already. The disk goes on
    leaving if the file does not name it: the next daemon would miss it otherwise."""
    if path in served_disks(target):
        take_back(planned)
        if any(disk.path == path for disk in load_config(file).disks):
            ask(target, "disk-stay", disk=path)


def _show_removal(plan: dict[str, Any], *, as_json: bool) -> None:
    if settings.wants_json(as_json):
        typer.echo(json.dumps(plan))
    elif plan["number"] is None:
        typer.echo(f"{plan['name']}: {plan['path']} has left the pool")
    else:
        typer.echo(
            f"{plan['name']}: disk {plan['number']} ({plan['path']}) would leave the pool; {plan['file']} would "
            "not name it, and another daemon would take over. Nothing is unmounted."
        )
