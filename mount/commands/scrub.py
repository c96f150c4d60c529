"""`commitlogfs scrub`: read the sealed segments of a mount from their disks, and report the damaged ones."""

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import ask, show_lagging
from commitlogfs.mount.commands.disk_drain import parse_rate
from commitlogfs.mount.commands.work_progress import describe_bytes, explained_interrupt, work_bar
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.views.scrub_text import (
    describe_damaged,
    describe_disks,
    describe_file_aside,
    describe_scrub,
    describe_set_aside,
    describe_start,
    describe_unread,
)

_POLL_S: Final = 0.2
_ACTIVE: Final = ("running", "paused")
_LOADED_S: Final = 5.0
"""How long a daemon that has just started is given to ask its disks what they have recorded."""

app = typer.Typer(name="scrub", help="Find damaged segments: read them all from the disks.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(app)


RateOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Bytes per second that may be read from each disk; by default 15 % of the time for which disks "
        "and processors are idle, at least 3 % of all time.",
    ),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")]


@app.command()
def start(
    which: options.Mount = None,
    rate: RateOption = "",
    messages: Annotated[
        bool,
        typer.Option(
            "--messages",
            help="Check the messages of every segment, also where its checksum is right: finds what was written "
            "broken. Takes much more processor time.",
        ),
    ] = False,
    wait: WaitOption = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Read all sealed segments from the disks, each disk by itself, and compare them with their checksums.

    A disk that cannot be read for half an hour is given up: the scrub ends without it, and the next one tries it
    again.

    It gives way to moves, and reads past the page cache. It is recorded on the disks and continues after a kill or
    a restart. A damaged segment is examined message by message; `scrub status` shows what was found, until `scrub
    clear`. The newest three segments of the log are not read. Repeated, the command changes the rate; a
    scheduled scrub continues at once as one by hand, outside of its window, too.

    EXIT STATUS: 0 begun; with --wait: ended, and no segment is damaged; 1 with --wait: some are damaged, or could
    not be read, or it was cancelled, or a disk has not answered yet; 2 no such mount, or a wrong --rate; 3 no
    daemon answers; 4 refused: one is paused, or a disk has not answered yet.
    """
    target, allowed = find_target(which), parse_rate(rate)
    answer = ask(target, "scrub-start", rate=allowed, messages=messages, dry_run=dry_run)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
    else:
        text = f"{target.name}: {describe_start(answer, dry_run=dry_run)}"
        if dry_run:
            typer.echo(text)
        else:
            settings.say(text)
    show_lagging(answer)
    if wait and not dry_run:
        _report_end(target, _wait(target), is_quiet=settings.wants_json(as_json))


@app.command()
def status(which: options.Mount = None, wait: WaitOption = False, as_json: options.Json = False) -> None:
    """Show how far the scrub is, and the damaged segments with their messages.

    It waits for a daemon that has just started, and still asks its disks what they have recorded.

    EXIT STATUS: 0 no segment is damaged; 1 some are, or that is not known of all: the latest scrub could not read
    some, or a disk has not answered yet; 2 no such mount; 3 no daemon answers.
    """
    target = find_target(which)
    scrub = _wait(target) if wait else _loaded(target)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, "scrub": scrub}))
    else:
        output = Output()
        output.paragraph(f"{target.name}: {describe_scrub(scrub)}")
        for line in describe_disks(scrub) if scrub["state"] in _ACTIVE else ():
            output.paragraph(line)
        for damaged in scrub["damaged"]:
            for line in describe_damaged(damaged):
                output.paragraph(line)
        for file in scrub.get("set_aside", ()):  # a daemon of a former version does not report them
            output.paragraph(describe_file_aside(file))
        if aside := describe_set_aside(scrub):
            output.paragraph(aside)
    _report_unknown(scrub.get("unknown", ()))  # a daemon of a former version does not report them
    if scrub["damaged"] or scrub.get("unknown") or describe_unread(scrub):
        raise typer.Exit(ExitCode.FINDINGS)


@app.command()
def pause(which: options.Mount = None, dry_run: options.DryRun = False, as_json: options.Json = False) -> None:
    """Pause the scrub. It stays paused, also over a restart, until `scrub resume` or `scrub cancel`.

    The segments at hand are read again from their beginning when it continues.

    EXIT STATUS: 0 paused, or none is under way; 2 no such mount; 3 no daemon answers; 4 refused: a disk has not
    answered yet.
    """
    _order(which, "scrub-pause", "is paused", dry_run=dry_run, as_json=as_json)


@app.command()
def resume(
    which: options.Mount = None,
    rate: RateOption = "",
    wait: WaitOption = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Continue a paused scrub, with another rate if one is given.

    EXIT STATUS: 0 it continues; with --wait, as `scrub start`; 2 no such mount, or a wrong --rate; 3 no daemon
    answers; 4 refused: no scrub is under way, or a disk has not answered yet.
    """
    arguments = {"rate": parse_rate(rate)} if rate else {}
    target = _order(which, "scrub-resume", "continues", dry_run=dry_run, as_json=as_json, **arguments)
    if wait and not dry_run:
        _report_end(target, _wait(target), is_quiet=settings.wants_json(as_json))


@app.command()
def cancel(which: options.Mount = None, dry_run: options.DryRun = False, as_json: options.Json = False) -> None:
    """End the scrub. What it has found stays; the next one begins with the oldest segment.

    EXIT STATUS: 0 none is under way any longer; 2 no such mount; 3 no daemon answers; 4 refused: a disk has not
    answered yet.
    """
    _order(which, "scrub-cancel", "has ended", dry_run=dry_run, as_json=as_json)


@app.command()
def clear(
    which: options.Mount = None,
    segments: Annotated[
        list[str] | None,
        typer.Option("--segment", metavar="NAME", help="Only this segment; may be repeated. Default: all."),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Remove the verdicts on damaged segments, and the damaged files that were set aside when segments were
    repaired. The segments of the log stay as they are.

    A verdict stays until this command, also if a later scrub finds the segment right. If the content still differs
    from the segment's checksum, or cannot be read, the next scrub finds the damage again. A message that was
    damaged before the segment got its checksum (`written-broken`) is found only by `scrub start --messages`, and
    lost writes are not found again. A file that was set aside stays until this command, or until its segment has
    left the log; one that a process has open is removed when it is closed.

    EXIT STATUS: 0 removed, or there was none; 1 a disk could not remove one, or not yet, or has not answered since
    the daemon has started; 2 no such mount, or not a segment's name; 3 no daemon answers; 4 refused: a segment has
    no verdict, and no file set aside, as far as the disks have answered.
    """
    target = find_target(which)
    arguments = {"segments": [segment_offset(name) for name in segments]} if segments else {}
    answer = ask(target, "scrub-clear", dry_run=dry_run, **arguments)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
    else:
        verb = "would be removed" if dry_run else "removed"
        settings.say(f"{target.name}: {_describe_cleared(answer, verb)}")
    files = answer.get("not_removed", ())  # a daemon of a former version has none
    for name in answer["kept"]:
        reason = "the segment moves at this moment, or see `dmesg`"
        typer.echo(f"{name}: its verdict could not be removed: {reason}; repeat the command", err=True)
    pending = answer.get("pending", ())
    if pending:
        text = f"{count_of(len(pending), 'segment')} left; the daemon continues: repeat the command"
        typer.echo(f"{target.name}: {text}", err=True)
    for file in files:
        typer.echo(f"{file['path']}: its disk could not rename it; see `dmesg`, and repeat the command", err=True)
    unknown = answer.get("unknown", ())
    _report_unknown(unknown)
    if answer["kept"] or pending or files or unknown:
        raise typer.Exit(ExitCode.FINDINGS)


def _describe_cleared(answer: dict[str, Any], verb: str) -> str:
    verdicts, files = len(answer["cleared"]), len(answer.get("removed", ()))
    if not verdicts and not files:
        return "no verdict"
    parts = [count_of(verdicts, "verdict")] if verdicts else []
    parts += [count_of(files, "damaged file")] if files else []
    return f"{' and '.join(parts)} {verb}"


def _order(which: str | None, verb: str, result: str, *, dry_run: bool, as_json: bool, **arguments: int) -> Target:
    target = find_target(which)
    answer = ask(target, verb, dry_run=dry_run, **arguments)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
    elif not answer["active"]:
        settings.say(f"{target.name}: no scrub is under way")
    elif dry_run:
        typer.echo(f"{target.name}: afterwards, the scrub {result}")
    else:
        settings.say(f"{target.name}: the scrub {result}")
    show_lagging(answer)
    return target


def segment_offset(name: str) -> int:
    """Base offset of a segment by its name, for `--segment`. Raises UsageError."""
    if not name.isdecimal():
        raise UsageError(f"--segment {name}: not the name of a segment; `scrub status` shows the damaged ones")
    return int(name)


def _scrub_of(target: Target) -> dict[str, Any]:
    """The part `scrub` of the status document. Raises FormerVersionError."""
    scrub: dict[str, Any] | None = control_socket.ask(target.socket, "status").get("scrub")
    if scrub is None:
        raise control_socket.FormerVersionError(target.name)
    return scrub


def _loaded(target: Target) -> dict[str, Any]:
    """The same, once the disks have answered what they have recorded; as it is if one does not for a while."""
    began_s = time.monotonic()
    while (scrub := _scrub_of(target)).get("unknown") and time.monotonic() - began_s < _LOADED_S:
        time.sleep(_POLL_S)
    return scrub


def _report_unknown(disks: Sequence[str]) -> None:
    for disk in disks:
        typer.echo(f"{disk}: has not answered yet which segments are damaged; repeat the command", err=True)


def _wait(target: Target) -> dict[str, Any]:
    """Returns the part `scrub` once no scrub is under way; shows the progress meanwhile."""
    hint = f"{target.name}: the scrub continues; `commitlogfs scrub cancel {target.name}` ends it"
    with explained_interrupt(hint), work_bar("scrubbing") as show:
        while (scrub := _loaded(target))["state"] in _ACTIVE:
            done, left = scrub["done_bytes"], scrub["left_bytes"]
            text = describe_bytes(done, left, scrub["bytes_per_second"], scrub["eta_seconds"])
            show(done, left, "paused" if scrub["state"] == "paused" else text)
            time.sleep(_POLL_S)
    return scrub


def _report_end(target: Target, scrub: dict[str, Any], *, is_quiet: bool) -> None:
    """Raises AbsentError if the scrub was cancelled, Exit if segments are damaged, or if not all are known."""
    if scrub["state"] == "cancelled":
        raise AbsentError(f"{target.name}: the scrub was cancelled; `scrub start` begins another one")
    if not is_quiet:
        count, unknown = len(scrub["damaged"]), scrub.get("unknown", ())
        found = f"{count_of(count, 'segment')} damaged; see `scrub status`" if count else "no segment is damaged"
        if not count and unknown:
            found = f"damage is not known yet of {', '.join(unknown)}"
        settings.say(f"{target.name}: the scrub has ended: {found}")
    unread = describe_unread(scrub)
    if unread and not is_quiet:
        typer.echo(f"{target.name}: {unread}; repair the disk, and repeat the command", err=True)
    if scrub["damaged"] or scrub.get("unknown") or unread:
        raise typer.Exit(ExitCode.FINDINGS)
