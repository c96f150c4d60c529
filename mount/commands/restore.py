"""`commitlogfs restore`: fill the gaps of a log, and repair damaged segments, from a slave, a backup or an object
store."""

import json
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import ask
from commitlogfs.mount.commands.disk_drain import RateOption, parse_rate
from commitlogfs.mount.commands.scrub import segment_offset
from commitlogfs.mount.commands.work_progress import describe_bytes, work_bar
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.restoring.own_log import OwnLog
from commitlogfs.mount.restoring.places import Entry, Place, find_place
from commitlogfs.mount.restoring.segments import Damage, OnStep, Outcome, Restorer
from commitlogfs.store.segment import BaseOffset

_STEPS: Final = ("checking", "copying", "verifying")
_NAMES_SHOWN: Final = 10
_NOT_KNOWN: Final[dict[str, Any]] = {"damaged": [], "unknown": []}
"""Answer of a daemon of a former version, which repairs nothing."""


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
    segments: Annotated[
        list[str] | None,
        typer.Option("--segment", metavar="NAME", help="Only this segment; may be repeated. Default: all."),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Fill the gaps of a mounted log, and repair damaged segments, from elsewhere, while the broker runs.

    Each copy is checked first: an unbroken chain of records with their own log offsets and right checksums. One
    that repairs a segment must have the segment's checksum, or be equal to it outside of the known damage. With
    --dry-run, the copies are read and checked in the same way, and nothing is copied. Otherwise the daemon copies
    the first right one to a disk and reads it back. A segment that was missing gets the time of its last message;
    the broker sees it when it restarts. Other readers see all at once. A damaged file is set aside until `scrub
    clear`. Interrupted at any moment, the command can be repeated: it continues with what is left.

    EXIT STATUS: 0 the log has no gap and no damaged segment; 1 some segments are still missing or damaged; 2 a
    place or an option is wrong; 3 no daemon answers; 4 refused: a missing disk may hold the segments, there is no
    room for them, or a segment is neither missing nor damaged.
    """
    if not sources:
        raise typer.BadParameter("name at least one directory or URI", param_hint="--from")
    target = find_target(which)
    allowed = parse_rate(rate)
    chosen = {segment_offset(name) for name in segments or ()}
    plan = _NOT_KNOWN | ask(target, "restore-plan", **({"segments": sorted(chosen)} if chosen else {}))
    size: int = plan["segment_size"]
    wanted = _wanted(target.name, plan, chosen)
    status = target.status()
    log = OwnLog(Path(status["mountpoint"]), size, [entry["base_offset"] for entry in plan["damaged"]])
    given_up = {(status["pool"], disk["number"]) for disk in status["members"].get("given_up", ())}
    found = _find(list(wanted), [find_place(source, size) for source in sources], log, size, given_up)
    count = sum(bool(places) and _is_possible(wanted[base]) for base, places in found.places.items())
    _require_room(target.name, count, size, plan["room"])
    restorer = Restorer(target, size, log, found.proven, allowed, spool, dry_run=dry_run)
    outcomes = _restore(restorer, wanted, found, size, plan["first_offset"], dry_run=dry_run)
    _report(target.name, outcomes, size, dry_run=dry_run, as_json=settings.wants_json(as_json))
    _report_unknown(plan["unknown"])
    if plan["unknown"] or any(outcome.place is None or outcome.fault for outcome in outcomes):
        raise typer.Exit(ExitCode.FINDINGS)


def _wanted(name: str, plan: dict[str, Any], chosen: Set[int]) -> dict[BaseOffset, Damage | None]:
    """The segments to restore, in their order, and how they are damaged; None for those that are missing. `chosen`
    are base offsets, all if it is empty. Raises RefusedError."""
    size: int = plan["segment_size"]
    missing = [BaseOffset(base) for start, end in plan["missing"] for base in range(start, end, size)]
    missing.reverse()  # the oldest may expire before their turn
    found: dict[BaseOffset, Damage | None] = dict.fromkeys(missing)
    for entry in reversed(plan["damaged"]):
        equal = tuple((begin, end) for begin, end in entry["equal"])
        needs_chain = entry.get("needs_chain", True)  # a daemon of a former version does not report it
        damage = Damage(entry["disk"], entry["kind"], entry["reason"], entry["xxh3"], needs_chain, equal)
        found[BaseOffset(entry["base_offset"])] = damage
    unknown = chosen - found.keys()
    if unknown:
        raise RefusedError(f"{name}: {min(unknown):020d}: is neither missing nor known to be damaged")
    return {base: damage for base, damage in found.items() if not chosen or base in chosen}


def _require_room(name: str, count: int, size: int, room: int) -> None:
    """Raises RefusedError."""
    if count > room:
        raise RefusedError(
            f"{name}: {count:,} segments ({count * size:,} bytes) would be restored, and the disks have "
            f"room for {room:,} below their `force` threshold; add a disk"
        )


def _report_unknown(disks: Sequence[str]) -> None:
    for disk in disks:
        typer.echo(f"{disk}: has not answered yet which segments are damaged; repeat the command", err=True)


def _is_possible(damage: Damage | None) -> bool:
    return damage is None or not damage.reason


class _Found(NamedTuple):
    """Content of the places."""

    places: dict[BaseOffset, list[Place]]
    """Those that have a file of the right size, for each segment."""
    failures: dict[BaseOffset, list[str]]
    """Reasons why other places have no copy, although something there has the name of the segment."""
    proven: set[str]
    """Names of the places that are known to hold the same log."""


def _find(
    wanted: Sequence[BaseOffset],
    places: Sequence[Place],
    log: OwnLog,
    segment_size: int,
    given_up: Set[tuple[str, int]],
) -> _Found:
    """`given_up` are pool and number of former disks. Raises RefusedError for a place with another log."""
    found = _Found({base: [] for base in wanted}, {base: [] for base in wanted}, set())
    for place in places:
        entries = place.segments()
        faults = {base: _fault(entry, segment_size) for base, entry in entries.items()}
        whole, was_given_up = {base for base, fault in faults.items() if not fault}, place.disk() in given_up
        if log.require_same(place, whole, wanted, was_given_up=was_given_up):
            found.proven.add(place.name)
        for base in faults.keys() & found.places.keys():
            if faults[base]:
                found.failures[base].append(f"{place.name}: {faults[base]}")
            else:
                found.places[base].append(place)
    return found


def _fault(entry: Entry, segment_size: int) -> str:
    """The reason why an entry is no copy of a segment; empty if it may be one."""
    if entry.fault or entry.size == segment_size:
        return entry.fault
    return f"has {entry.size:,} bytes instead of {segment_size:,}"


def _restore(
    restorer: Restorer,
    wanted: dict[BaseOffset, Damage | None],
    found: _Found,
    segment_size: int,
    first_offset: int,
    *,
    dry_run: bool,
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    total = sum(map(bool, found.places.values()))
    try:
        with _progress(total, segment_size, _STEPS[:1] if dry_run else _STEPS) as on_step_of:
            for base_offset, places in found.places.items():
                failures = found.failures[base_offset]
                if base_offset < first_offset - segment_size and _begins_a_gap(base_offset, outcomes, segment_size):
                    after = f"{base_offset + segment_size:020d}"
                    gap = f"the log would begin with a gap, because {after} is still missing"
                    failures = [*failures, *(f"{place.name}: {gap}" for place in places)]
                    outcomes.append(Outcome(base_offset, failures=failures))
                else:
                    damage, on_step = wanted[base_offset], on_step_of(base_offset)
                    outcomes.append(restorer.restore(base_offset, damage, places, failures, on_step))
    except KeyboardInterrupt:
        restorer.cancel()
        if not dry_run:
            typer.echo("the restore has ended; repeat the command to restore what is still missing", err=True)
        raise
    return outcomes


def _begins_a_gap(base_offset: BaseOffset, outcomes: Sequence[Outcome], segment_size: int) -> bool:
    """Whether the log would begin with a gap, because the segment after this one was not restored."""
    restored = {outcome.base_offset for outcome in outcomes if outcome.place is not None}
    return base_offset + segment_size not in restored


@contextmanager
def _progress(total: int, segment_size: int, steps: Sequence[str]) -> Iterator[Any]:
    """A function that makes, of a base offset, the function that shows its progress through these steps."""
    began_s, number, total_bytes = time.monotonic(), -1, total * segment_size
    with work_bar("restoring" if len(steps) > 1 else steps[0]) as show:

        def on_step_of(base_offset: BaseOffset) -> OnStep:
            nonlocal number
            number += 1

            def on_step(step: str, done: int) -> None:
                # Each byte is checked, copied and verified; the daemon counts the latter two together.
                past = 0 if step == "fetching" else done + (segment_size if step in _STEPS[1:] else 0)
                done_bytes = number * segment_size + past // len(steps)
                rate = done_bytes / (time.monotonic() - began_s)
                left = total_bytes - done_bytes
                figures = describe_bytes(done_bytes, left, rate, left / rate if rate else None)
                show(done_bytes, left, f"{step} {base_offset:020d} ({number + 1} of {total}), {figures}")

            return on_step

        yield on_step_of


_UNTIL_RESTART: Final = (
    "a broker that has a repaired segment open reads the damaged file until its restart, and so do its consumers"
)


_SEALED_BROKEN: Final = "the copy has what was sealed, and that was damaged already"
_FIND_THE_REST: Final = "run `commitlogfs scrub start --messages`, and then this command with other places"


def _report(name: str, outcomes: Sequence[Outcome], size: int, *, dry_run: bool, as_json: bool) -> None:
    gaps = [outcome for outcome in outcomes if outcome.damage is None]
    repairs = [outcome for outcome in outcomes if outcome.damage is not None]
    if as_json:
        typer.echo(json.dumps({"name": name, "dry_run": dry_run, **_as_json(gaps, repairs)}))
        return
    output = Output()
    _report_failures(output, outcomes)
    if not outcomes:
        settings.say(f"{name}: the log has no gap")
        return
    be = "would be " if dry_run else ""
    counts = [_describe_count(gaps, f"{be}restored", size), _describe_count(repairs, f"{be}repaired", size)]
    parts = [", ".join(filter(None, counts)), _describe_left(gaps, "missing"), _describe_left(repairs, "damaged")]
    if any(outcome.place is None and _is_possible(outcome.damage) for outcome in outcomes):
        parts.append("name other places with --from")
    output.paragraph(f"{name}: {'; '.join(filter(None, parts))}")
    if not dry_run and any(outcome.place for outcome in repairs):
        output.paragraph(f"{name}: {_UNTIL_RESTART}")


def _report_failures(output: Output, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        taken = "not taken from " if _is_possible(outcome.damage) else ""
        for failure in outcome.failures:
            output.report("problem", f"{outcome.segment}: {taken}{failure}")
        if outcome.fault:
            output.report("warning", f"{outcome.segment}: {_SEALED_BROKEN} ({outcome.fault})", _FIND_THE_REST)


def _as_json(gaps: Sequence[Outcome], repairs: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "restored": [{"segment": one.segment, "from": one.place} for one in gaps if one.place],
        "missing": [{"segment": one.segment, "failures": one.failures} for one in gaps if not one.place],
        "repaired": [{**_damage_of(one), "from": one.place, "fault": one.fault} for one in repairs if one.place],
        "damaged": [{**_damage_of(one), "failures": one.failures} for one in repairs if not one.place],
    }


def _damage_of(outcome: Outcome) -> dict[str, str]:
    assert outcome.damage is not None
    return {"segment": outcome.segment, "disk": outcome.damage.disk, "kind": outcome.damage.kind}


def _describe_count(outcomes: Sequence[Outcome], verb: str, size: int) -> str:
    """Empty without outcomes."""
    if not outcomes:
        return ""
    count = sum(outcome.place is not None for outcome in outcomes)
    return f"{count_of(count, 'segment')} {verb} ({approximate_size(count * size)})"


def _describe_left(outcomes: Sequence[Outcome], state: str) -> str:
    """The segments that are still as they were; empty if there is none."""
    left = [outcome.segment for outcome in outcomes if outcome.place is None]
    if not left:
        return ""
    more = f" and {len(left) - _NAMES_SHOWN:,} more" if len(left) > _NAMES_SHOWN else ""
    return f"still {state}: {', '.join(left[:_NAMES_SHOWN])}{more}"
