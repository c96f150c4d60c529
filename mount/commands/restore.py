"""`commitlogfs restore`: fill the gaps of a log from a slave, a backup or an object store."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import ask
from commitlogfs.mount.commands.disk_drain import RateOption, parse_rate
from commitlogfs.mount.commands.work_progress import describe_bytes, work_bar
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.restoring.own_log import OwnLog
from commitlogfs.mount.restoring.places import Place, find_place
from commitlogfs.mount.restoring.segments import OnStep, Outcome, Restorer
from commitlogfs.store.segment import BaseOffset

_STEPS: Final = ("checking", "copying", "verifying")
_NAMES_SHOWN: Final = 10


def register(app: typer.Typer) -> None:
    app.command()(restore)


def restore(
    which: options.Mount = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="DIRECTORY|URI",
            help="The commitlog of a slave, a backup or an object store; of several, the first sound copy counts.",
        ),
    ] = None,
    rate: RateOption = "",
    spool: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="For what lies on a URI or a network or FUSE filesystem, one segment at a time. Default: $TMPDIR.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Fill the gaps of a mounted log with segments from elsewhere, while the broker runs.

    Each segment is checked first: an unbroken chain of records with their own log offsets and right checksums. Then
    the daemon copies it to a disk and reads it back. A segment gets the time of its last message. The broker sees
    it when it restarts; other readers see it at once. Interrupted at any moment, the command can be
    repeated: it restores what is still missing.

    EXIT STATUS: 0 the log has no gap; 1 some segments are still missing; 2 a place or an option is wrong; 3 no
    daemon answers; 4 refused: a missing disk may hold the segments, or there is no room for them.
    """
    if not sources:
        raise typer.BadParameter("name at least one directory or URI", param_hint="--from")
    target = find_target(which)
    allowed = parse_rate(rate)
    plan = ask(target, "restore-plan")
    size: int = plan["segment_size"]
    missing = [BaseOffset(base) for start, end in plan["missing"] for base in range(start, end, size)]
    missing.reverse()  # the oldest may expire before their turn
    log = OwnLog(Path(target.status()["mountpoint"]), size)
    found, proven = _find(missing, [find_place(source, size) for source in sources], log, size)
    count = sum(map(bool, found.values()))
    if count > plan["room"]:
        raise RefusedError(
            f"{target.name}: {count:,} segments ({count * size:,} bytes) would be restored, and the disks have "
            f"room for {plan['room']:,} below their `force` threshold; add a disk"
        )
    if dry_run:
        outcomes = [Outcome(base, places[0].name if places else None) for base, places in found.items()]
    else:
        restorer = Restorer(target, size, log, proven, allowed, spool)
        outcomes = _restore(restorer, found, size, plan["first_offset"])
    _report(target.name, outcomes, size, dry_run=dry_run, as_json=settings.wants_json(as_json))
    if any(outcome.place is None for outcome in outcomes):
        raise typer.Exit(ExitCode.FINDINGS)


def _find(
    missing: Sequence[BaseOffset], places: Sequence[Place], log: OwnLog, segment_size: int
) -> tuple[dict[BaseOffset, list[Place]], set[str]]:
    """The places that have a file of the right size, for each missing segment; the names of those places that are
    known to hold the same log. Raises RefusedError for a place with another log."""
    found: dict[BaseOffset, list[Place]] = {base: [] for base in missing}
    proven = set()
    for place in places:
        held = {base for base, size in place.segments().items() if size == segment_size}
        if log.require_same(place, held, missing):
            proven.add(place.name)
        for base in held.intersection(found):
            found[base].append(place)
    return found, proven


def _restore(
    restorer: Restorer, found: dict[BaseOffset, list[Place]], segment_size: int, first_offset: int
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    total = sum(map(bool, found.values()))
    try:
        with _progress(total, segment_size) as on_step_of:
            for base_offset, places in found.items():
                if base_offset < first_offset - segment_size and outcomes[-1].place is None:
                    outcomes.append(Outcome(base_offset))  # the log would begin with a gap
                else:
                    outcomes.append(restorer.restore(base_offset, places, on_step_of(base_offset)))
    except KeyboardInterrupt:
        restorer.cancel()
        typer.echo("the restore has ended; repeat the command to restore what is still missing", err=True)
        raise
    return outcomes


@contextmanager
def _progress(total: int, segment_size: int) -> Iterator[Any]:
    """A function that makes, of a base offset, the function that shows its progress."""
    began_s, number, total_bytes = time.monotonic(), -1, total * segment_size
    with work_bar("restoring") as show:

        def on_step_of(base_offset: BaseOffset) -> OnStep:
            nonlocal number
            number += 1

            def on_step(step: str, done: int) -> None:
                # Each byte is checked, copied and verified; the daemon counts the latter two together.
                past = 0 if step == "fetching" else done + (segment_size if step in _STEPS[1:] else 0)
                done_bytes = number * segment_size + past // len(_STEPS)
                rate = done_bytes / (time.monotonic() - began_s)
                left = total_bytes - done_bytes
                figures = describe_bytes(done_bytes, left, rate, left / rate if rate else None)
                show(done_bytes, left, f"{step} {base_offset:020d} ({number + 1} of {total}), {figures}")

            return on_step

        yield on_step_of


def _report(name: str, outcomes: Sequence[Outcome], size: int, *, dry_run: bool, as_json: bool) -> None:
    restored = [outcome for outcome in outcomes if outcome.place is not None]
    missing = [outcome for outcome in outcomes if outcome.place is None]
    if as_json:
        document = {
            "name": name,
            "dry_run": dry_run,
            "restored": [{"segment": one.segment, "from": one.place} for one in restored],
            "missing": [{"segment": one.segment, "failures": one.failures} for one in missing],
        }
        typer.echo(json.dumps(document))
        return
    output = Output()
    for outcome in outcomes:
        for failure in outcome.failures:
            output.report("problem", f"{outcome.segment}: not taken from {failure}")
    if not outcomes:
        settings.say(f"{name}: the log has no gap")
        return
    verb = "would be restored" if dry_run else "restored"
    text = f"{name}: {count_of(len(restored), 'segment')} {verb} ({approximate_size(len(restored) * size)})"
    if missing:
        names = ", ".join(one.segment for one in missing[:_NAMES_SHOWN])
        more = f" and {len(missing) - _NAMES_SHOWN:,} more" if len(missing) > _NAMES_SHOWN else ""
        text += f"; still missing: {names}{more}; name other places with --from"
    output.paragraph(text)
