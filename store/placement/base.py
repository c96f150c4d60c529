"""Input and output of a placement policy."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.segment import BaseOffset


@dataclass(frozen=True, slots=True)
class Candidate:
    """An eligible disk, with the facts that a policy may use."""

    number: DiskNumber
    disk_id: str
    path: str
    weight: float
    available_bytes: int
    used_bytes: int = 0
    """Used for good: files that are only open no longer count."""

    @property
    def used_ratio(self) -> Fraction:
        entire = self.used_bytes + self.available_bytes
        return Fraction(self.used_bytes, entire) if entire else Fraction(1)


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    base_offset: BaseOffset
    segment_size: int
    predecessor: DiskNumber | None
    """The disk of the nearest older segment, if there is one."""
    members: tuple[DiskNumber, ...]
    """All disks of the pool in order, eligible or not."""


class PlacementPolicy(Protocol):
    @property
    def name(self) -> str: ...

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        """All candidates, best first. If a disk refuses, the caller tries the next one."""
        ...


def rotate_from(numbers: list[DiskNumber], first: int) -> list[DiskNumber]:
    """`numbers`, starting at index `first` modulo its length."""
    first %= len(numbers)
    return numbers[first:] + numbers[:first]
