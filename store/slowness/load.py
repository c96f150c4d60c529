"""How busy the processors and some disks are: the kernel's own counters, which leave no work out."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_READS, _READ_SECTORS, _READ_MS, _WRITES, _WRITE_SECTORS, _WRITE_MS, _UNDER_WAY, _BUSY_MS = 0, 2, 3, 4, 6, 7, 8, 9
"""Fields of a block device's stat file: requests that have ended, their 512-byte sectors and their time from the
queue to the end, requests under way, and ms with at least one under way (Documentation/block/stat.rst)."""
_FLUSH_MS = 16
_SECTOR: Final = 512
_BLOCK_DEVICES: Final = Path("/sys/dev/block")


@dataclass(frozen=True, slots=True)
class EndedRequests:
    """Requests that a block device has ended since boot. Those that failed count, too."""

    reads: int
    writes: int


def ended_requests(device: int) -> EndedRequests | None:
    """Counters of a device (st_dev); None for one without counters. Touches no disk."""
    counters = _counters(device)
    return None if counters is None else EndedRequests(counters[_READS], counters[_WRITES])


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """Work of a block device since boot."""

    reads: int
    read_bytes: int
    read_ms: int
    """Time of all reads together, from the queue to their end."""
    writes: int
    write_bytes: int
    write_ms: int
    """The same for writes. A write that has to wait until a flush has ended includes that time."""
    flush_ms: int
    busy_ms: int
    """Time with at least one request under way."""
    under_way: int = 0
    """Requests that have not ended."""


def device_counters(device: int) -> DeviceCounters | None:
    """All counters of a device (st_dev); None for one without counters. Touches no disk."""
    counters = _counters(device)
    if counters is None:
        return None
    return DeviceCounters(
        reads=counters[_READS],
        read_bytes=counters[_READ_SECTORS] * _SECTOR,
        read_ms=counters[_READ_MS],
        writes=counters[_WRITES],
        write_bytes=counters[_WRITE_SECTORS] * _SECTOR,
        write_ms=counters[_WRITE_MS],
        flush_ms=counters[_FLUSH_MS] if len(counters) > _FLUSH_MS else 0,
        busy_ms=counters[_BUSY_MS],
        under_way=counters[_UNDER_WAY],
    )


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Work of a block device in a period."""

    read_bytes_per_second: float
    written_bytes_per_second: float
    busy_ratio: float
    """Part of the period with at least one request under way, from 0 to 1."""


def rates_between(before: DeviceCounters, after: DeviceCounters, seconds: float) -> DeviceRates:
    """The rates between two readings of a device's counters; 0 for a counter that has begun anew."""

    def rate(first: int, last: int) -> float:
        return max(0, last - first) / seconds

    busy_ratio = min(1.0, rate(before.busy_ms, after.busy_ms) / 1000)
    return DeviceRates(
        rate(before.read_bytes, after.read_bytes), rate(before.write_bytes, after.write_bytes), busy_ratio
    )


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """The device behind a filesystem, with all its partitions."""

    device: int
    """Its number, as in st_rdev."""
    is_rotational: bool
    """Whether the kernel takes it for a disk that turns. It does so for many virtual devices."""


def whole_device(device: int) -> WholeDevice | None:
    """The whole device of a partition or a volume (st_dev), as far as there is only one below it; None for a
    filesystem without a block device. Touches no disk."""
    try:
        path = _whole((_BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True))
        while len(below := sorted((path / "slaves").glob("*"))) == 1:
            path = _whole(below[0].resolve(strict=True))
        major, minor = (path / "dev").read_text().split(":")
        is_rotational = (path / "queue" / "rotational").read_text().strip() == "1"
    except (OSError, ValueError):
        return None
    return WholeDevice(os.makedev(int(major), int(minor)), is_rotational)


def _whole(path: Path) -> Path:
    return path.parent if (path / "partition").exists() else path


class Machine:
    """The counters of this machine. Reading them touches no disk."""

    def whole_device(self, device: int) -> WholeDevice | None:
        return whole_device(device)

    def ended_requests(self, device: int) -> EndedRequests | None:
        return ended_requests(device)

    def device_counters(self, device: int) -> DeviceCounters | None:
        return device_counters(device)

    def processor_times(self) -> tuple[int, int]:
        """Ticks for which the processors were busy, and all ticks (proc_stat(5)). Waits for disks are idle time."""
        with open("/proc/stat", "rb") as file:
            times = [int(field) for field in file.readline().split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, steal = times
        busy = user + nice + system + irq + softirq + steal
        return busy, busy + idle + iowait


THIS_MACHINE: Final = Machine()


class MachineLoad:
    """Compares the counters with those of the last call. Not for several threads at once."""

    def __init__(self, period_s: float, machine: Machine = THIS_MACHINE) -> None:
        """`period_s` is the shortest time between two calls of `busy` (Pace.load_s)."""
        self._period_s = period_s
        self._machine = machine
        self._processors = machine.processor_times()
        self._devices: dict[int, tuple[float, int]] = {}
        """Time of the last call and busy ms by then, by device number."""
        self._measured_s = 0.0
        self.latest = 0.0
        """Result of the last call of `busy`; 0 before the first."""

    def is_due(self, now_s: float) -> bool:
        """Whether the last call of `busy` is long enough ago for another one."""
        return now_s - self._measured_s >= self._period_s

    def busy(self, devices: Iterable[int], now_s: float) -> float:
        """Part of the time since the last call, from 0 to 1, for which the busiest of the processors together and
        the given devices (st_dev) has worked. `now_s` is of a steady clock.

        A device that is new to this object counts from the next call on; one without counters, such as a network
        filesystem's, counts as idle.
        """
        before, self._processors = self._processors, self._machine.processor_times()
        busiest = _part(self._processors[0] - before[0], self._processors[1] - before[1])
        counters = {device: self._machine.device_counters(device) for device in devices}
        known = {device: (now_s, found.busy_ms) for device, found in counters.items() if found is not None}
        for device, (_, ms) in known.items():
            since_s, ms_before = self._devices.get(device, (now_s, ms))
            busiest = max(busiest, _part((ms - ms_before) / 1000, now_s - since_s))
        self._devices.update(known)
        self._measured_s, self.latest = now_s, busiest
        return busiest


def _part(busy: float, whole: float) -> float:
    return min(1.0, max(0.0, busy / whole)) if whole > 0 else 0.0


def _counters(device: int) -> list[int] | None:
    try:
        text = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
        counters = [int(field) for field in text.split()]
    except (OSError, ValueError):
        return None
    return counters if len(counters) > _BUSY_MS else None
