"""Everything that a frame shows, of one moment: the daemon's figures, those of the devices, the directories."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.top.devices import DeviceFigures, Devices
from commitlogfs.mount.top.directories import Directories, Directory
from commitlogfs.mount.top.feed import Answer, Feed

PATIENCE_S: Final = 1.0
"""The daemon counts as away when it has not answered for this time: its disks' directories are counted then."""
LEVELS: Final = ("clean", "force", "full")


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """One disk. `status` is its part of the status document, also if that is old."""

    path: str
    number: int
    device: str
    """Name of the block device; empty without one."""
    work: DeviceFigures | None
    """None before the second reading of its counters, and for a filesystem without a block device."""
    status: dict[str, Any] = field(default_factory=dict)
    directory: Directory | None = None
    """None while the daemon answers."""
    is_silent: bool = False
    """Whether the disk's directory does not answer."""

    @property
    def state(self) -> str:
        """The state that the daemon reports; while it is away, what the directory shows."""
        if self.directory is None:
            return str(self.status.get("state", "?"))
        if self.is_silent:
            return "no answer"
        return "error" if self.directory.error else "-"

    @property
    def used_percent(self) -> float | None:
        if self.directory is not None:
            return None if self.directory.usage is None else self.directory.usage.used_percent
        used: float | None = self.status.get("used_percent")
        return used

    @property
    def available_bytes(self) -> int | None:
        if self.directory is not None:
            return None if self.directory.usage is None else self.directory.usage.available_bytes
        available: int | None = self.status.get("available_bytes")
        return available

    @property
    def segments(self) -> int | None:
        if self.directory is not None:
            return self.directory.segments
        count: int | None = self.status.get("segments")
        return count

    @property
    def next_threshold(self) -> str | None:
        if self.directory is None:
            following: str | None = self.status.get("next_threshold")
            return following
        used, thresholds = self.used_percent, self.status.get("thresholds")
        if used is None or thresholds is None:
            return None
        return next((level for level in LEVELS if used < thresholds[level]), None)

    @property
    def eta_s(self) -> float | None:
        eta: float | None = self.status.get("eta_seconds") if self.directory is None else None
        return eta


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of one moment."""

    at_s: float
    """Epoch seconds."""
    name: str
    mountpoint: str | None
    document: dict[str, Any] | None
    """The last status document of the daemon."""
    trouble: str
    """Why the daemon does not answer; empty if it does."""
    disks: tuple[DiskFigures, ...]
    decisions: tuple[dict[str, Any], ...] = ()
    is_complete: bool = True
    """Whether nobody that was asked still has time to answer."""

    @property
    def age_s(self) -> float | None:
        """Age of the daemon's figures."""
        return None if self.document is None else max(0.0, self.at_s - self.document["composed_at"])


class Collector:
    """Collects figures of one mount. Made before the process has a second thread, as it forks."""

    def __init__(self, target: Target, file: str) -> None:
        self._name = target.name
        self._others_mountpoint = target.others_mountpoint
        self.directories = Directories()
        self.feed = Feed(target, file)
        self._devices = Devices()
        self._work: dict[str, DeviceFigures | None] = {}

    def request(self) -> None:
        """Have the daemon asked."""
        self.feed.request()

    def receive(self) -> None:
        """Take in what has arrived from the directories."""
        self.directories.receive(time.monotonic())

    def collect(self, *, measures: bool) -> Figures:
        """The figures of this moment. With `measures`, those of the devices are of the time since the last such
        call; else they are the same as then."""
        now_s, answer = time.monotonic(), self.feed.answer
        trouble = self._trouble(answer, now_s)
        disks = _disks(answer)
        paths = [disk["path"] for disk in disks]
        self.directories.ask(paths, now_s, counts=bool(trouble))
        resolved = {path: self.directories[path].resolved for path in paths}
        if measures or set(paths) != set(self._work):
            self._work = self._devices.measure(resolved, now_s)
        names = self._devices.names(resolved)
        return Figures(
            at_s=time.time(),
            name=self._name,
            mountpoint=self._mountpoint(answer),
            document=answer.document,
            trouble=trouble,
            disks=tuple(self._disk(disk, names, now_s, is_away=bool(trouble)) for disk in disks),
            decisions=tuple(answer.decisions),
            is_complete=bool(answer.count) and not self.directories.is_any_awaited(now_s),
        )

    def close(self) -> None:
        self.directories.close()
        self.feed.close()

    def _disk(self, disk: dict[str, Any], names: dict[str, str], now_s: float, *, is_away: bool) -> DiskFigures:
        path = disk["path"]
        directory = self.directories[path]
        return DiskFigures(
            path,
            disk["number"],
            names[path],
            self._work.get(path),
            disk,
            directory if is_away else None,
            directory.is_silent(now_s),
        )

    def _trouble(self, answer: Answer, now_s: float) -> str:
        asked_s = self.feed.asked_s
        if answer.error is not None:
            return str(answer.error)
        if asked_s is not None and now_s - asked_s >= PATIENCE_S:
            return f"{self._name}: the daemon has not answered for {now_s - asked_s:.0f} s"
        return ""

    def _mountpoint(self, answer: Answer) -> str | None:
        if answer.document is not None:
            return str(answer.document["mountpoint"])
        return self._others_mountpoint if answer.configured is None else answer.configured.mountpoint


def _disks(answer: Answer) -> Iterable[dict[str, Any]]:
    if answer.document is not None:
        return list(answer.document["disks"])
    return () if answer.configured is None else answer.configured.disks
