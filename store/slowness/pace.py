"""How long a device needs for a read or a write, and how that compares with another load. Pure.

A device that has more to do at a time needs longer for each request, and larger requests take longer. So a time is
compared with another one as it would be for the same queue and the same size. Reads and writes are kept apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlogfs.store.slowness.load import DeviceCounters

WITHOUT_TRANSFER_BYTES: Final = 64 << 10
"""Bytes that a device transfers in about the time that it needs before it transfers the first one. Of a disk that
turns it is more, so larger requests are expected to need longer there than they do."""


_MS_WRAP: Final = 1 << 32
"""The kernel counts ms in 32 bits: of a device with a long queue, that is enough for some days."""


class Operation(Enum):
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Pace:
    """The operations of one kind that a device has ended in some time."""

    operations: int
    time_s: float
    """Time of one operation, waiting in the device's queue included."""
    working_s: float
    """The same without the time of flushes, for which writes wait. Flushes take longer the more others have
    written."""
    size_bytes: float
    """Mean size."""
    depth: float
    """Operations under way at a time, of both kinds, while the device was busy; at least 1."""
    busy: float
    """Part of the time in which the device was busy, from 0 to 1."""

    def longest_under(self, load: "Pace") -> float:
        """Time that one of these operations should not exceed under another load. A smaller load is not expected to
        be quicker: a device that works on many requests at a time is not."""
        deeper, larger = self._ratios(load)
        return self.time_s * max(1.0, deeper) * max(1.0, larger)

    def time_under(self, load: "Pace") -> float:
        """Time of one of these operations under another load, of a device that works on one after the other."""
        deeper, larger = self._ratios(load)
        return self.time_s * deeper * larger

    def _ratios(self, load: "Pace") -> tuple[float, float]:
        larger = (WITHOUT_TRANSFER_BYTES + load.size_bytes) / (WITHOUT_TRANSFER_BYTES + self.size_bytes)
        return load.depth / self.depth, larger


Paces = dict[Operation, Pace]
"""Kinds of operations that there were."""


def paces_between(before: DeviceCounters, after: DeviceCounters, seconds: float) -> Paces:
    """The operations of a device between two readings of its counters; none if these have begun anew."""
    read_s = _seconds_between(before.read_ms, after.read_ms)
    write_s = _seconds_between(before.write_ms, after.write_ms)
    flush_s = _seconds_between(before.flush_ms, after.flush_ms)
    busy_s = _seconds_between(before.busy_ms, after.busy_ms)
    counts = (
        after.reads - before.reads,
        after.read_bytes - before.read_bytes,
        after.writes - before.writes,
        after.write_bytes - before.write_bytes,
    )
    if min(*counts, read_s, write_s, flush_s, busy_s) < 0:
        return {}
    depth = max(1.0, (read_s + write_s) / busy_s) if busy_s > 0 else 1.0
    busy = min(1.0, busy_s / seconds) if seconds > 0 else 0.0
    reads, writes = after.reads - before.reads, after.writes - before.writes
    paces: Paces = {}
    if reads > 0:
        size = (after.read_bytes - before.read_bytes) / reads
        paces[Operation.READ] = Pace(reads, read_s / reads, read_s / reads, size, depth, busy)
    if writes > 0:
        size = (after.write_bytes - before.write_bytes) / writes
        working_s = max(0.0, write_s - flush_s)
        paces[Operation.WRITE] = Pace(writes, write_s / writes, working_s / writes, size, depth, busy)
    return paces


def _seconds_between(before_ms: int, after_ms: int) -> float:
    """Negative if the counter has begun anew."""
    ms = after_ms - before_ms
    return (ms + _MS_WRAP if ms < -_MS_WRAP // 2 else ms) / 1000


def combined(paces: Iterable[Pace]) -> Pace | None:
    """All these operations as if they were of one time; None if there are none."""
    given = list(paces)
    count = sum(pace.operations for pace in given)
    if not count:
        return None

    def mean(values: Iterable[float]) -> float:
        return sum(value * pace.operations for value, pace in zip(values, given, strict=True)) / count

    return Pace(
        count,
        mean(pace.time_s for pace in given),
        mean(pace.working_s for pace in given),
        mean(pace.size_bytes for pace in given),
        mean(pace.depth for pace in given),
        sum(pace.busy for pace in given) / len(given),
    )
