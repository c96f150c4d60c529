"""Input of the rules: disks, log and clocks at one moment. Pure data."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.lost_writes import LostWrite
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of all clocks."""

    wall_ns: int
    """Nanoseconds since 1970, to compare with modification times. May jump."""
    steady_s: float
    """Seconds since boot, sleep included (CLOCK_BOOTTIME), to measure durations. Never jumps."""
    hour: int
    """Hour of the local day, 0 to 23."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    number: DiskNumber
    path: str
    state: DiskState
    measured: DiskUsage | None
    """Usage as the filesystem reports it; None while the disk does not answer."""
    pending_bytes: int
    """Bytes of removed segments that are still open and therefore not free yet."""
    thresholds: Thresholds
    reclaims_nothing: bool = False
    """Whether the latest removals there freed no space, so that no more is expected."""
    is_troubled: bool = False
    """Whether removing a segment there is likely to fail."""
    is_lost: bool = False
    """Whether its segments could not be read for so long that they count as absent."""
    lost_writes: tuple[LostWrite, ...] = ()
    is_unresponsive: bool = False
    """Whether a check of it has no answer."""
    is_vanished: bool = False
    """Whether its path does not lead to it any more."""
    is_slow: bool = False
    """Whether its device needs much longer for an operation than its peers."""

    @property
    def takes_segments(self) -> bool:
        """Whether its state allows new segments."""
        return self.state is DiskState.RW and self.measured is not None

    @property
    def allows_removal(self) -> bool:
        """Whether its segments can be removed now, as far as is known."""
        bad = self.is_troubled or self.state in (DiskState.FAILED, DiskState.OFFLINE)
        return self.measured is not None and not bad

    @property
    def usage(self) -> DiskUsage | None:
        """Usage in which pending bytes count as free, so that nothing more is removed for them."""
        return None if self.measured is None else self.measured.with_pending_free(self.pending_bytes)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    base_offset: BaseOffset
    disk: DiskNumber
    allocated_bytes: int
    """Bytes that its removal frees, as far as is known: 0 while it has another name."""
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class HeldFacts:
    """A segment that was removed by force and is still open."""

    base_offset: BaseOffset
    disk: DiskNumber
    allocated_bytes: int
    """Bytes that punching frees; 0 if they are free already."""
    since_s: float
    """Steady time at which its grace began."""
    ino: int = 0
    """Inode on its disk. The base offset does not suffice: a segment may be removed, made again and removed
    again."""


@dataclass(frozen=True, slots=True)
class RefusedFacts:
    """A segment whose removal has failed."""

    base_offset: BaseOffset
    disk: DiskNumber
    why: str


class LogFacts(Protocol):
    """The log's segments. Not a tuple, so that 60,000 are not copied when none is to be removed."""

    @property
    def segment_size(self) -> int: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SegmentFacts]:
        """Oldest first."""
        ...

    def newest(self, count: int) -> tuple[SegmentFacts, ...]: ...

    def count_on(self, disk: DiskNumber) -> int: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    moment: Moment
    disks: tuple[DiskFacts, ...]
    log: LogFacts
    held: tuple[HeldFacts, ...] = ()
    is_removing: bool = False
    """Whether a removal is under way. If it fails, a later segment that is removed meanwhile would leave a hole."""
    refused: RefusedFacts | None = None
    """The latest removal by rule, if it failed."""

    def writable(self) -> tuple[DiskFacts, ...]:
        """Disks that take segments. Only their fill levels count."""
        return tuple(disk for disk in self.disks if disk.takes_segments)

    def beside(self, silent: Collection[DiskNumber]) -> "Snapshot":
        """The same, to a create beside disks that do not answer it. These have no figures: they may be old."""
        disks = (replace(disk, measured=None) if disk.number in silent else disk for disk in self.disks)
        return replace(self, disks=tuple(disks))
