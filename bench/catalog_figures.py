"""Time to mount and to list a big log, and the daemon's memory.

The segments are sparse files made straight in the disks' directories and adopted, so the mount starts with the
catalog it would have after a restart. The first directory lies on a loop disk, so that it can hang. The kernel's
caches are not dropped: the files were made a moment ago, on the mount as on the bare directories, its peer.
"""

import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from commitlogfs.bench.disks import LoopDisk
from commitlogfs.bench.figures import Target, median
from commitlogfs.bench.scrape_figures import SCRAPES, ScrapeFigures, measure_scrapes
from commitlogfs.bench.served import ServedPool
from commitlogfs.store.segment import format_segment_name

SEGMENT_SIZE = 1 << 30
MIB = 1 << 20
HOT_LISTINGS = 3
_DISK_BYTES = 1024 * MIB
"""Size of the first disk, which is frozen for a while: room for the inodes of its segments, which are sparse."""
_SPARE_DESCRIPTORS = 200
"""Descriptors left for other files when as many segments as allowed are open."""

Tell = Callable[[str], None]


class WrongResultError(Exception):
    """A measured call gave a wrong result, so its time is meaningless."""


@dataclass(slots=True)
class CatalogFigures:
    """Seconds and MiB; one list entry per round (`hot` and `native`: HOT_LISTINGS per round)."""

    segments: int
    disks: int
    ready_s: list[float]
    """Seconds from the start of `commitlogfs mount` until the mount answers."""
    opened_s: list[float]
    """The part of this time in which the daemon identifies, scans and checks the disks."""
    daemonized_s: list[float]
    """Seconds until `commitlogfs mount --daemon` returns."""
    first_s: list[float]
    """The first listing with stat of a fresh mount."""
    hot_s: list[float]
    native_s: list[float]
    """Listings of the bare directories."""
    mounted_mib: list[float]
    listed_mib: list[float]
    opened_files: int = 0
    opened_files_mib: float = 0.0
    opening_s: float = 0.0
    scrapes: ScrapeFigures = field(default_factory=ScrapeFigures)

    def as_json(self) -> dict[str, Any]:
        listing, native = median(self.hot_s), median(self.native_s)
        return {
            "segments": self.segments,
            "disks": self.disks,
            "segment_size": SEGMENT_SIZE,
            "mount_ready_seconds": self.ready_s,
            "mount_pool_opened_seconds": self.opened_s,
            "mount_daemon_option_seconds": self.daemonized_s,
            "first_listing_seconds": self.first_s,
            "hot_listing_seconds": self.hot_s,
            "native_listing_seconds": self.native_s,
            "listing_to_native_ratio": round(listing / native, 2),
            "rss_mounted_mib": self.mounted_mib,
            "rss_listed_mib": self.listed_mib,
            "open_files": {
                "count": self.opened_files,
                "seconds": round(self.opening_s, 3),
                "rss_mib": self.opened_files_mib,
            },
            "scrapes": self.scrapes.as_json(),
        }

    def targets(self) -> list[Target]:
        return [
            Target("mount until it answers", median(self.ready_s), 1.0, "s"),
            Target("first listing with stat of a fresh mount", median(self.first_s), 0.5, "s"),
            Target("listing with stat, hot", median(self.hot_s), 0.5, "s"),
            Target("daemon memory after listing", max(self.listed_mib), 100, "MiB"),
            *self.scrapes.targets(),
        ]


def measure_catalog(
    directory: Path, segments: int, disks: int, rounds: int, tell: Tell, scrapes: int = SCRAPES
) -> CatalogFigures:
    """Measure below `directory`, which must not exist and is removed afterwards.

    Raises WrongResultError, CommandFailedError, DisksUnavailableError.
    """
    figures = CatalogFigures(segments, disks, [], [], [], [], [], [], [], [])
    directory.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        disk = stack.enter_context(LoopDisk(directory / "disk", "ext4", _DISK_BYTES))
        directories = [disk.path / "disk00", *(directory / f"disk{number:02d}" for number in range(1, disks))]
        tell(f"making {segments:,} sparse segments on {disks} directories")
        make_sparse_segments(directories, segments)
        pool = stack.enter_context(ServedPool(directory, directories, segment_size=SEGMENT_SIZE))
        pool.run("adopt", pool.config)
        for number in range(rounds):
            tell(f"mounting and listing, round {number + 1} of {rounds}")
            _one_round(pool, directories, figures)
            if number == rounds - 1:
                tell("scraping the exporter")
                figures.scrapes = measure_scrapes(pool, disk.path, scrapes)
                tell("opening segments as a broker does")
                _open_all(pool, figures)
            pool.unmount()
            started = time.perf_counter()
            pool.run("mount", "--daemon", pool.config)
            figures.daemonized_s.append(round(time.perf_counter() - started, 4))
            pool.run("umount", pool.mountpoint)
    return figures


def make_sparse_segments(directories: Sequence[Path], segments: int, size: int = SEGMENT_SIZE) -> None:
    """Make sparse segments, striped over the directories like round-robin."""
    for directory in directories:
        directory.mkdir()
    for index in range(segments):
        name = format_segment_name(index * size).decode()
        fd = os.open(directories[index % len(directories)] / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)


def _one_round(pool: ServedPool, directories: Sequence[Path], figures: CatalogFigures) -> None:
    figures.ready_s.append(round(pool.mount(), 4))
    figures.opened_s.append(float(pool.logged("pool_opened")["seconds"]))
    figures.mounted_mib.append(_rss_mib(pool.pid))
    figures.first_s.append(_timed_listing([pool.mountpoint], figures.segments))
    for _ in range(HOT_LISTINGS):
        figures.native_s.append(_timed_listing(directories, figures.segments))
        figures.hot_s.append(_timed_listing([pool.mountpoint], figures.segments))
    figures.listed_mib.append(_rss_mib(pool.pid))


def _timed_listing(directories: Sequence[Path], expected: int) -> float:
    started = time.perf_counter()
    count, size = 0, 0
    for directory in directories:
        with os.scandir(directory) as entries:
            for entry in entries:
                size += entry.stat(follow_symlinks=False).st_size
                count += 1
    seconds = time.perf_counter() - started
    if (count, size) != (expected, expected * SEGMENT_SIZE):
        raise WrongResultError(f"{directories[0]}: listed {count} entries of {size} bytes, expected {expected}")
    return round(seconds, 4)


def _open_all(pool: ServedPool, figures: CatalogFigures) -> None:
    """Open segments read-write and keep them open, like a broker; as many as the descriptor limits allow."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    daemon_limit, _ = psutil.Process(pool.pid).rlimit(psutil.RLIMIT_NOFILE)
    limits = [limit for limit in (hard, daemon_limit) if limit != resource.RLIM_INFINITY]
    wanted = min([figures.segments, *(limit - _SPARE_DESCRIPTORS for limit in limits)])
    descriptors: list[int] = []
    started = time.perf_counter()
    try:
        for index in range(wanted):
            name = format_segment_name(index * SEGMENT_SIZE).decode()
            descriptors.append(os.open(pool.mountpoint / name, os.O_RDWR))
        figures.opening_s = time.perf_counter() - started
        figures.opened_files = wanted
        figures.opened_files_mib = _rss_mib(pool.pid)
    finally:
        for fd in descriptors:
            os.close(fd)


def _rss_mib(pid: int) -> float:
    return round(psutil.Process(pid).memory_info().rss / MIB, 1)
