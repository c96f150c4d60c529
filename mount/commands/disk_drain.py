"""`commitlogfs disk drain` and `cancel`: make a disk of a running mount empty, and stop that."""

import json
import time
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, UsageError
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.units import UnitError, parse_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import DiskArgument, ask, number_or_path, show_lagging
from commitlogfs.mount.commands.work_progress import (
    describe_bytes,
    explained_interrupt,
    moved_bytes,
    work_bar,
)
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.views.status_text import describe_drain
from commitlogfs.store.disks.membership import DrainMode

_POLL_S: Final = 0.2

RateOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Bytes per second that may be read from, or written to, a disk; by default 15 % of the time for "
        "which disks and processors are idle, at least 3 % of all time.",
    ),
]


def drain(
    disk: DiskArgument,
    which: options.Mount = None,
    by_expiry: Annotated[
        bool,
        typer.Option("--by-expiry", help="Copy nothing: wait until the segments are removed in the normal course."),
    ] = False,
    failing: Annotated[
        bool,
        typer.Option("--failing", help="The disk fails: copy what can be read; the rest becomes zeros."),
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
    segment that the broker has open still occupies the disk until the broker restarts, or deletes it; `disk
    safe-to-remove` reports that. The drain is recorded on the disks and continues after a kill or a restart;
    `disk cancel` ends it. Repeated for a disk that drains already, the command changes the mode and the rate.

    With --failing, blocks that cannot be read are zeros in the copy, and `status` lists their log offsets; the disk
    may be read-only. A former file of which a part could not be read stays on the disk, and so does a segment of
    which nothing could be read. `disk remove --lost` then takes the disk out of the pool.

    EXIT STATUS: 0 begun, or with --wait: no segment is on it any more; 1 with --wait: the drain was cancelled, or
    the disk has left the pool; 2 no such mount, or a wrong option; 3 no daemon answers; 4 refused, and nothing has
    changed: no such disk, or no room on the others.
    """
    target = find_target(which)
    if by_expiry and failing:
        raise UsageError("--by-expiry copies nothing, and --failing copies what can be read; give one of them")
    if by_expiry and rate:
        raise UsageError("--rate: by expiry, nothing is copied; leave it out, or leave out --by-expiry")
    mode = DrainMode.EXPIRY if by_expiry else DrainMode.FAILING if failing else DrainMode.COPY
    answer = ask(
        target, "disk-drain", disk=number_or_path(disk), mode=mode.value, rate=parse_rate(rate), dry_run=dry_run
    )
    show_lagging(answer)
    wants_json = settings.wants_json(as_json)
    if dry_run and not wants_json:
        typer.echo(_describe(answer, dry_run=True))
    elif not wants_json:
        settings.say(_describe(answer, dry_run=False))
    if wait and not dry_run:
        wait_until_drained(target, answer["number"])
        if not wants_json:
            settings.say(f"{target.name}: disk {answer['number']} ({answer['path']}) holds no segment any more")
    if wants_json:
        typer.echo(json.dumps(answer))


def cancel(
    disk: DiskArgument,
    which: options.Mount = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """End the drain of a disk. What was moved stays where it is; a move under way ends within a second.

    The disk takes new segments again, unless it is cordoned.

    EXIT STATUS: 0 it does not drain any longer; 2 no such mount; 3 no daemon answers; 4 refused, and nothing has
    changed: no such disk, or no disk can record it.
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
    with explained_interrupt(
        f"{target.name}: the drain continues; `commitlogfs disk cancel {number} {target.name}` ends it"
    ):
        _show_progress(target, number)


def parse_rate(text: str) -> int:
    """Bytes per second; 0 for an empty text. Raises UsageError."""
    if not text:
        return 0
    try:
        rate = parse_size(text)
    except UnitError as error:
        raise UsageError(f"--rate: {error}") from None
    if not rate:
        raise UsageError("--rate: 0 would move nothing; give a rate above 0, or leave it out")
    return rate


def _describe(answer: dict[str, Any], *, dry_run: bool) -> str:
    disk = f"{answer['name']}: disk {answer['number']} ({answer['path']})"
    verb = "would drain" if dry_run else "drains"
    if answer["mode"] == DrainMode.FAILING.value:
        verb += ", as far as it can be read"
    if answer["mode"] == DrainMode.EXPIRY.value:
        return f"{disk} {verb} by expiry: {count_of(answer['segments'], 'segment')} there; nothing is copied"
    text = f"{disk} {verb}: {count_of(answer['to_move'], 'segment')} to move now"
    if answer["to_move"]:
        text += f" ({approximate_size(answer['to_move'] * answer['segment_size'])})"
    if answer["kept"]:
        follows = "follows" if answer["kept"] == 1 else "follow"
        text += f"; {answer['kept']:,} of the newest segments {follows} when the broker has made newer ones"
    return f"{text}; the other disks have room for {count_of(answer['room'], 'segment')}"


def _show_progress(target: Target, number: int) -> None:
    total = 0
    with work_bar("draining") as show:
        while True:
            status = control_socket.ask(target.socket, "status")
            disk = _find(target, status, number)
            drain = disk["drain"]
            if drain is None:
                raise AbsentError(f"{target.name}: {disk['path']}: does not drain any longer; it was cancelled")
            if not drain["segments_left"]:
                return
            moves = status["moves"]
            is_moved = moves["current"] is not None and moves["current"]["from"] == disk["path"]
            left = drain["segments_left"] * status["segments"]["size"]
            left -= moved_bytes(moves["current"]) if is_moved else 0
            total = max(total, left)
            text = describe_drain(disk)
            if _moves_on(drain):
                text = describe_bytes(total - left, left, moves["bytes_per_second"], drain["eta_seconds"])
            show(total - left, left, text)
            time.sleep(_POLL_S)


def _moves_on(drain: dict[str, Any]) -> bool:
    is_copied, has_more = drain["mode"] != DrainMode.EXPIRY.value, drain["segments_left"] > drain["segments_kept"]
    waits = drain["no_room"] or drain.get("waits_for")  # a daemon of a former version does not report it
    return is_copied and has_more and not waits


def _find(target: Target, status: dict[str, Any], number: int) -> dict[str, Any]:
    for disk in status["disks"]:
        if disk["number"] == number:
            found: dict[str, Any] = disk
            return found
    raise AbsentError(f"{target.name}: disk {number} is not served any more")
