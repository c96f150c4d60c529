"""`commitlogfs bench`: the data path of our mount beside the bare disks and mergerfs, and a broker on it.

It works in one base directory, which is always removed at the end (sweep.py).
"""

import json
import os
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from commitlogfs.bench import rocketmq, sweep, targets
from commitlogfs.bench.beside_broker import FLUSHES
from commitlogfs.bench.broker_bench import measure_broker
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_overhead import own_cost_us
from commitlogfs.bench.datapath_rounds import Collected
from commitlogfs.bench.datapath_run import DATA_WORKLOADS, measure_data_path, needed_bytes
from commitlogfs.bench.datapath_settings import Part, Settings
from commitlogfs.bench.disks import DisksUnavailableError, why_no_loop_disks
from commitlogfs.bench.figures import environment
from commitlogfs.bench.interrupts import InterruptedByUserError, Interrupts
from commitlogfs.bench.moves import sending as moves_sending
from commitlogfs.bench.moves.pace import measure_pace
from commitlogfs.bench.moves.sizes import LEAST_DISKS, needed_by_moves
from commitlogfs.bench.recovery import measure_recovery
from commitlogfs.bench.report import Results, as_markdown, show
from commitlogfs.bench.report_plot import compared, draw, why_no_plot
from commitlogfs.bench.rocketmq import RocketmqError
from commitlogfs.bench.scrub import reading
from commitlogfs.bench.scrub import sending as scrub_sending
from commitlogfs.bench.scrub.sizes import needed_by_scrub
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.bench.targets_disks import BenchDisks, directory_disks, loop_disks
from commitlogfs.console.output import make_console

_PLOT = "ratios.svg"
_FILE_WIDTH = 120
_WITH_BROKER = {Part.BROKER, Part.MOVES, Part.SCRUB}


def run(settings: Settings, output: Path | None, *, as_json: bool, quiet: bool = False) -> int:
    """Measure and report; the exit status. 0: measured, even if a goal is missed; 1: a result was wrong
    or missing; 128 + signal: interrupted, and cleaned up."""
    console = make_console(stderr=True, highlight=False, quiet=quiet)
    lack = _why_not(settings)
    if lack:
        print(f"commitlogfs bench: {lack}", file=sys.stderr)
        return 1
    interrupts = Interrupts()
    interrupts.install()
    results = Results(settings, environment())
    results.environment["versions"] |= _tool_versions(settings)
    status = 0
    try:
        _measure(settings, console, results)
    except InterruptedByUserError as interrupt:
        print("commitlogfs bench: interrupted; everything is removed", file=sys.stderr)
        return 128 + interrupt.number
    except (WrongResultError, CommandFailedError, DisksUnavailableError, RocketmqError, OSError) as error:
        results.failure = str(error)
        status = 1
    results.environment["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    if output is not None:
        _write(results, output, console)
    if as_json:
        print(json.dumps(results.as_json(), indent=2))
    else:
        # A pipe or file has no width that limits the table.
        console = make_console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
        show(console, results)
    if results.failure:
        print(f"commitlogfs bench: {results.failure}", file=sys.stderr)
    return status


def _why_not(settings: Settings) -> str:
    if Part.MOVES in settings.parts and settings.disks < LEAST_DISKS:
        return f"the part moves needs {LEAST_DISKS} disks or more; give --disks 2, or --only another part"
    if os.geteuid() != 0:
        return "root is required to mount disks and to drop caches"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is required"
    return why_no_loop_disks() if settings.directory is None else ""


def _measure(settings: Settings, console: Console, results: Results) -> None:
    """Fills `results`; after a failure they hold the figures measured before."""
    found = Collected(results.series, results.about, results.left_out)
    with ExitStack() as stack:
        progress = stack.enter_context(_Steps(console, _count_steps(settings)))
        work = stack.enter_context(sweep.run("bench", progress.note, settings.directory))
        distribution = None
        if _WITH_BROKER & set(settings.parts):
            progress.note(f"RocketMQ {rocketmq.VERSIONS[0]} is fetched from Maven Central at the first run")
            distribution = rocketmq.fetch()
        disks = stack.enter_context(_disks(work / "disks", settings, progress))
        results.disks = disks.description
        if Part.DATA in settings.parts:
            results.own_cost_us = own_cost_us(settings)
            with disks.part("data") as part:
                measure_data_path(work, part, settings, progress.step, found)
        if distribution is not None and Part.BROKER in settings.parts:
            with disks.part("broker") as part:
                measure_broker(work, part, settings, distribution, progress.step, found)
        if Part.RECOVERY in settings.parts:
            with disks.part("recovery") as part:
                results.recovery += measure_recovery(
                    work / "recovery", part, settings, progress.step, results.environment["cpus"], results.left_out
                )
        if distribution is not None and Part.MOVES in settings.parts:
            with disks.part("moves") as part:
                moves = work / "moves"
                moves.mkdir()
                measure_pace(moves, part, settings, progress.step, results.moves)
                moves_sending.measure_sending(moves, part, settings, distribution, progress.step, found)
        if distribution is not None and Part.SCRUB in settings.parts:
            with disks.part("scrub") as part:
                scrub = work / "scrub"
                scrub.mkdir()
                reading.measure_reading(scrub, part, settings, progress.step, found, results.scrub)
                scrub_sending.measure_sending(scrub, part, settings, distribution, progress.step, found)
        for name, reason in results.left_out.items():
            progress.note(f"left out: {name}: {reason}")


def _disks(directory: Path, settings: Settings, progress: "_Steps") -> AbstractContextManager[BenchDisks]:
    if settings.directory is not None:
        return directory_disks(directory, settings.disks)
    needed = needed_bytes(settings)
    if Part.MOVES in settings.parts:
        needed = max(needed, needed_by_moves(settings))
    if Part.SCRUB in settings.parts:
        needed = max(needed, needed_by_scrub(settings))
    return loop_disks(directory, settings.fstype, settings.disks, needed, progress.note)


def _tool_versions(settings: Settings) -> dict[str, str]:
    found = {"mergerfs": targets.mergerfs_version() or "none"}
    if Part.SCRUB in settings.parts:
        found["fio"] = reading.fio_version() or "none"
    if _WITH_BROKER & set(settings.parts):
        found["RocketMQ"] = rocketmq.VERSIONS[0]
    return found


def _write(results: Results, directory: Path, console: Console) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(results.as_json(), indent=2) + "\n")
    (directory / "results.md").write_text(as_markdown(results))
    lack = why_no_plot()
    if lack:
        console.print(lack)
    elif compared(results.series):
        draw(results.series, directory / _PLOT)
    console.print(f"results in {directory}")


def _count_steps(settings: Settings) -> int:
    """Maximum number of steps: a target that is left out has none."""
    rounds = 0
    if Part.DATA in settings.parts:
        rounds += 5 * (len(DATA_WORKLOADS) + 1)
    if Part.BROKER in settings.parts:
        rounds += 2
    if Part.MOVES in settings.parts:
        rounds += 3 * len(FLUSHES)
    if Part.SCRUB in settings.parts:
        rounds += 3 * (len(FLUSHES) + 1)
    return rounds * settings.rounds + (
        settings.kills * len(settings.loads) if Part.RECOVERY in settings.parts else 0
    )


class _Steps:
    """Shows progress: a bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._console = console
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._total = total
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False)

    def step(self, text: str) -> None:
        if self._progress.disable:
            self.note(text)
        elif self._task is not None:
            self._progress.update(self._task, advance=1, description=text)

    def __enter__(self) -> "_Steps":
        self._progress.start()
        self._task = self._progress.add_task("", total=self._total)
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
