"""`commitlogfs disk replace`: another disk takes the place of one, which may be dead."""

import json
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_add import join_pool, plan_addition
from commitlogfs.mount.commands.disk_calls import DiskArgument, Timeout, ask, number_or_path
from commitlogfs.mount.commands.disk_drain import RateOption, parse_rate, wait_until_drained
from commitlogfs.mount.commands.disk_lost import confirm_loss, give_up_served
from commitlogfs.mount.commands.disk_remove import leave_pool
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import path_argument
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target

_HOW: Final = {"copy": "", "expiry": " by expiry", "failing": " as far as it can be read"}
"""By the mode of the drain."""
_DEAD: Final = frozenset({"failed", "offline", "unresponsive"})


def replace(
    old: DiskArgument,
    new: Annotated[str, typer.Argument(metavar="DIRECTORY", help="As for `disk add`.")],
    which: options.Mount = None,
    rate: RateOption = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the old disk is empty, and take it out of the pool.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="For a dead disk: do not ask.")] = False,
    timeout: Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Let another disk take the place of one. Nothing is unmounted.

    A living disk: DIRECTORY joins the pool, and the old disk drains. A drain that it has already continues, also
    one with --failing or --by-expiry, and without --rate it keeps its rate. With --wait the old disk also leaves
    the pool once it is empty; without, `disk remove` does that.

    A dead or missing disk: it is given up, as by `disk remove --lost`, and DIRECTORY joins. What is lost is shown
    and has to be confirmed.

    EXIT STATUS: 0 done, or without --wait: begun; 1 it has not joined within the timeout, or with --wait: the drain
    was cancelled, or a process still has segments of the old disk open, so it could not leave yet; 2 no such mount,
    a wrong option, the configuration file cannot be edited, or a loss could not be confirmed; 3 no daemon answers;
    4 refused.
    """
    target, path, wants_json = find_target(which), path_argument(new), settings.wants_json(as_json)
    status = control_socket.ask(target.socket, "status")
    old, given = _find(status, number_or_path(old)), parse_rate(rate)
    rates = {"rate": given} if given else {}  # else a drain that runs keeps its own
    if _state(status, old) in _DEAD:
        _replace_dead(target, old, path, timeout, yes=yes, dry_run=dry_run, wants_json=wants_json)
        return
    joined = _joined_before(target.name, status, old, path)
    if joined is None:
        plan = plan_addition(target, path)
        drained = ask(target, "disk-drain", disk=old, dry_run=True, more_room=plan["room"], **rates)
        text = (
            f"{target.name}: {path} would become disk {plan['number']}, and {old} would drain"
            f"{_HOW[drained['mode']]}: {count_of(drained['to_move'], 'segment')} "
            f"({approximate_size(drained['to_move'] * drained['segment_size'])}) to move"
        )
    else:
        plan = {"name": target.name, **joined}
        drained = ask(target, "disk-drain", disk=old, dry_run=True, has_room=True, **rates)
        text = f"{target.name}: {path} is disk {joined['number']} already, and {old} drains{_HOW[drained['mode']]}"
    if dry_run:
        _show({**plan, "old": old, "to_move": drained["to_move"]}, text, wants_json=wants_json)
        return
    if joined is None:
        joined = join_pool(target, path, timeout)
    _drain(target, joined, old, rates, timeout, wait=wait, wants_json=wants_json)


def _joined_before(name: str, status: dict[str, Any], old: str, path: str) -> dict[str, Any] | None:
    """The new disk, if the command was interrupted after that had joined. Raises RefusedError if the directory is a
    disk of the pool, and the old one does not drain."""
    disk = next((disk for disk in status["disks"] if disk["path"] == path), None)
    if disk is None:
        return None
    if _state(status, old) == "leaving":
        raise RefusedError(
            f"{name}: {path} is disk {disk['number']} already, and {old} leaves; run `disk remove {old}`"
        )
    if _state(status, old) != "draining" or path == old:
        raise RefusedError(
            f"{name}: {path}: is disk {disk['number']} of this pool already; to empty {old} into the others, use "
            "`disk drain`, and then `disk remove`"
        )
    return {"number": disk["number"], "path": path, "pid": status["daemon"]["pid"]}


def _drain(
    target: Target,
    joined: dict[str, Any],
    old: str,
    rates: dict[str, int],
    timeout: float,
    *,
    wait: bool,
    wants_json: bool,
) -> None:
    """The new disk is one of the pool; the old one drains, and leaves."""
    path = joined["path"]
    try:
        drained = ask(target, "disk-drain", disk=old, has_room=True, **rates)
    except RefusedError as error:  # the old disk has changed since the plan
        raise RefusedError(
            f"{error}; {path} is disk {joined['number']} of the pool by now: correct that, and run "
            f"`disk drain {old}`"
        ) from error
    result = {"name": target.name, **joined, "old": old, "to_move": drained["to_move"], "left": False}
    if not wait:
        more = f"`commitlogfs disk remove {old}` when `disk safe-to-remove` says so"
        drains = f"{old} drains{_HOW[drained['mode']]}"
        _show(result, f"{target.name}: {path} is disk {joined['number']}; {drains}; {more}", wants_json=wants_json)
        return
    wait_until_drained(target, drained["number"])
    try:
        leave_pool(target, old, timeout)
    except RefusedError as held:
        _show(result, f"{target.name}: {old} is drained, but cannot leave yet ({held})", wants_json=wants_json)
        raise typer.Exit(ExitCode.FINDINGS) from None
    _show(
        {**result, "left": True},
        f"{target.name}: {path} is disk {joined['number']}, and {old} has left the pool; unmount it",
        wants_json=wants_json,
    )


def _replace_dead(
    target: Target, old: str, path: str, timeout: float, *, yes: bool, dry_run: bool, wants_json: bool
) -> None:
    lost = ask(target, "disk-give-up", disk=old, dry_run=True)
    number = plan_addition(target, path, instead_of=old)["number"]
    plan = {**lost, "joins": {"number": number, "path": path}}
    if not confirm_loss(plan, yes=yes, dry_run=dry_run, as_json=wants_json):
        return
    given_up = give_up_served(old, target, timeout)
    try:
        joined = join_pool(target, path, timeout)
    except (RefusedError, ConfigError) as error:
        raise RefusedError(
            f"{error}; disk {given_up['number']} is given up already: correct that, and run `disk add {path}`"
        ) from error
    _show(
        {"name": target.name, **joined, "old": old, "lost": given_up["lost"], "left": True},
        f"{target.name}: {old} is given up, and {path} is disk {joined['number']} of the pool",
        wants_json=wants_json,
    )


def _find(status: dict[str, Any], text: str) -> str:
    """The path of the disk with this number or path; the text itself if that disk is missing."""
    for disk in status["disks"]:
        if text in (str(disk["number"]), disk["path"]):
            return str(disk["path"])
    return text


def _state(status: dict[str, Any], path: str) -> str:
    return next((str(disk["state"]) for disk in status["disks"] if disk["path"] == path), "offline")


def _show(document: dict[str, Any], text: str, *, wants_json: bool) -> None:
    if wants_json:
        typer.echo(json.dumps(document))
    else:
        settings.say(text)
