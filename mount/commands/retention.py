"""`commitlogfs retention`: show what forced deletion would do next, and simulate how long a log will last."""

import json
import math
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.output import Output, make_console
from commitlogfs.console.units import UnitError, parse_duration_ms, parse_size
from commitlogfs.mount.commands import options, retention_preview
from commitlogfs.mount.config.model import (
    DEFAULT_SEGMENT_SIZE,
    LARGEST_SEGMENT_SIZE,
    SEGMENT_SIZE_UNIT,
    Config,
    config_path,
    load_config,
)
from commitlogfs.mount.config.planned_disks import (
    change_thresholds,
    disks_of_config,
    disks_of_sizes,
    with_added,
    with_drains,
    with_foreign,
)
from commitlogfs.mount.config.retention import SHORTEST_RESERVED_MS, parse_hours
from commitlogfs.mount.views import simulation_text
from commitlogfs.store.retention import Mode, RetentionRules, Trigger
from commitlogfs.store.retention.simulate import Scenario, simulate
from commitlogfs.store.retention.simulated_broker import BrokerRules
from commitlogfs.store.retention.simulated_pool import PlannedDisk
from commitlogfs.store.retention.simulated_report import SimulationReport
from commitlogfs.store.thresholds import Thresholds

_DRY_RUN: Final = "--dry-run"


class _Group(TyperGroup):
    """Turns `retention --dry-run NAME` into `retention preview NAME`, as a group cannot have an argument."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            if ctx.params["dry_run"]:
                return super().resolve_command(ctx, [preview.__name__, *args])
            if _DRY_RUN in args:
                raise UsageError(
                    f"retention: {_DRY_RUN} comes after the name; write `retention {_DRY_RUN} {args[0]}`"
                )
        return super().resolve_command(ctx, args)


app = typer.Typer(name="retention", cls=_Group, no_args_is_help=True, invoke_without_command=True)


def register(application: typer.Typer) -> None:
    application.add_typer(app)


@app.callback()
def retention(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option(_DRY_RUN, help="The same as `preview`; a NAME may follow.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Forced deletion: what would be removed next (`preview`, or `--dry-run`), and how long a log will last."""
    if as_json:
        settings.use(replace(settings.current(), json=True))
    if context.invoked_subcommand is None:
        if not dry_run:
            context.fail("Missing command.")
        preview()


SHORTEST_DAYS: Final = 7
"""Smallest default of --days. A week contains a broker's three days and its daily hour more than once."""
MOST_DAYS: Final = 36_500
MOST_WAVE: Final = 99
MOST_SEGMENTS: Final = 5_000_000
"""Most segments that one run creates; that takes some minutes."""


class ModeName(StrEnum):
    COOPERATIVE = "cooperative"
    FILESYSTEM = "filesystem"
    OFF = "off"


class TriggerName(StrEnum):
    ALL = "all"
    ANY = "any"


class PlacementName(StrEnum):
    ROUND_ROBIN = "round-robin"
    MODULO = "modulo"
    WEIGHTED = "weighted"


def _percent(help_: str) -> Any:
    return typer.Option(metavar="PERCENT", help=help_, show_default=False)


@app.command(name="preview")
def preview(
    which: options.Mount = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show which segments would be removed next, by which rule and when. Removes nothing.

    EXIT STATUS: 0 shown; 3 no daemon answers.
    """
    retention_preview.preview(which, as_json=as_json)


@app.command(name="simulate")
def simulate_(
    ingest: Annotated[str, typer.Option(metavar="RATE", help='Bytes that are written per second: "100MB/s".')],
    disks: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help='"12x5TB", "4TB,4TB,8TB", "10x5TB,2x8TB".', show_default=False),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Configuration with the rules and the real disks.", show_default=False
        ),
    ] = None,
    foreign: Annotated[
        list[str] | None,
        typer.Option(metavar="DISK:SIZE", help="Other data on a disk (its number or path). May be repeated."),
    ] = None,
    add_disk_at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME[:SIZE]",
            help="A disk is added after this time, by default as large as the first. May be repeated.",
        ),
    ] = None,
    drain_at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME:DISK",
            help="A disk (its number or path) gets no new segments after this time, and drains by expiry. May be "
            "repeated.",
        ),
    ] = None,
    daily_wave: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help=f"By how much the rate is lower at midnight, and higher at noon, than --ingest; 0 to {MOST_WAVE}.",
        ),
    ] = "0",
    segment: Annotated[
        str | None,
        typer.Option("--segment", "--segment-size", metavar="SIZE", help="Size of a segment.", show_default="1GiB"),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_DAYS,
            help="Time to simulate.",
            show_default=f"twice what it takes to fill the disks after the last change, at least {SHORTEST_DAYS}",
        ),
    ] = None,
    mode: Annotated[
        ModeName | None, typer.Option(help="Who deletes: retention.mode.", show_default="cooperative")
    ] = None,
    trigger: Annotated[
        TriggerName | None,
        typer.Option(help="Delete if all disks, or any disk, is too full: retention.trigger.", show_default="all"),
    ] = None,
    placement: Annotated[
        PlacementName | None, typer.Option(help="Which disk gets a segment.", show_default="round-robin")
    ] = None,
    reserved: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The broker's fileReservedTime; in mode filesystem `reserved`.", show_default="72h"
        ),
    ] = None,
    delete_when: Annotated[
        str | None,
        typer.Option(metavar="HOURS", help='Hours of the broker\'s cleaning: "04" or "04;16".', show_default="04"),
    ] = None,
    clean: Annotated[int | None, _percent("A broker begins to delete expired segments.")] = None,
    force: Annotated[int | None, _percent("The disk is skipped; forced deletion begins.")] = None,
    full: Annotated[int | None, _percent("The disk takes no segment.")] = None,
    resume: Annotated[int | None, _percent("A skipped disk takes segments again below this.")] = None,
    min_free: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes that stay free on each disk.", show_default="0")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no notes.")] = False,
) -> None:
    """Simulate how long a log will last on given disks, when each threshold is reached, and who deletes segments.

    It runs the daemon's own rules with a simulated clock, and a model of a RocketMQ broker's cleaning. The
    simulation begins with an empty log at midnight; other data on the disks does not change. Disks can be added and
    drained by expiry meanwhile. No disk is changed.

    EXIT STATUS: 0 simulated; 1 simulated, with a warning: messages are refused or are removed before their time, or
    a disk takes no segments; 2 bad options or configuration.
    """
    base = _base(config, disks)
    given = {"clean": clean, "force": force, "full": full, "resume": resume}
    given["min_free"] = None if min_free is None else _size("--min-free", min_free)
    changed = {key: value for key, value in given.items() if value is not None}
    common = change_thresholds(Thresholds() if base is None else base.thresholds, changed)
    planned = with_foreign(_disks(disks, base, common, changed), foreign or ())
    planned = _with_changes(planned, add_disk_at, drain_at, common)
    try:
        scenario = Scenario(
            disks=planned,
            ingest_bytes_per_s=_rate(ingest),
            segment_size=_segment_size(segment, base),
            placement=_placement(placement, base),
            rules=_rules(base, mode, trigger, reserved, delete_when),
            broker=_broker(common, reserved, delete_when),
            daily_wave=_wave_percent(daily_wave) / 100,
        )
    except ValueError as error:
        raise UsageError(f"retention simulate: {error}") from None
    duration_s = _duration_s(scenario, days)
    quiet = quiet or settings.current().quiet
    as_json = settings.wants_json(as_json)
    report = _run(scenario, duration_s, quiet=quiet)
    found = simulation_text.remarks(report, scenario)
    if as_json:
        typer.echo(json.dumps(simulation_text.as_document(report, scenario, found), indent=2))
    else:
        _show(report, scenario, [r for r in found if not quiet or r.level != "note"], Output())
    if any(remark.level == "warning" for remark in found):
        raise typer.Exit(ExitCode.FINDINGS)


def _base(config: str | None, disks: str | None) -> Config | None:
    """The configuration that the options change; None if only sizes of disks are given."""
    which = config if config is not None or disks is not None else settings.or_default(None)
    if which is None and disks is None:
        raise UsageError('retention simulate: no disks are given; add --disks "12x5TB" or --config NAME|FILE')
    return None if which is None else load_config(config_path(which))


# --- options -----------------------------------------------------------------------------------------------


def _placement(placement: PlacementName | None, base: Config | None) -> str:
    if placement is not None:
        return placement.value
    return base.placement if base else "round-robin"


def _disks(
    text: str | None, base: Config | None, common: Thresholds, given: dict[str, int]
) -> tuple[PlannedDisk, ...]:
    if text is not None:
        return disks_of_sizes(text, common)
    assert base is not None
    return tuple(
        replace(disk, thresholds=change_thresholds(disk.thresholds, given)) for disk in disks_of_config(base)
    )


def _with_changes(
    disks: tuple[PlannedDisk, ...], added: list[str] | None, drained: list[str] | None, common: Thresholds
) -> tuple[PlannedDisk, ...]:
    return with_drains(with_added(disks, added or (), common), drained or ())


def _rules(
    base: Config | None,
    mode: ModeName | None,
    trigger: TriggerName | None,
    reserved: str | None,
    delete_when: str | None,
) -> RetentionRules:
    rules = RetentionRules() if base is None else base.retention
    chosen = rules.mode if mode is None else Mode(mode.value)
    changes: dict[str, Any] = {
        "mode": chosen,
        "trigger": rules.trigger if trigger is None else Trigger(trigger.value),
    }
    if chosen is Mode.FILESYSTEM:
        changes["reserved_s"] = rules.reserved_s if reserved is None else float(_reserved_s(reserved))
        changes["delete_when"] = rules.delete_when if delete_when is None else _hours(delete_when)
        if changes["reserved_s"] is None or not changes["delete_when"]:
            raise UsageError(
                '--mode filesystem needs --reserved and --delete-when, such as --reserved 72h --delete-when "04"'
            )
    else:
        changes |= {"reserved_s": None, "delete_when": frozenset()}
    return replace(rules, **changes)


def _broker(thresholds: Thresholds, reserved: str | None, delete_when: str | None) -> BrokerRules:
    broker = BrokerRules(thresholds)
    if reserved is not None:
        broker = replace(broker, reserved_s=_reserved_s(reserved))
    return broker if delete_when is None else replace(broker, delete_when=_hours(delete_when))


def _segment_size(text: str | None, base: Config | None) -> int:
    if text is None:
        return DEFAULT_SEGMENT_SIZE if base is None else base.segment_size
    size = _size("--segment", text)
    if not 0 < size <= LARGEST_SEGMENT_SIZE or size % SEGMENT_SIZE_UNIT:
        raise UsageError(f"--segment: {text} is not supported; give a multiple of {SEGMENT_SIZE_UNIT} below 2GiB")
    return size


def _rate(text: str) -> int:
    size, slash, unit = text.rpartition("/")
    if not slash or unit != "s":
        raise UsageError(f'--ingest: {text!r} is not a rate; write bytes per second, such as "100MB/s"')
    rate = _size("--ingest", size)
    if not rate:
        raise UsageError("--ingest: 0 fills no disk; give a rate above 0")
    return rate


def _wave_percent(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= MOST_WAVE):
        raise UsageError(
            f"--daily-wave: {text!r} is not a percentage; write a number from 0 to {MOST_WAVE}, such as 30"
        )
    return int(text)


def _size(option: str, text: str) -> int:
    try:
        return parse_size(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None


def _reserved_s(text: str) -> int:
    try:
        duration_ms = parse_duration_ms(text)
    except UnitError as error:
        raise UsageError(f"--reserved: {error}") from None
    if duration_ms < SHORTEST_RESERVED_MS:
        raise UsageError(f"--reserved: {text} is too short; give at least 1h, the unit of fileReservedTime")
    return duration_ms // 1000


def _hours(text: str) -> frozenset[int]:
    try:
        return parse_hours(text)
    except ValueError as error:
        raise UsageError(f"--delete-when: {error}") from None


def _duration_s(scenario: Scenario, days: int | None) -> int:
    if days is None:
        fill_s = simulation_text.fill_time_s(scenario.disks, scenario.ingest_bytes_per_s)
        needed_s = scenario.last_change_s + 2 * fill_s
        days = min(max(SHORTEST_DAYS, math.ceil(needed_s / simulation_text.DAY_S)), MOST_DAYS)
    duration_s = days * simulation_text.DAY_S
    if scenario.last_change_s >= duration_s:
        problem = f"{days} days end before the disks change for the last time"
        if days == MOST_DAYS:
            raise UsageError(f"{problem}, and more cannot be simulated; give times below {MOST_DAYS}d")
        raise UsageError(f"{problem}; give more --days")
    segments = duration_s * scenario.ingest_bytes_per_s // scenario.segment_size
    if segments > MOST_SEGMENTS:
        raise UsageError(
            f"{days} days are {segments:,} segments, more than {MOST_SEGMENTS:,}; "
            "give fewer --days or a larger --segment"
        )
    return duration_s


# --- running and showing -----------------------------------------------------------------------------------


def _run(scenario: Scenario, duration_s: int, *, quiet: bool) -> SimulationReport:
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        return simulate(scenario, duration_s)
    columns = (TextColumn("simulating"), BarColumn(), TextColumn("day {task.completed:.0f}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=duration_s // simulation_text.DAY_S)
        return simulate(scenario, duration_s, on_day=lambda day: progress.update(task, completed=day))


def _show(
    report: SimulationReport, scenario: Scenario, found: list[simulation_text.Remark], output: Output
) -> None:
    output.paragraph(simulation_text.describe_scenario(scenario, report.duration_s), "bold")
    output.paragraph(simulation_text.describe_retention(report))
    output.paragraph(simulation_text.describe_pool(report, scenario))
    for line in simulation_text.describe_changes(report):
        output.paragraph(line)
    for line in simulation_text.describe_removals(report, scenario):
        output.paragraph(line)
    output.line("")
    rows = [simulation_text.HEADINGS, *simulation_text.table_rows(report)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        output.line(line, "bold" if index == 0 else "")
    if found:
        output.line("")
    for remark in found:
        output.report(remark.level, remark.text, remark.remedy, code=remark.code)
