"""Work of the block devices of the disks, found and read without touching a disk."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.slowness.load import DeviceCounters, device_counters
from commitlogfs.store.slowness.pace import Operation, paces_between

_MOUNTS_EVERY_S: Final = 10.0
"""Parsing the mounts of a machine with thousands of them takes a while."""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Work of one block device between two readings of its counters."""

    name: str
    """As in /proc/diskstats."""
    read_bytes_per_second: float
    written_bytes_per_second: float
    read_s: float | None
    """Time of one read, from the queue to its end; None if none has ended."""
    write_s: float | None
    busy_ratio: float
    """Part of the time with at least one request under way, from 0 to 1."""
    queue: float
    """Mean number of requests under way; if none has ended, their number now."""


def figures_between(name: str, before: DeviceCounters, after: DeviceCounters, seconds: float) -> DeviceFigures:
    """The figures of the time between two readings. Counters that have begun anew count as no work."""
    paces = paces_between(before, after, seconds)
    read, write = paces.get(Operation.READ), paces.get(Operation.WRITE)
    working_s = sum(pace.operations * pace.time_s for pace in paces.values())
    return DeviceFigures(
        name,
        0.0 if read is None else read.operations * read.size_bytes / seconds,
        0.0 if write is None else write.operations * write.size_bytes / seconds,
        None if read is None else read.time_s,
        None if write is None else write.time_s,
        min(1.0, max(0, after.busy_ms - before.busy_ms) / 1000 / seconds),
        working_s / seconds if paces else float(after.under_way),
    )


class Devices:
    """The devices of a set of paths, and their counters at the last call. Not for several threads at once."""

    def __init__(self) -> None:
        self._mounts: tuple[mountinfo.MountEntry, ...] = ()
        self._mounts_read_s = -_MOUNTS_EVERY_S
        self._names: dict[int, str] = {}
        self._before: dict[int, tuple[float, DeviceCounters]] = {}

    def measure(self, paths: Mapping[str, str], now_s: float) -> dict[str, DeviceFigures | None]:
        """The figures of each disk since the last call; None at its first, and for one without a block device.

        `paths`: the directory of a disk -> the same without symbolic links, as far as that is known. `now_s` is of
        a steady clock.
        """
        if now_s - self._mounts_read_s >= _MOUNTS_EVERY_S:
            self._mounts, self._mounts_read_s = mountinfo.read_mounts(), now_s
        devices = {path: self._device(resolved) for path, resolved in paths.items()}
        figures = self._figures({device for device in devices.values() if device is not None}, now_s)
        return {path: None if device is None else figures.get(device) for path, device in devices.items()}

    def names(self, paths: Mapping[str, str]) -> dict[str, str]:
        """The name of each disk's device, as in /proc/diskstats; empty for one without a block device."""
        return {path: self._name(self._device(resolved)) for path, resolved in paths.items()}

    def _device(self, resolved: str) -> int | None:
        entry = mountinfo.containing_mount(resolved, self._mounts)
        return None if entry is None else entry.device

    def _figures(self, devices: Iterable[int], now_s: float) -> dict[int, DeviceFigures]:
        found = {}
        for device in devices:
            counters = device_counters(device)
            if counters is None:
                self._before.pop(device, None)
                continue
            before = self._before.get(device)
            self._before[device] = now_s, counters
            if before is not None and now_s > before[0]:
                found[device] = figures_between(self._name(device), before[1], counters, now_s - before[0])
        return found

    def _name(self, device: int | None) -> str:
        if device is None:
            return ""
        if device not in self._names:
            link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
            try:
                self._names[device] = link.readlink().name
            except OSError:
                self._names[device] = ""
        return self._names[device]
