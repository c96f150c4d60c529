"""The workloads of the data path: each measures one target once, checks every byte and returns a rate.

The inner loops run in Python, so each step moves enough data to make their own cost small (datapath_overhead.py
measures it); it is the same for every target. Cold data has been dropped from all caches right before.
"""

import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from commitlogfs.bench import datapath_content as content
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.targets import DataTarget
from commitlogfs.bench.targets_disks import drop_caches

MIB = 1 << 20
READ_BYTES = MIB
FLUSH_BYTES = 4 * MIB
"""Bytes appended between two msync calls of the asynchronous append."""
_PAUSE_S = 0.02
_SEED = 7


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    unit: str
    about: str
    measure: Callable[[DataTarget, Settings], float]


def append_sync(target: DataTarget, settings: Settings) -> float:
    """MB/s, each append followed by msync: a broker with SYNC_FLUSH."""
    step = settings.append_bytes
    return _append(target, settings, min(settings.sync_appends * step, settings.segment_bytes), step)


def append(target: DataTarget, settings: Settings) -> float:
    """MB/s over the whole segment, msync every FLUSH_BYTES: a broker with ASYNC_FLUSH under load."""
    return _append(target, settings, settings.segment_bytes, FLUSH_BYTES)


def _append(target: DataTarget, settings: Settings, total: int, flush_every: int) -> float:
    index, step = settings.readers, settings.append_bytes
    data = memoryview(b"".join(content.make_chunk(index, at) for at in range(0, total, content.CHUNK)))[:total]
    with _new_segment(target, index) as fd:
        with mmap.mmap(fd, target.segment_size) as mapping:
            started = time.perf_counter()
            flushed = 0
            for at in range(0, total, step):
                mapping[at : at + step] = data[at : at + step]
                if at + step - flushed >= flush_every:
                    mapping.flush(flushed, at + step - flushed)
                    flushed = at + step
            if flushed < total:
                mapping.flush(flushed, total - flushed)
            seconds = time.perf_counter() - started
        _verify_prefix(target, index, data)
    return total / seconds / 1e6


def read_cold(target: DataTarget, settings: Settings) -> float:
    """MB/s through read(2), READ_BYTES at a time."""
    drop_caches()
    with _opened(target, 0) as fd:
        rate = _read_through(fd, 0, target.segment_size)
        content.verify_segment(fd, 0, target.segment_size)
    return rate


def read_warm(target: DataTarget, settings: Settings) -> float:
    """MB/s of the second of two passes over one open file."""
    with _opened(target, 0) as fd:
        _read_through(fd, 0, target.segment_size)
        rate = _read_through(fd, 0, target.segment_size)
        content.verify_segment(fd, 0, target.segment_size)
    return rate


def random_cold(target: DataTarget, settings: Settings) -> float:
    """Reads of one page per second, no page twice."""
    pages = range(target.segment_size // content.PAGE)
    chosen = random.Random(_SEED).sample(pages, settings.random_reads_per_run)  # noqa: S311
    positions = [page * content.PAGE for page in chosen]
    drop_caches()
    with _opened(target, 0) as fd:
        started = time.perf_counter()
        found = [os.pread(fd, content.PAGE, position) for position in positions]
        seconds = time.perf_counter() - started
    for position, page in zip(positions, found, strict=True):
        if page != content.make_page(0, position):
            raise WrongResultError(f"{target.name}: wrong page at {position}")
    return len(positions) / seconds


def create(target: DataTarget, settings: Settings) -> float:
    """Creates per second, from the median time of one: name, reservation, size, first append."""
    index, step = settings.readers, settings.append_bytes
    record = content.make_chunk(index, 0)[:step]
    times = []
    for _ in range(settings.creates):
        time.sleep(_PAUSE_S)
        started = time.perf_counter()
        fd = target.create(index)
        try:
            with mmap.mmap(fd, target.segment_size) as mapping:
                mapping[:step] = record
                times.append(time.perf_counter() - started)
            state = os.fstat(fd)
            if state.st_size != target.segment_size or state.st_blocks * 512 < target.segment_size:
                raise WrongResultError(f"{target.name}: {state.st_blocks * 512} bytes reserved")
        finally:
            os.close(fd)
            target.path(index).unlink()
    return 1 / statistics.median(times)


def list_and_stat(target: DataTarget, settings: Settings) -> float:
    """Segments per second, listed with size and time, from the median of several listings."""
    times = []
    for _ in range(settings.listings):
        started = time.perf_counter()
        count, size = 0, 0
        for directory in target.directories:
            with os.scandir(directory) as entries:
                for entry in entries:
                    size += entry.stat(follow_symlinks=False).st_size
                    count += 1
        times.append(time.perf_counter() - started)
        if (count, size) != (settings.listed, settings.listed * target.segment_size):
            raise WrongResultError(f"{target.name}: listed {count} entries of {size} bytes")
    return settings.listed / statistics.median(times)


def fill_for_readers(target: DataTarget, settings: Settings) -> None:
    """Write the segments to be read, one for each concurrent reader; they stay for the whole run."""
    for index in range(settings.readers):
        fd = target.create(index)
        try:
            content.write_segment(fd, index, target.segment_size)
        finally:
            os.close(fd)


def _read_through(fd: int, segment: int, size: int) -> float:
    with mmap.mmap(-1, READ_BYTES) as page, memoryview(page) as buffer:
        started = time.perf_counter()
        for position in range(0, size, READ_BYTES):
            if os.preadv(fd, [buffer], position) != READ_BYTES:
                raise WrongResultError(f"a short read at {position}")
            if not content.starts_with(buffer, segment, position):
                raise WrongResultError(f"wrong page at {position}")
        return size / (time.perf_counter() - started) / 1e6


def _verify_prefix(target: DataTarget, index: int, data: memoryview) -> None:
    """Check the data as a new reader sees it, not through the mapping that has written it."""
    with _opened(target, index) as fd:
        for at in range(0, len(data), MIB):
            expected = data[at : at + MIB]
            if os.pread(fd, len(expected), at) != expected:
                raise WrongResultError(f"{target.name}: wrong bytes from {at} on")


@contextmanager
def _opened(target: DataTarget, index: int) -> Iterator[int]:
    """Opens the segment read-write, as the broker opens every segment."""
    fd = os.open(target.path(index), os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _new_segment(target: DataTarget, index: int) -> Iterator[int]:
    """Creates a segment and removes it afterwards."""
    fd = target.create(index)
    try:
        yield fd
    finally:
        os.close(fd)
        target.path(index).unlink()
