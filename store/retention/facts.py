"""What the rules see of the world at one moment. Pure data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of all clocks."""

    wall_ns: int
    """Since 1970: what mtimes are compared with. May jump."""
    steady_s: float
    """Since boot, sleep included (CLOCK_BOOTTIME): what durations are measured by. Never jumps."""
    hour: int
    """Of the local day, 0 to 23."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    number: DiskNumber
    path: str
    state: DiskState
    measured: DiskUsage | None
    """As the disk says; None while it does not answer."""
    pending_bytes: int
    """Of segments that are removed, but still open: on their way to being free."""
    thresholds: Thresholds
    reclaims_nothing: bool = False
    """The latest removals there gave nothing: no more is counted on."""
    is_troubled: bool = False
    """Removing a segment there is likely to fail."""
    is_lost: bool = False
    """Its segments cannot be read, and have not been for long: they are absent."""

    @property
    def takes_segments(self) -> bool:
        """As far as its state goes."""
        return self.state is DiskState.RW and self.measured is not None

    @property
    def lets_go(self) -> bool:
        """Whether its segments can be removed now, as far as is known."""
        bad = self.is_troubled or self.state in (DiskState.FAILED, DiskState.OFFLINE)
        return self.measured is not None and not bad

    @property
    def usage(self) -> DiskUsage | None:
        """With pending bytes counted as free: what is removed must not be removed again."""
        return None if self.measured is None else self.measured.with_pending_free(self.pending_bytes)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    base_offset: BaseOffset
    disk: DiskNumber
    allocated_bytes: int
    """What its removal gives back, as far as is known: 0 while it has another name."""
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class HeldFacts:
    """A segment that was removed by force and is still open."""

    base_offset: BaseOffset
    disk: DiskNumber
    allocated_bytes: int
    """0: its blocks are freed already."""
    since_s: float
    """Steady time from which its grace counts."""
    ino: int = 0
    """On its disk: the same base offset may have been removed, and made again, and removed."""


@dataclass(frozen=True, slots=True)
class RefusedFacts:
    """A segment that was to go, and did not."""

    base_offset: BaseOffset
    disk: DiskNumber
    why: str


class LogFacts(Protocol):
    """The log's segments. Not a tuple: 60,000 are looked at only when one of them is to go."""

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
    """A removal has begun and not ended: it may still fail, and what came after it would then lie behind a hole."""
    refused: RefusedFacts | None = None
    """The latest removal by rule has failed."""

    def writable(self) -> tuple[DiskFacts, ...]:
        """They alone have a say."""
        return tuple(disk for disk in self.disks if disk.takes_segments)
