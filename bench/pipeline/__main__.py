"""`make bench-pipeline`: decoding, counting and rebuilding a log beside RocketMQ doing the same.

    python -m commitlogfs.bench.pipeline [--json] [--messages 5000000] [--rounds 3] [--segment-size 256MiB]

Same log, same machine, alternating rounds; every result is checked. Exit status: 0 measured (the table shows which
goals are met), 1 a result was wrong or missing.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import SubprocessError
from typing import Annotated

import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.table import Table

from commitlogfs.bench import rocketmq, sweep
from commitlogfs.bench.figures import environment, median
from commitlogfs.bench.pipeline.counting import local_session, measure_query, measure_workers
from commitlogfs.bench.pipeline.decoding import measure_decoding, measure_first_use
from commitlogfs.bench.pipeline.errors import WrongResultError
from commitlogfs.bench.pipeline.figures import PipelineFigures
from commitlogfs.bench.pipeline.rebuilding import measure_rebuilding
from commitlogfs.bench.pipeline.synthetic_log import write_log
from commitlogfs.bench.rocketmq import RocketmqError
from commitlogfs.console.output import make_console
from commitlogfs.console.units import parse_size
from commitlogfs.pipeline.log.errors import PipelineError


def main(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the table.")] = False,
    messages: Annotated[int, typer.Option(min=1000, help="Messages in the log.")] = 5_000_000,
    segment_size: Annotated[str, typer.Option(help="Size of its segments.")] = "256MiB",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each measurement.")] = 3,
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    directory: Annotated[Path | None, typer.Option(help="Working directory. Default: $TMPDIR or /var/tmp.")] = None,
) -> None:
    """Measure the pipeline beside RocketMQ."""
    console = make_console(stderr=as_json, highlight=False)

    def tell(text: str) -> None:
        console.print(f"[dim]{text}[/]")

    try:
        with sweep.run("bench", tell, directory) as work:
            figures = _measure(work, messages, parse_size(segment_size), rounds, cores, tell)
    except (WrongResultError, RocketmqError, PipelineError, PySparkException, SubprocessError, OSError) as error:
        console.print(f"bench-pipeline: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    if as_json:
        document = {"environment": environment(), **figures.as_json()}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show(console, figures)


def _measure(
    work: Path, messages: int, segment_size: int, rounds: int, cores: int, tell: Callable[[str], None]
) -> PipelineFigures:
    distribution = rocketmq.fetch()
    tell("a process without compiled code, and the next one")
    first_use = measure_first_use(work)
    log = write_log(work / "log", messages, segment_size, tell)
    tell(f"decoding {log.bytes >> 20:,} MiB on one core, {rounds} rounds")
    decoding = measure_decoding(log, distribution, rounds)
    tell(f"counting by topic on {cores} cores, by a query, {rounds} rounds")
    query = measure_query(log, cores, work / "spark", rounds)
    spark = local_session(cores, work / "spark", in_workers=True)
    try:
        tell(f"counting by topic on {cores} cores, in the workers, {rounds} rounds")
        workers = measure_workers(spark, log, rounds)
        tell(f"rebuilding consume queues and index on {cores} cores, {rounds} rounds")
        rebuilding = measure_rebuilding(spark, log, distribution, work, rounds)
    finally:
        spark.stop()
    return PipelineFigures(log, cores, first_use, decoding, query, workers, rebuilding)


def _show(console: Console, figures: PipelineFigures) -> None:
    where = environment()
    console.print(f"Linux {where['kernel']}, {where['cpus']} CPUs, Python {where['python']}")
    console.print(f"load average {', '.join(map(str, where['load_average']))}\n")
    log = figures.log
    title = f"{log.messages:,} messages, {log.bytes >> 20:,} MiB, in the page cache"
    table = Table("", "messages/s, median", "least to most", title=title, title_justify="left", box=None)
    for name, values in figures.rates().items():
        table.add_row(name, f"{median(values):,.0f}", f"{min(values):,.0f} to {max(values):,.0f}")
    console.print(table)
    console.print(f"\nlargest Python worker in a rebuild: {figures.rebuilding.worker_mib:.0f} MiB")
    once, again = figures.first_use
    console.print(
        f"1,000 messages in a fresh process: {once:.1f} s without compiled code, {again:.1f} s the next time\n"
    )
    goals = Table("target", "measured", "required", "", title="Targets", title_justify="left", box=None)
    for goal in figures.goals():
        verdict = "[green]met[/]" if goal.is_met else "[red]missed[/]"
        goals.add_row(goal.name, f"{goal.ratio:.2f}", f">= {goal.wanted:g}", verdict)
    console.print(goals)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    typer.run(main)
