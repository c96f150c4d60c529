"""Decisions about segments: an interface for a journal, of whose files fusefs knows nothing."""

from dataclasses import dataclass
from typing import Protocol

from commitlogfs.store.placement.standing import Standing


@dataclass(frozen=True, slots=True)
class Placement:
    """A segment was made on a disk."""

    segment: bytes
    disk: str
    """Path of the disk."""
    policy: str
    after: str
    """Path of the disk of the segment before; "" without one."""
    is_fallback: bool
    """Whether every disk was skipped for its fill level, so that those below `full` were taken nevertheless."""
    standings: tuple[Standing, ...]
    """All disks at that moment."""
    failures: tuple[str, ...]
    """Errors of the disks that were tried before."""


class Decisions(Protocol):
    """All calls come from the event loop, must not block, and raise nothing."""

    def placed(self, placement: Placement) -> None:
        """A segment was made, or a temporary that becomes one."""

    def refused(self, segment: bytes, why: str, standings: tuple[Standing, ...]) -> None:
        """No disk takes a new segment."""

    def removed(self, segment: bytes, disk: str, reason: str, why: str | None) -> None:
        """A segment has left the log; `reason` and `why` as of store.pool.commitlog.Removal."""

    def removal_failed(self, segment: bytes, disk: str, why: str) -> None:
        """A segment that was to be removed is still there."""

    def copied(self, kind: str, segment: bytes, source: str, target: str) -> None:
        """A segment was "moved", "restored" or "repaired"; `source` and `target` are paths of disks, and `source`
        is "" for a segment that was missing."""

    def copy_failed(self, segment: bytes, source: str, target: str, why: str) -> None:
        """A move, restore or repair has failed."""

    def given_up(self, segment: bytes, disk: str, why: str) -> None:
        """A disk cannot continue with a new, empty segment, which is made on another one."""


class SilentDecisions:
    """Records nothing: for tests and tools that serve without a journal."""

    def placed(self, placement: Placement) -> None: ...
    def refused(self, segment: bytes, why: str, standings: tuple[Standing, ...]) -> None: ...
    def removed(self, segment: bytes, disk: str, reason: str, why: str | None) -> None: ...
    def removal_failed(self, segment: bytes, disk: str, why: str) -> None: ...
    def copied(self, kind: str, segment: bytes, source: str, target: str) -> None: ...
    def copy_failed(self, segment: bytes, source: str, target: str, why: str) -> None: ...
    def given_up(self, segment: bytes, disk: str, why: str) -> None: ...


SILENT = SilentDecisions()
