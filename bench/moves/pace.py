"""A move at a given rate, in windows and when the rate changes, and the page cache before and after many moves."""

import itertools
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_rounds import Tell
from commitlogfs.bench.datapath_settings import MIB, Settings
from commitlogfs.bench.moves.drained_pool import DrainedPool, drained_pool
from commitlogfs.bench.moves.figures import MoveFigures, RateChange
from commitlogfs.bench.moves.page_cache import cached_pages_of, pages_of
from commitlogfs.bench.moves.sizes import AFTER_CHANGE_S, FASTER, HOT_SEGMENTS, paced_segments
from commitlogfs.bench.moves.windows import Sample, rates, settled_after
from commitlogfs.bench.targets_disks import BenchDisks
from commitlogfs.store import layout
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.segment import format_segment_name

_SAMPLE_S: Final = 0.01
_SETTLED_WINDOW_S: Final = 1.0
_SETTLED: Final = 0.1
"""Part by which the rate of such a window may differ from a new rate."""
_UNLIMITED: Final = 1 << 40


def measure_pace(work: Path, disks: BenchDisks, settings: Settings, tell: Tell, figures: MoveFigures) -> None:
    """Fills `figures`. Raises CommandFailedError, OSError, WrongResultError."""
    size, count = settings.broker_segment_bytes, paced_segments(settings)
    with drained_pool(work / "pace", disks.paths, size) as pool:
        tell(f"move-rate: {count} segments are made")
        pool.fill_source_only()
        _make_segments(pool, range(count), size)
        pool.fill_others_only()
        _make_segments(pool, range(count, count + HOT_SEGMENTS), size)
        for path in _located(pool, range(count), size):
            _drop_from_cache(path)
        tell(f"move-rate: {settings.move_windows} windows of {settings.move_window_s:g} s")
        _measure_windows(pool, settings, figures)
        _measure_changes(pool, settings, tell, figures)
        pool.cancel()
        tell("move-cache: all other segments are moved")
        _measure_cache(pool, work / "control", range(count), size, figures)


def _measure_cache(pool: DrainedPool, control: Path, moved: range, size: int, figures: MoveFigures) -> None:
    hot = _located(pool, range(moved.stop, moved.stop + HOT_SEGMENTS), size)
    cold = [path for path in _located(pool, moved, size) if path.is_relative_to(pool.source)]
    with control.open("wb") as file:
        file.write(os.urandom(MIB) * (HOT_SEGMENTS * size // MIB))
        os.fsync(file.fileno())
    # A computation would take out of the cache what it has read itself, and what is read here in that moment.
    pool.wait_until(lambda: all(map(_has_checksum, hot[:-NEWEST_KEPT])), "the other segments get their checksums")
    _read_in_turn([*hot, control])
    figures.segment_size, figures.moved_segments = size, len(cold)
    figures.hot_pages, figures.control_pages = cached_pages_of(hot), cached_pages_of([control])
    pool.drain(_UNLIMITED)
    pool.wait_until(lambda: pool.segments_to_move() == 0 and not pool.is_moving(), "all segments are moved")
    figures.hot_pages_after, figures.control_pages_after = cached_pages_of(hot), cached_pages_of([control])
    copies = [next(path for disk in pool.others if (path := disk / old.name).exists()) for old in cold]
    figures.copied_pages, figures.copied_pages_cached = pages_of(copies), cached_pages_of(copies)


def _has_checksum(path: Path) -> bool:
    return layout.XATTR_CHECKSUM in os.listxattr(path)


def _read_in_turn(paths: Sequence[Path]) -> None:
    """Read all files anew, a part of each after the other: some machines reclaim idle pages at any time, by their
    place in memory."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
        for file in files:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        unread = [(file, os.fstat(file.fileno()).st_size) for file in files]
        steps = max(size for _, size in unread) // MIB
        for step in range(steps):
            for file, size in unread:
                begin, end = step * size // steps, (step + 1) * size // steps
                os.pread(file.fileno(), end - begin, begin)


def _measure_windows(pool: DrainedPool, settings: Settings, figures: MoveFigures) -> None:
    figures.rate, figures.window_s = settings.move_rate, settings.move_window_s
    pool.drain(settings.move_rate)
    pool.wait_until(pool.is_moving, "a move begins")
    samples = _sample(pool, settings.move_windows * settings.move_window_s)
    figures.measured = rates(samples, settings.move_window_s)
    _require_unfinished(pool)


def _measure_changes(pool: DrainedPool, settings: Settings, tell: Tell, figures: MoveFigures) -> None:
    both = (settings.move_rate, settings.move_rate * FASTER)
    steps = itertools.pairwise(itertools.islice(itertools.cycle(both), settings.move_changes + 1))
    for former, rate in steps:
        tell(f"move-rate: from {former / 1e6:.1f} to {rate / 1e6:.1f} MB/s")
        pool.drain(rate)
        changed_s = time.monotonic()
        samples = _sample(pool, AFTER_CHANGE_S)
        seconds = settled_after(samples, samples[0].at_s, rate, window_s=_SETTLED_WINDOW_S, tolerance=_SETTLED)
        if seconds is not None:
            seconds = round(samples[0].at_s - changed_s + seconds, 3)
        figures.changes.append(RateChange(former, rate, seconds))
        _require_unfinished(pool)


def _sample(pool: DrainedPool, seconds: float) -> list[Sample]:
    samples = [Sample(time.monotonic(), pool.read_bytes())]
    while samples[-1].at_s < samples[0].at_s + seconds:
        time.sleep(_SAMPLE_S)
        samples.append(Sample(time.monotonic(), pool.read_bytes()))
    return samples


def _require_unfinished(pool: DrainedPool) -> None:
    if not pool.segments_to_move():
        raise WrongResultError("all segments were moved before the rate was measured")


def _make_segments(pool: DrainedPool, indexes: range, size: int) -> None:
    """Written and durable, and in the page cache."""
    chunk = os.urandom(MIB)
    for index in indexes:
        path = pool.mountpoint / format_segment_name(index * size).decode()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
            for position in range(0, size, MIB):
                os.pwrite(fd, chunk, position)
            os.fsync(fd)
        finally:
            os.close(fd)


def _located(pool: DrainedPool, indexes: range, size: int) -> list[Path]:
    """The files of segments on the disks."""
    names = [format_segment_name(index * size).decode() for index in indexes]
    return [next(path for disk in pool.disks if (path := disk / name).exists()) for name in names]


def _drop_from_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
