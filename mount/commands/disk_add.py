"""`commitlogfs disk add`: a directory becomes a disk of a running mount."""

import json
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.console.formatting import approximate_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import (
    Timeout,
    ask,
    hand_over,
    rehearse,
    require_configuration,
    served_disks,
    take_back,
    wait_until,
)
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.edit import Edit
from commitlogfs.mount.config.model import Config, is_within, load_config, path_argument
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.preflight.successor_check import require_same_mount
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.moves import targets


def add(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY", help="An empty directory on a filesystem of its own; it is made if it is absent."
        ),
    ],
    which: options.Mount = None,
    timeout: Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Add a disk to the pool of a running mount. The next segments use it. Nothing is unmounted.

    The configuration file gets an entry for it, and another daemon takes the mount over (as with `restart`).
    Interrupted at any moment, the command can be repeated.

    EXIT STATUS: 0 the disk is added; 1 it has not joined within the timeout; 2 no such mount, or the configuration
    file cannot be edited; 3 no daemon answers; 4 refused, and nothing has changed: the directory cannot become a
    disk, or no daemon could take the mount over.
    """
    target, path = find_target(which), path_argument(directory)
    if dry_run:
        _show_plan(plan_addition(target, path), as_json=as_json)
        return
    joined = join_pool(target, path, timeout)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, **joined}))
    else:
        use = (
            "the next segments use it" if joined["eligible"] else "it takes no segments now (`disk list` says why)"
        )
        settings.say(f"{target.name}: {path} is disk {joined['number']} of the pool; {use}")


def plan_addition(target: Target, path: str, *, instead_of: str = "") -> dict[str, Any]:
    """The disk that the directory would become, with the configuration file as `file`, and the number of segments
    that it takes below its `force` threshold as `room`. Checks whether the next daemon would mount the pool as it
    is, unless the disk comes `instead_of` one, which is given up before. Raises as `join_pool`."""
    with ExitStack() as stack:
        file, present, planned = _open_configuration(stack, target, path)
        plan = _prepare(target, path, dry_run=True, instead_of=instead_of)
        if "free_bytes" not in plan:
            raise control_socket.FormerVersionError(target.name)
        if not instead_of and planned is not None:  # a file that names the directory unprepared is refused anyway
            rehearse(target, present, None, "added")
        config = present if planned is None else planned.config
        return {**plan, "file": file, "room": _room(config, plan)}


def _room(config: Config, plan: dict[str, Any]) -> int:
    """As a drain reckons it once the disk has joined."""
    disk = next(disk for disk in config.disks if disk.path == plan["path"])
    usage = DiskUsage(plan["total_bytes"], plan["free_bytes"], plan["available_bytes"])
    new = targets.Target(plan["number"], usage, disk.thresholds)
    return 0 if disk.readonly else targets.segments_below_force(new, plan["segment_size"])


def join_pool(target: Target, path: str, timeout: float) -> dict[str, Any]:
    """Make a directory a disk of a mounted pool. Its number and path, whether it is eligible for the next segments,
    and the pid of the daemon that serves it.

    Raises RefusedError, ConfigError, UnreachableError; AbsentError after `timeout` seconds.
    """
    with ExitStack() as stack:
        _, present, planned = _open_configuration(stack, target, path)
        _prepare(target, path, dry_run=True)
        undo = stack.enter_context(ExitStack())
        undo.callback(_forget, target, path, planned)
        ask(target, "disk-prepare", directory=path)
        rehearse(target, present if planned is None else planned.config, planned, "added")
        if planned is not None:
            config_edit.write(planned)
        pid = hand_over(target, timeout, undo)
        served = wait_until(
            target,
            lambda served: served.get(path, {"state": "joining"})["state"] != "joining",
            f"{path} has not joined",
            timeout,
        )
    return {"number": served[path]["number"], "path": path, "eligible": served[path]["eligible"], "pid": pid}


def _open_configuration(stack: ExitStack, target: Target, path: str) -> tuple[str, Config, Edit | None]:
    """The configuration file, its content, and the edit that it needs. Locked as long as `stack`."""
    status = control_socket.ask(target.socket, "status")
    file = require_configuration(target.name, status)
    stack.enter_context(config_edit.only_editor(file))
    present = load_config(file)
    require_same_mount(target.name, present, status, "the disk is not added")
    return file, present, _plan_edit(present, file, path)


def _prepare(target: Target, path: str, *, dry_run: bool, instead_of: str = "") -> dict[str, Any]:
    plan = ask(target, "disk-prepare", directory=path, dry_run=dry_run, instead_of=instead_of)
    for warning in plan["warnings"]:
        typer.echo(f"commitlogfs: warning: {warning}", err=True)
    return plan


def _forget(target: Target, path: str, planned: Edit | None) -> None:
    """Undo an addition, unless a daemon that was started meanwhile serves the disk already."""
    if path not in served_disks(target):
        take_back(planned)
        ask(target, "disk-forget", directory=path)


def _plan_edit(present: Config, file: str, path: str) -> Edit | None:
    """None if the file names the disk already: an earlier command was interrupted, or an operator has added it."""
    if any(disk.path == path for disk in present.disks):
        return None
    for disk in present.disks:
        remedy = "give a directory outside the disks of the pool"
        if is_within(path, disk.path):
            raise RefusedError(f"{path}: is inside the disk {disk.path}; {remedy}")
        if is_within(disk.path, path):
            raise RefusedError(f"{path}: contains the disk {disk.path}; {remedy}")
    return config_edit.add_disk(file, path)


def _show_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    if settings.wants_json(as_json):
        typer.echo(json.dumps(plan))
        return
    made = "would be made and " if plan["is_new"] else "would "
    typer.echo(
        f"{plan['name']}: {plan['path']} {made}become disk {plan['number']} of the pool ({plan['filesystem']}, "
        f"{approximate_size(plan['available_bytes'])} available); {plan['file']} would name it, and another "
        "daemon would take over. Nothing is unmounted."
    )
