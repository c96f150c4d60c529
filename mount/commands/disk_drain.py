"""`commitlogfs disk drain` and `cancel`: make a disk of a running mount empty, and stop that."""

import json
import time
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, UsageError
from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of
from commitlogfs.console.output import make_console
from commitlogfs.console.units import UnitError, parse_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import DiskArgument, ask, number_or_path, served_disks
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.views.status_text import describe_drain
from commitlogfs.store.disks.membership import DrainMode

_POLL_S: Final = 0.2

RateOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Bytes per second that may be read from, or written to, a disk; by default an eighth of its time.",
    ),
]


def drain(
    disk: DiskArgument,
    which: options.Mount = None,
    by_expiry: Annotated[
        bool,
        typer.Option("--by-expiry", help="Copy nothing: wait until the segments are removed in the normal course."),
    ] = False,
    rate: RateOption = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until no segment of the log is on it any more.")
    ] = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Make a disk empty while the broker runs: its segments are moved to the other disks.

    It gets no new segments. The newest three segments of the log are moved when newer ones have been made. A moved
    segment that the broker has open still occupies the disk until the broker is started anew, or deletes it; `disk
    safe-to-remove` tells. The drain is recorded on the disks and continues after a kill or a restart; `disk cancel`
    ends it. Repeated for a disk that drains already, the command changes the mode and the rate.

    EXIT STATUS: 0 begun, or with --wait: no segment is on it any more; 2 --rate is not a size; 3 no daemon answers;
    4 refused, and nothing has changed: no such disk, or no room on the others.
    """
    target = find_target(which)
    mode = DrainMode.EXPIRY if by_expiry else DrainMode.COPY
    answer = ask(
        target, "disk-drain", disk=number_or_path(disk), mode=mode.value, rate=parse_rate(rate), dry_run=dry_run
    )
    if wait and not dry_run:
        _wait(target, answer)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
        return
    text = _describe(answer, dry_run=dry_run)
    if dry_run:
        typer.echo(text)
    else:
        settings.say(text)
    for path in answer["lagging"]:
        typer.echo(f"{path}: has not recorded the change yet; it will when it can be written", err=True)


def cancel(
    disk: DiskArgument,
    which: options.Mount = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """End the drain of a disk. What was moved stays where it is; a move under way ends within a second.

    The disk takes new segments again, unless it is cordoned.

    EXIT STATUS: 0 it does not drain any longer; 3 no daemon answers; 4 refused: no such disk.
    """
    answer = ask(find_target(which), "disk-cancel", disk=number_or_path(disk), dry_run=dry_run)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
        return
    shown = f"{answer['name']}: disk {answer['number']} ({answer['path']})"
    if not answer["changed"]:
        settings.say(f"{shown} does not drain")
    elif dry_run:
        typer.echo(f"{shown} would not drain any longer; segments there: {answer['segments']:,}")
    else:
        settings.say(f"{shown} does not drain any longer; segments there: {answer['segments']:,}")


def wait_until_drained(target: Target, number: int) -> None:
    """Returns once a draining disk holds no segment of the log; shows the progress meanwhile. Raises AbsentError if
    it does not drain any longer."""
    _wait(target, {"number": number})


def parse_rate(text: str) -> int:
    """Bytes per second; 0 for an empty text. Raises UsageError."""
    try:
        return parse_size(text) if text else 0
    except UnitError as error:
        raise UsageError(f"--rate: {error}") from None


def _describe(answer: dict[str, Any], *, dry_run: bool) -> str:
    disk = f"{answer['name']}: disk {answer['number']} ({answer['path']})"
    verb = "would drain" if dry_run else "drains"
    if answer["mode"] == DrainMode.EXPIRY.value:
        return f"{disk} {verb} by expiry: {count_of(answer['segments'], 'segment')} there; nothing is copied"
    size = approximate_size(answer["to_move"] * answer["segment_size"])
    text = f"{disk} {verb}: {count_of(answer['to_move'], 'segment')} to move ({size})"
    if answer["kept"]:
        text += f", {answer['kept']:,} of the newest when newer ones have been made"
    return f"{text}; the others have room for {answer['room']:,}"


def _wait(target: Target, answer: dict[str, Any]) -> None:
    console = make_console(stderr=True)
    is_shown = console.is_terminal and not settings.current().quiet
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("draining", total=None, left="")
        total = 0
        while True:
            disk = _find(target, answer["number"])
            if disk["drain"] is None:
                raise AbsentError(f"{target.name}: {disk['path']}: does not drain any longer; it was cancelled")
            left = disk["drain"]["segments_left"]
            total = max(total, left)
            eta = disk["drain"]["eta_seconds"]
            text = describe_drain(disk) if eta is None else f"about {approximate_duration(eta)} left"
            progress.update(task, total=total or 1, completed=total - left, left=text)
            if not left:
                return
            time.sleep(_POLL_S)


def _find(target: Target, number: int) -> dict[str, Any]:
    for disk in served_disks(target).values():
        if disk["number"] == number:
            return disk
    raise AbsentError(f"{target.name}: disk {number} is not served any more")
