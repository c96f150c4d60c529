"""Time to create a segment with its whole reservation, as the broker creates it.

One call through the mount (open with O_CREAT, ftruncate) against the same natively on the same disk (open,
fallocate, ftruncate), alternating, so that both have the same state of the disk.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commitlogfs.bench.catalog_figures import Tell, WrongResultError
from commitlogfs.bench.disks import LoopDisk, why_no_loop_disks
from commitlogfs.bench.figures import Latencies, Target, latencies
from commitlogfs.bench.served import ServedPool
from commitlogfs.store import _syscalls
from commitlogfs.store.segment import format_segment_name

DISK_SEGMENTS = 8
"""Number of segments for which the disk has room: each measured one is removed, so the disk stays below its
thresholds."""
IDLE_PAUSE_S = 0.02
"""Pause between two creates on the idle disk: a broker creates a segment every few seconds at most."""
APPEND_BYTES = 4096
IDLE_LIMIT_MS = 10.0
BUSY_LIMIT_MS = 25.0


@dataclass(frozen=True, slots=True)
class CreateFigures:
    """Figures for one kind of disk, idle or beside a syncing appender."""

    disk: str
    load: str
    segment_size: int
    mount: Latencies
    native: Latencies
    syncs_per_second: float
    """Rate of the appender; 0 without one."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def target(self) -> Target:
        limit = BUSY_LIMIT_MS if self.syncs_per_second else IDLE_LIMIT_MS
        return Target(f"create a segment, {self.disk}, {self.load}, p99", self.mount.p99_ms, limit, "ms")


def measure_creates(
    directory: Path, fstypes: tuple[str, ...], creates: int, segment_size: int, tell: Tell
) -> list[CreateFigures]:
    """Measure one loop disk after the other below `directory`, each removed before the next is made; without loop
    devices a plain directory. Raises WrongResultError, CommandFailedError, DisksUnavailableError."""
    lack = why_no_loop_disks()
    if lack:
        tell(f"{lack}: creates are measured in a plain directory")
        (directory / "plain").mkdir(parents=True)
        return _measure_disk(directory / "plain", f"directory of {directory}", creates, segment_size, tell)
    figures: list[CreateFigures] = []
    for fstype in fstypes:
        size = max(DISK_SEGMENTS * segment_size, 512 << 20)
        with LoopDisk(directory / fstype, fstype, size) as disk:
            figures += _measure_disk(disk.path, fstype, creates, segment_size, tell)
    return figures


def _measure_disk(disk: Path, label: str, creates: int, segment_size: int, tell: Tell) -> list[CreateFigures]:
    native, served = disk / "native", disk / "pool"
    native.mkdir()
    with ExitStack() as stack:
        work = disk.with_name(f"{disk.name}-served")
        work.mkdir()
        pool = stack.enter_context(ServedPool(work, [served], segment_size=segment_size))
        pool.run("init", pool.config)
        pool.mount()
        names = (format_segment_name(index * segment_size).decode() for index in itertools.count(1))
        tell(f"{label}: creating {creates} segments on the idle disk")
        idle = _race(pool.mountpoint, native, names, creates, segment_size, IDLE_PAUSE_S)
        tell(f"{label}: creating {creates} segments beside a syncing appender")
        with _appender(pool.mountpoint / format_segment_name(0).decode(), segment_size) as rate:
            busy = _race(pool.mountpoint, native, names, creates, segment_size, IDLE_PAUSE_S)
        pool.unmount()
        return [
            CreateFigures(label, "idle", segment_size, *idle, 0.0),
            CreateFigures(label, "beside a syncing appender", segment_size, *busy, round(rate(), 1)),
        ]


def _race(
    mountpoint: Path, native: Path, names: Iterator[str], creates: int, segment_size: int, pause_s: float
) -> tuple[Latencies, Latencies]:
    """Alternating creates, each checked and removed; the latencies of the mount and of the directory."""
    through_mount, natively = [], []
    for _ in range(creates):
        name = next(names)
        time.sleep(pause_s)
        through_mount.append(_create(mountpoint / name, segment_size, reserve=False))
        time.sleep(pause_s)
        natively.append(_create(native / name, segment_size, reserve=True))
    return latencies(through_mount), latencies(natively)


def _create(path: Path, size: int, *, reserve: bool) -> float:
    started = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if reserve:
            _syscalls.fallocate(fd, _syscalls.FALLOC_FL_KEEP_SIZE, 0, size)
        os.ftruncate(fd, size)
        seconds = time.perf_counter() - started
        st = os.fstat(fd)
    finally:
        os.close(fd)
        path.unlink()
    if st.st_size != size or st.st_blocks * 512 < size:
        raise WrongResultError(f"{path}: {st.st_size} bytes with {st.st_blocks * 512} reserved, not {size}")
    return seconds


@contextmanager
def _appender(segment: Path, size: int) -> Iterator[Callable[[], float]]:
    """Runs a process that appends and syncs until the end of the block; yields a function for its syncs per
    second."""
    fd = os.open(segment, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    os.close(fd)
    process = subprocess.Popen(
        [sys.executable, "-m", "commitlogfs.bench.appender", str(segment), str(APPEND_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    output: list[str] = []
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "appending\n":
            raise WrongResultError("the appender did not start")
        yield lambda: int(output[0]) / float(output[1])
        out, _ = process.communicate(timeout=60)
        output += out.split()
        if process.returncode != 0:
            raise WrongResultError(f"the appender exited with {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
