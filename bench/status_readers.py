"""Cost of readers of `.commitlogfs/status.json` and `metrics` for the creation of segments, in a big log.

    python -m commitlogfs.bench.status_readers [--json] [--segments 60000] [--disks 12] [--creates 100]

A reader polls once a second, as a monitoring agent does, or without a pause. The segments are sparse, of 1 MiB.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.table import Table

from commitlogfs.bench import sweep
from commitlogfs.bench.catalog_figures import make_sparse_segments
from commitlogfs.bench.figures import environment, latencies
from commitlogfs.bench.served import CommandFailedError, ServedPool
from commitlogfs.console.output import make_console
from commitlogfs.store.segment import format_segment_name

SEGMENT_SIZE = 1 << 20
PAUSE_S = 0.02
"""Pause between two creates."""
LOADS = (
    ("nobody reads", 0, 0.0),
    ("100 readers, each once a second", 100, 1.0),
    ("4 readers without a pause", 4, 0.0),
)


def main(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the table.")] = False,
    segments: Annotated[int, typer.Option(min=1, help="Segments of the log.")] = 60_000,
    disks: Annotated[int, typer.Option(min=1, help="Number of directories for its segments.")] = 12,
    creates: Annotated[int, typer.Option(min=1, help="Segments created per load.")] = 100,
    directory: Annotated[
        Path | None, typer.Option(help="Working directory, on ext4 or xfs. Default: $TMPDIR or /var/tmp.")
    ] = None,
) -> None:
    """Measure creates and statfs beside readers of the status file and the metrics."""
    console = make_console(stderr=as_json, highlight=False)
    try:
        with sweep.run("bench", console.print, directory) as work, ExitStack() as stack:
            directories = [work / f"disk{number:02d}" for number in range(disks)]
            make_sparse_segments(directories, segments, SEGMENT_SIZE)
            pool = stack.enter_context(ServedPool(work, directories, segment_size=SEGMENT_SIZE))
            pool.run("adopt", pool.config)
            pool.mount()
            rows = [_measure(pool, segments, creates, *load) for load in LOADS]
            pool.unmount()
    except (CommandFailedError, OSError) as error:
        console.print(f"bench-status: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    if as_json:
        sys.stdout.write(json.dumps({"environment": environment(), "segments": segments, "loads": rows}) + "\n")
        return
    table = Table(
        "load", "reads/s", "daemon CPU", "", "p50 ms", "p95 ms", "max ms", box=None, title=f"{segments:,} segments"
    )
    for row in rows:
        used = (f"{row['reads_per_second']:.0f}", f"{row['daemon_cpu_seconds_per_second']:.0%}")
        for what in ("create", "statfs"):
            figures = (f"{row[what][key]:.2f}" for key in ("p50_ms", "p95_ms", "max_ms"))
            table.add_row(row["load"], *used, what, *figures)
    console.print(table)


def _measure(
    pool: ServedPool, segments: int, creates: int, load: str, readers: int, interval_s: float
) -> dict[str, Any]:
    created, asked = [], []
    mountpoint, daemon = pool.mountpoint, psutil.Process(pool.pid)
    path = mountpoint / format_segment_name(segments * SEGMENT_SIZE).decode()
    with _reading(mountpoint / ".commitlogfs", readers, interval_s) as counts:
        started, cpu_s = time.perf_counter(), sum(daemon.cpu_times()[:2])
        for _ in range(creates):
            time.sleep(PAUSE_S)
            created.append(_timed_create(path))
            begun = time.perf_counter()
            os.statvfs(mountpoint)
            asked.append(time.perf_counter() - begun)
        reads, wall_s = sum(counts), time.perf_counter() - started
        cpu_s = sum(daemon.cpu_times()[:2]) - cpu_s
    return {
        "load": load,
        "reads_per_second": round(reads / wall_s, 1),
        "daemon_cpu_seconds_per_second": round(cpu_s / wall_s, 3),
        "create": _quantiles(created),
        "statfs": _quantiles(asked),
    }


def _timed_create(path: Path) -> float:
    """Seconds to create a segment like a broker; it is removed afterwards."""
    begun = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(fd, SEGMENT_SIZE)
        return time.perf_counter() - begun
    finally:
        os.close(fd)
        path.unlink()


@contextmanager
def _reading(directory: Path, readers: int, interval_s: float) -> Iterator[list[int]]:
    """Runs threads that open and read both files; yields the number of reads of each."""
    counts = [0] * readers
    ended = threading.Event()

    def read(number: int) -> None:
        while not ended.wait(interval_s):
            (directory / ("metrics" if number % 4 == 3 else "status.json")).read_bytes()
            counts[number] += 1

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(readers)]
    for thread in threads:
        thread.start()
        time.sleep(interval_s / max(1, readers))
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _quantiles(seconds: list[float]) -> dict[str, float]:
    p95_s = sorted(seconds)[int(len(seconds) * 0.95)]
    return {**asdict(latencies(seconds)), "p95_ms": round(p95_s * 1000, 3)}


if __name__ == "__main__":
    typer.run(main)
