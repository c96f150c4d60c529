"""`commitlogfs disk offline` and `disk online`: release a disk of a running mount, and take it back."""

import contextlib
import json
import time
from contextlib import ExitStack
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, UnreachableError
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import waiting_line
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import (
    DiskArgument,
    Timeout,
    ask,
    hand_over,
    number_or_path,
    require_configuration,
    require_recorded,
    show_lagging,
    users_as_json,
    users_of_disk,
    wait_until_gone,
)
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.linux.holders import describe_file_users
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.preflight.successor_check import check_configuration
from commitlogfs.store.findings import FindingCode

_POLL_S: Final = 0.2

WaitForDisk = Annotated[float, typer.Option(help="Seconds to wait until the disk is served.", min=0)]


def offline(
    disk: DiskArgument,
    which: options.Mount = None,
    timeout: Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Release a disk of a running mount, so that it can be unmounted, checked or exchanged; `disk online` takes it
    back. The broker continues.

    Another daemon takes the mount over (as with `restart`), and serves the other disks. Meanwhile reads of the
    segments there fail, unless they are passed through: the kernel holds such files, and the disk stays busy, until
    their last close. A disk that is missing is reported as offline instead of missing. A new mount of the pool
    takes every disk back.

    EXIT STATUS: 0 the disk is offline; 1 it is still served after the timeout; 2 no such mount; 3 no daemon
    answers; 4 refused, and nothing has changed: no such disk, the broker may write to a segment there, no other
    disk takes new segments, the disk hangs or drains, or no daemon could take over.
    """
    target = find_target(which)
    answer = release(target, number_or_path(disk), timeout, dry_run=dry_run)
    users = [] if dry_run else users_of_disk(target, answer["number"])
    if settings.wants_json(as_json):
        typer.echo(json.dumps({**answer, "users": users_as_json(users)}))
        return
    named = f"{target.name}: disk {answer['number']} ({answer['path']})"
    if dry_run and answer["changed"]:
        segments = count_of(answer["segments"], "segment")
        typer.echo(f"{named} would be offline: {segments} there would not be served until `disk online`")
        return
    if users:
        typer.echo(
            f"{named} is offline; it can be unmounted when its files are closed: {describe_file_users(users)}"
        )
    elif answer["changed"]:
        settings.say(f"{named} is offline; it can be unmounted")
    else:
        settings.say(f"{named} is offline already")
    show_lagging(answer)


def online(
    disk: DiskArgument,
    which: options.Mount = None,
    timeout: WaitForDisk = 60.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Take a disk back that is offline. It has to be mounted at its path.

    Another daemon takes the mount over by itself, within 10 s, and serves the disk again. If that is not possible,
    the reason is shown, and the disk is no longer offline but missing.

    EXIT STATUS: 0 the disk is served; 1 it is not within the timeout; 2 no such mount; 3 no daemon answers; 4
    refused, and nothing has changed: no such disk, it is not at its path, or another disk does not answer.
    """
    target = find_target(which)
    answer = ask(target, "disk-online", disk=number_or_path(disk), dry_run=dry_run)
    number, path = answer["number"], answer["path"]
    if not dry_run and answer["changed"] and not answer["served"]:
        _wait_until_served(target, number, path, timeout)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
        return
    named = f"{target.name}: disk {number} ({path})"
    if not answer["changed"]:
        settings.say(f"{named} is not offline")
    elif dry_run:
        typer.echo(f"{named} would be served again")
    else:
        settings.say(f"{named} is served again")
    show_lagging(answer)


def release(target: Target, disk: str, timeout: float, *, dry_run: bool = False) -> dict[str, Any]:
    """The daemon's answer, once it does not serve the disk any more. Raises RefusedError, ConfigError,
    UnreachableError; AbsentError after `timeout` seconds."""
    with ExitStack() as stack:
        status = control_socket.ask(target.socket, "status")
        stack.enter_context(config_edit.only_editor(require_configuration(target.name, status)))
        plan = ask(target, "disk-offline", disk=disk, dry_run=True)
        if plan["served"]:
            check_configuration(target, degraded=True)
        if dry_run:
            return plan
        undo = stack.enter_context(ExitStack())
        undo.callback(ask, target, "disk-online", disk=str(plan["number"]))
        answer = ask(target, "disk-offline", disk=disk)
        if not plan["served"]:
            undo.pop_all()
        else:
            require_recorded(target, [path for path in answer["lagging"] if path != plan["path"]])
            hand_over(target, timeout, undo)
            wait_until_gone(target, plan["number"], timeout)
    return answer


def _wait_until_served(target: Target, number: int, path: str, timeout: float) -> None:
    """Raises AbsentError if that takes too long, or if the daemon has found a reason not to serve the disk."""
    deadline = time.monotonic() + timeout
    with waiting_line(f"{target.name}: waiting for its new daemon"):
        while time.monotonic() < deadline:
            # The former daemon hands over meanwhile.
            with contextlib.suppress(UnreachableError, control_socket.ControlError):
                if _is_served(control_socket.ask(target.socket, "status"), target.name, number, path):
                    return
            time.sleep(_POLL_S)
    raise AbsentError(f"{target.name}: disk {number} is not served after {timeout:g} s; see the log")


def _is_served(status: dict[str, Any], name: str, number: int, path: str) -> bool:
    for finding in status["findings"]:
        if finding["disk"] == path and finding["code"] == FindingCode.DISK_NOT_TAKEN_BACK.value:
            raise AbsentError(f"{name}: {path}: {finding['message']}; {finding['remedy']}")
    return any(disk["number"] == number for disk in status["disks"])
