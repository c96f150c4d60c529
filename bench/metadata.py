"""`make bench-metadata`: mounts and lists a log of 60,000 segments, and measures the creation of segments.

    python -m commitlogfs.bench.metadata [--json] [--segments 60000] [--disks 12] [--creates 200] [--rounds 3]

Real mounts through the real daemon; every result is checked. Exit status: 0 measured (the table shows
which targets are met), 1 a result was wrong or missing.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from commitlogfs.bench import sweep
from commitlogfs.bench.catalog_figures import CatalogFigures, WrongResultError, measure_catalog
from commitlogfs.bench.create_figures import CreateFigures, measure_creates
from commitlogfs.bench.disks import DisksUnavailableError
from commitlogfs.bench.figures import Latencies, Target, environment, median, target_as_json
from commitlogfs.bench.scrape_figures import SCRAPES
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.console.output import make_console
from commitlogfs.console.units import parse_size


def main(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the table.")] = False,
    segments: Annotated[int, typer.Option(min=1, help="Segments of the big log.")] = 60_000,
    disks: Annotated[int, typer.Option(min=1, help="Number of directories for its segments.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="Mounts of the big log.")] = 3,
    creates: Annotated[int, typer.Option(min=1, help="Segments created per disk and load.")] = 200,
    scrapes: Annotated[
        int, typer.Option(min=1, help="Scrapes of the exporter, and as many beside a daemon that hangs.")
    ] = SCRAPES,
    segment_size: Annotated[str, typer.Option(help="Size of the created segments.")] = "1GiB",
    directory: Annotated[
        Path | None, typer.Option(help="Working directory, on ext4 or xfs. Default: $TMPDIR or /var/tmp.")
    ] = None,
) -> None:
    """Measure mount, listing, memory and segment creation."""
    console = make_console(stderr=as_json, highlight=False)
    lack = _why_not()
    if lack:
        console.print(f"bench-metadata: {lack}")
        raise typer.Exit(1)

    def tell(text: str) -> None:
        console.print(f"[dim]{text}[/]")

    try:
        with sweep.run("bench", tell, directory) as work:
            big = measure_catalog(work / "catalog", segments, disks, rounds, tell, scrapes)
            made = measure_creates(work / "creates", ("ext4", "xfs"), creates, parse_size(segment_size), tell)
    except (WrongResultError, CommandFailedError, DisksUnavailableError, OSError) as error:
        console.print(f"bench-metadata: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    targets = [*big.targets(), *(figures.target() for figures in made)]
    if as_json:
        document = {
            "environment": environment(),
            "catalog": big.as_json(),
            "creates": [figures.as_json() for figures in made],
            "targets": [target_as_json(target) for target in targets],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _show(console, big, made, targets)


def _why_not() -> str:
    if os.geteuid() != 0:
        return "root is required for loop devices"
    return "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse is required"


def _show(console: Console, big: CatalogFigures, made: Sequence[CreateFigures], targets: Sequence[Target]) -> None:
    where = environment()
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    console.print(f"Linux {where['kernel']}, {where['cpus']} CPUs, Python {where['python']}, {versions}")
    console.print(f"load average {', '.join(map(str, where['load_average']))}\n")
    _show_catalog(console, big)
    _show_creates(console, made)
    table = Table("target", "measured", "limit", "", title="Targets", title_justify="left", box=None)
    for target in targets:
        verdict = "[green]met[/]" if target.is_met else "[red]missed[/]"
        measured = f"{target.value:.3g} {target.unit}"
        table.add_row(target.name, measured, f"< {target.limit:g} {target.unit}", verdict)
    console.print(table)


def _show_catalog(console: Console, big: CatalogFigures) -> None:
    title = f"{big.segments:,} segments on {big.disks} disks, median of {len(big.ready_s)} mounts"
    table = Table("", "", title=title, title_justify="left", box=None, show_header=False)
    native, hot = median(big.native_s), median(big.hot_s)
    rows = (
        ("commitlogfs mount: start until it answers", f"{median(big.ready_s):.3f} s"),
        ("   of which disks identified, scanned, checked", f"{median(big.opened_s):.3f} s"),
        ("commitlogfs mount --daemon: until it returns", f"{median(big.daemonized_s):.3f} s"),
        ("listing with stat, first after the mount", f"{median(big.first_s):.3f} s"),
        ("listing with stat, hot", f"{hot:.3f} s, {hot / native:.1f} x native"),
        ("   the bare directories", f"{native:.3f} s"),
        ("daemon memory (RSS): mounted", f"{max(big.mounted_mib):.1f} MiB"),
        ("   after listings", f"{max(big.listed_mib):.1f} MiB"),
        (f"   with {big.opened_files:,} segments open", f"{big.opened_files_mib:.1f} MiB"),
        ("opening one of those", f"{big.opening_s / max(1, big.opened_files) * 1000:.3f} ms"),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _show_creates(console: Console, made: Sequence[CreateFigures]) -> None:
    title = "Create a segment with its reservation, ms"
    headings = ("disk", "load", "", "p50", "p99", "max")
    table = Table(*headings, title=title, title_justify="left", box=None)
    for figures in made:
        load = f"{figures.load} ({figures.syncs_per_second:.0f}/s)" if figures.syncs_per_second else figures.load
        table.add_row(figures.disk, load, "mount", *_cells(figures.mount))
        table.add_row("", "", "native", *_cells(figures.native))
    console.print(table)
    console.print()


def _cells(calls: Latencies) -> tuple[str, str, str]:
    return f"{calls.p50_ms:.2f}", f"{calls.p99_ms:.2f}", f"{calls.max_ms:.2f}"


if __name__ == "__main__":
    typer.run(main)
