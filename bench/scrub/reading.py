"""A free-running scrub beside a plain sequential reader of the same files (fio), past the page cache."""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.counter_windows import Sample, busy_rate, sample_while
from commitlogfs.bench.datapath_rounds import Collected, Series, Tell, in_turn
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.measured_pool import TIMEOUT_S, MeasuredPool, measured_pool
from commitlogfs.bench.page_cache import kept_pages
from commitlogfs.bench.scrub.figures import ScrubFigures
from commitlogfs.bench.scrub.pool_scrub import UNLIMITED, PoolScrub
from commitlogfs.bench.scrub.sizes import read_segments
from commitlogfs.bench.targets_disks import BenchDisks
from commitlogfs.store.pool.catalog import NEWEST_KEPT

READ: Final = "scrub-read"
FIO: Final = "fio"
CONTROL: Final = "fio-2"
"""FIO again: the distance of its ratio from 1 is the noise of a ratio."""
SCRUB: Final = "scrub"


def measure_reading(
    work: Path, disks: BenchDisks, settings: Settings, tell: Tell, found: Collected, figures: ScrubFigures
) -> None:
    """On one disk. Raises CommandFailedError, WrongResultError, OSError."""
    segments = range(read_segments(settings) + NEWEST_KEPT)
    with measured_pool(work / "reading", disks.paths[:1], settings.scrub_segment_bytes, MeasuredPool) as pool:
        tell(f"{READ}: {len(segments)} segments are made")
        pool.make_segments(segments)
        pool.await_checksums(segments)
        sealed = pool.located(segments)[:-NEWEST_KEPT]
        if fio_version():
            _compare(pool, sealed, settings, tell, found)
        else:
            found.left_out[READ] = "fio is not installed; apt-get install fio"
        tell("scrub-cache: all segments are read")
        figures.segments, figures.segment_size = len(sealed), pool.segment_size
        figures.pages = kept_pages(sealed, work / "control", lambda: _scrub(pool, len(sealed)))


def fio_version() -> str:
    """Empty if it is not installed."""
    if shutil.which("fio") is None:
        return ""
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _compare(pool: MeasuredPool, sealed: Sequence[Path], settings: Settings, tell: Tell, found: Collected) -> None:
    series = Series(READ, "MB/s", "sealed segments of one disk, sequential, past the page cache", baseline=FIO)
    found.series.append(series)
    found.about[FIO] = "fio --rw=read --direct=1 --bs=1M --ioengine=psync, the files of the segments one by one"
    found.about[CONTROL] = "the same again: the noise of this machine"
    found.about[SCRUB] = "a scrub of these segments without a limit of its rate, on a disk that is idle otherwise"
    for turn in range(settings.rounds):
        for target in in_turn((FIO, CONTROL, SCRUB), turn):
            tell(f"{READ}: round {turn + 1} of {settings.rounds}, {target}")
            rate = _scrub(pool, len(sealed)) if target == SCRUB else _read_by_fio(sealed)
            series.add(target, rate / 1e6)


def _scrub(pool: MeasuredPool, count: int) -> float:
    """Bytes per second, without the time until it begins."""
    scrub, expected, before = PoolScrub(pool), count * pool.segment_size, pool.read_bytes()
    scrub.start(UNLIMITED)

    def goes_on(samples: Sequence[Sample]) -> bool:
        return samples[-1].done - before < expected and time.monotonic() < samples[0].at_s + TIMEOUT_S

    samples = [Sample(time.monotonic(), before), *sample_while(pool.read_bytes, goes_on)]
    pool.wait_until(lambda: not scrub.is_running(), "the scrub ends")
    if scrub.done_bytes() != expected:
        raise WrongResultError(f"a scrub of {expected:,} bytes has read {scrub.done_bytes():,}")
    damaged = pool.status()["scrub"]["damaged"]
    if damaged:
        raise WrongResultError(f"a scrub of sound segments has found {damaged}")
    return busy_rate(samples)


def _read_by_fio(paths: Sequence[Path]) -> float:
    """Bytes per second. All lie in one directory."""
    command = ["fio", f"--name={READ}", "--readonly", "--rw=read", "--direct=1", "--bs=1M", "--ioengine=psync"]
    command += [
        "--file_service_type=sequential",
        f"--filename={':'.join(path.name for path in paths)}",
        "--output-format=json",
    ]
    # fio takes at most 4096 characters of names.
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=paths[0].parent)
    if ran.returncode:
        raise WrongResultError(f"fio has failed: {ran.stderr.strip() or ran.returncode}")
    read: dict[str, Any] = json.loads(ran.stdout)["jobs"][0]["read"]
    expected = sum(path.stat().st_size for path in paths)
    if read["io_bytes"] != expected:
        raise WrongResultError(f"fio has read {read['io_bytes']:,} of {expected:,} bytes")
    return float(read["bw_bytes"])
