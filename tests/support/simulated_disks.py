"""Disks and a log that exist only as numbers, for the rules of forced deletion."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention import DiskFacts, HeldFacts, Moment, RefusedFacts, SegmentFacts, Snapshot
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds

SIZE = 1 << 20
"""Size of a segment."""


class SimulatedLog:
    """Segments in order of their offsets."""

    segment_size = SIZE

    def __init__(self, segments: Sequence[SegmentFacts]) -> None:
        self._segments = tuple(segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[SegmentFacts]:
        return iter(self._segments)

    def newest(self, count: int) -> tuple[SegmentFacts, ...]:
        return self._segments[max(0, len(self._segments) - count) :]

    def count_on(self, disk: DiskNumber) -> int:
        return sum(segment.disk == disk for segment in self._segments)


@dataclass
class SimulatedDisk:
    """Holds `foreign` segments' worth of other data besides our segments; `size` in segments, too."""

    size: int
    foreign: int = 0
    state: DiskState = DiskState.RW
    answers: bool = True
    reclaims_nothing: bool = False
    is_troubled: bool = False
    is_lost: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass
class World:
    """`log[i]` is the disk (1 ...) of segment `first + i`; `held` has removed but open segments: (disk, since)."""

    disks: list[SimulatedDisk]
    log: list[int]
    first: int = 0
    held: dict[int, tuple[int, float]] = field(default_factory=dict)
    punched: set[int] = field(default_factory=set)
    linked: set[int] = field(default_factory=set)
    """Segments by index that have another name, too."""
    refused: RefusedFacts | None = None
    ages_s: dict[int, float] = field(default_factory=dict)
    """Ages of segments by index at the beginning, 0 by default; -1: the segment has no mtime."""
    now: Moment = field(default_factory=lambda: Moment(1_800_000_000 * 10**9, 1000.0, 12))

    def used(self, number: int) -> int:
        disk = self.disks[number - 1]
        held = sum(1 for index, (where, _) in self.held.items() if where == number and index not in self.punched)
        return disk.foreign + self.log.count(number) + held

    def pass_time(self, seconds: float, *, hour: int | None = None, wall_jump_s: float = 0.0) -> None:
        self.now = Moment(
            self.now.wall_ns + round((seconds + wall_jump_s) * 1e9),
            self.now.steady_s + seconds,
            self.now.hour if hour is None else hour,
        )

    def snapshot(self) -> Snapshot:
        disks = []
        for number, disk in enumerate(self.disks, start=1):
            free = (disk.size - self.used(number)) * SIZE
            usage = DiskUsage(disk.size * SIZE, max(0, free), max(0, free)) if disk.answers else None
            pending = sum(SIZE for i, (where, _) in self.held.items() if where == number and i not in self.punched)
            disks.append(
                DiskFacts(
                    DiskNumber(number),
                    f"/data{number}",
                    disk.state,
                    usage,
                    pending,
                    disk.thresholds,
                    reclaims_nothing=disk.reclaims_nothing,
                    is_troubled=disk.is_troubled,
                    is_lost=disk.is_lost,
                )
            )
        segments = [
            SegmentFacts(
                BaseOffset((self.first + i) * SIZE),
                DiskNumber(number),
                0 if self.first + i in self.linked else SIZE,
                self._mtime_ns(self.first + i),
            )
            for i, number in enumerate(self.log)
        ]
        held = tuple(
            HeldFacts(BaseOffset(i * SIZE), DiskNumber(number), 0 if i in self.punched else SIZE, since)
            for i, (number, since) in self.held.items()
        )
        return Snapshot(self.now, tuple(disks), SimulatedLog(segments), held, refused=self.refused)

    def remove_oldest(self, *, is_open: bool = False) -> int:
        number = self.log.pop(0)
        if is_open:
            self.held[self.first] = (number, self.now.steady_s)
        self.first += 1
        return number

    def _mtime_ns(self, index: int) -> int:
        age_s = self.ages_s.get(index, 0.0)
        return 0 if age_s < 0 else 1_800_000_000 * 10**9 - round(age_s * 1e9)


def striped(count: int, disks: int) -> list[int]:
    """Round robin."""
    return [index % disks + 1 for index in range(count)]


def with_free(snapshot: Snapshot, number: int, more_bytes: int) -> Snapshot:
    """A copy in which that much foreign data has been removed from a disk."""
    disks = []
    for disk in snapshot.disks:
        if disk.number == number and disk.measured is not None:
            disk = replace(disk, measured=disk.measured.with_pending_free(more_bytes))
        disks.append(disk)
    return replace(snapshot, disks=tuple(disks))
