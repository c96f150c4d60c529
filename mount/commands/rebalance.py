"""`commitlogfs rebalance`: make the disks of a running mount equally full."""

import json
import time
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, UsageError
from commitlogfs.console.output import Output
from commitlogfs.console.units import format_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import ask, show_lagging
from commitlogfs.mount.commands.disk_drain import RateOption, parse_rate
from commitlogfs.mount.commands.work_progress import (
    describe_bytes,
    explained_interrupt,
    moved_bytes,
    work_bar,
)
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.views.rebalance_text import (
    describe_plan,
    describe_rebalance,
    describe_spread,
    describe_start,
)
from commitlogfs.store.disks.membership import RebalanceMode

_POLL_S: Final = 0.2

app = typer.Typer(name="rebalance", help="Make the disks of a running mount equally full.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(app)


CopyOption = Annotated[
    bool, typer.Option("--copy", help="Move segments; by default only new segments go to emptier disks.")
]


@app.command()
def plan(
    which: options.Mount = None,
    copy: CopyOption = False,
    rate: RateOption = "",
    as_json: options.Json = False,
) -> None:
    """Show what a rebalance would do: how full each disk is and would be, what is moved, and how long it takes.

    EXIT STATUS: 0 shown; 2 no such mount, or a wrong --rate, or --rate without --copy; 3 no daemon answers.
    """
    answer = _ask_plan(find_target(which), _mode(copy=copy), _rate(rate, copy=copy))
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer, indent=2))
        return
    output = Output()
    for line in describe_plan(answer):
        output.paragraph(line)


@app.command()
def start(
    which: options.Mount = None,
    copy: CopyOption = False,
    rate: RateOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Make the disks equally full, to within two points of their size. It ends by itself.

    By default, new segments go to the emptier disks, and nothing is copied. With --copy, as few segments as
    possible are moved from the fuller disks. It is recorded on the disks and continues after a kill or a restart.
    Repeated in the same mode, the command changes the rate.

    EXIT STATUS: 0 begun, or nothing to do; with --wait: the disks are equally full; 1 with --wait: it ended before;
    2 no such mount, or a wrong --rate, or --rate without --copy; 3 no daemon answers; 4 refused, and nothing has
    changed: one of the other mode runs, fewer than two disks take part, or nothing can be moved.
    """
    target, mode, allowed = find_target(which), _mode(copy=copy), _rate(rate, copy=copy)
    answer = ask(target, "rebalance-start", mode=mode.value, rate=allowed, dry_run=dry_run)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
    else:
        _show_start(answer, dry_run=dry_run)
    show_lagging(answer)
    if wait and not dry_run and answer["since"] is not None:
        _wait(target, answer["since"])
        if not settings.wants_json(as_json):
            settings.say(f"{target.name}: the rebalance has ended. {describe_spread(_plan_now(target))}")


@app.command()
def status(
    which: options.Mount = None,
    as_json: options.Json = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
) -> None:
    """Show how far a rebalance is.

    EXIT STATUS: 0 shown; with --wait: the disks are equally full; 1 with --wait: they are not, and no rebalance
    runs; 2 no such mount; 3 no daemon answers.
    """
    target = find_target(which)
    if wait:
        _wait(target)
    running = _running(target)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, "rebalance": running}))
    elif running is not None:
        typer.echo(f"{target.name}: {describe_rebalance(running)}")
    else:
        typer.echo(f"{target.name}: no rebalance runs. {describe_spread(_plan_now(target))}")


@app.command()
def cancel(which: options.Mount = None, dry_run: options.DryRun = False, as_json: options.Json = False) -> None:
    """End a rebalance. What was moved stays where it is; a move under way ends within a second.

    EXIT STATUS: 0 none runs any longer; 2 no such mount; 3 no daemon answers; 4 refused: no disk can record it.
    """
    answer = ask(find_target(which), "rebalance-cancel", dry_run=dry_run)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
    elif not answer["changed"]:
        settings.say(f"{answer['name']}: no rebalance runs")
    elif dry_run:
        typer.echo(f"{answer['name']}: the rebalance would end")
    else:
        settings.say(f"{answer['name']}: the rebalance has ended")


def _mode(*, copy: bool) -> RebalanceMode:
    return RebalanceMode.COPY if copy else RebalanceMode.PLACEMENT


def _rate(text: str, *, copy: bool) -> int:
    """Bytes per second; 0 for an empty text. Raises UsageError."""
    if text and not copy:
        raise UsageError("--rate: by placement, nothing is copied; leave it out, or add --copy")
    return parse_rate(text)


def _ask_plan(target: Target, mode: RebalanceMode, rate: int) -> dict[str, Any]:
    return ask(target, "rebalance-plan", mode=mode.value, rate=rate)


def _plan_now(target: Target) -> dict[str, Any]:
    """The spread of the disks as they are."""
    return _ask_plan(target, RebalanceMode.PLACEMENT, 0)


def _running(target: Target) -> dict[str, Any] | None:
    """The part `rebalance` of the status document."""
    running: dict[str, Any] | None = control_socket.ask(target.socket, "status").get("rebalance")
    return running


def _show_start(answer: dict[str, Any], *, dry_run: bool) -> None:
    if answer["running"]:
        limit = "at the default rate" if answer["rate"] is None else f"at most {format_size(answer['rate'])}/s"
        did = f"now moves {limit}" if answer["changed"] else "runs already"
        settings.say(f"{answer['name']}: the rebalance {did}")
        return
    text = f"{answer['name']}: {describe_start(answer, dry_run=dry_run)}"
    if dry_run:
        typer.echo(text)
    else:
        settings.say(text)


def _wait(target: Target, since: int | None = None) -> None:
    """Returns once no rebalance runs; shows the progress meanwhile. `since` is that of the one that was begun.
    Raises AbsentError if it has ended before the disks were equally full."""
    with explained_interrupt(
        f"{target.name}: the rebalance continues; `commitlogfs rebalance cancel {target.name}` ends it"
    ):
        since = _show_progress(target) or since
    reached = _plan_now(target)
    ended = reached["last_ended"]
    if ended is not None and ended["since"] == since:
        reached = ended  # the broker may have made new segments since
    if not reached["balanced"]:
        reason = (
            "`rebalance start` begins one"
            if since is None
            else "it was cancelled, or the rest cannot be moved (`rebalance plan --copy`)"
        )
        raise AbsentError(
            f"{target.name}: no rebalance runs, and the spread is {reached['spread_points']:.1f} points; {reason}"
        )


def _show_progress(target: Target) -> int | None:
    """Returns once no rebalance runs; when the last one that was seen has begun."""
    since, total = None, 0
    with work_bar("rebalancing") as show:
        while True:
            status = control_socket.ask(target.socket, "status")
            running = status.get("rebalance")
            if running is None:
                return since
            since, moves = running["since"], status["moves"]
            is_copying = running["mode"] == RebalanceMode.COPY.value
            left = max(0, running["bytes_left"] - (moved_bytes(moves["current"]) if is_copying else 0))
            total = max(total, left)
            rate = moves["bytes_per_second"] if is_copying else status["ingest_bytes_per_second"]
            text = describe_bytes(total - left, left, rate, running["eta_seconds"])
            show(total - left, left, text if left else describe_rebalance(running))
            time.sleep(_POLL_S)
