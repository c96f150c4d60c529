"""How long a rebalance by placement takes: until new segments have filled the emptier disks, and old ones have
expired on the fuller ones. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.moves.balance import Level

_LONGEST_S: Final = 10 * 365 * 86400.0
_STEPS: Final = 30
"""Halvings of an interval: to a billionth of it."""


@dataclass(frozen=True, slots=True)
class Levelling:
    """The expected end of a rebalance by placement."""

    seconds: float | None
    """None while the log does not grow, or if the end is not in sight."""
    written_bytes: float
    """Bytes that have to be written until then."""
    shares: dict[DiskNumber, float]
    """How full each disk is then."""


def expect_levelling(
    levels: Sequence[Level], segment_size: int, goal: float, bytes_per_second: float, lifetime_s: float | None
) -> Levelling:
    """`goal` is the spread to reach. `lifetime_s` is the age at which segments leave the log; None if none has left
    it yet: then nothing is expected to expire."""
    still = _Course(levels, segment_size, None)
    if bytes_per_second <= 0:
        return _without_time(levels, still, goal)
    course = _Course(levels, segment_size, lifetime_s)

    def is_level(seconds: float) -> bool:
        return course.spread_at(seconds, bytes_per_second * seconds) <= goal

    early, late = 0.0, 0.0 if is_level(0.0) else 1.0
    while not is_level(late):
        early, late = late, late * 2
        if late > _LONGEST_S:
            return _without_time(levels, still, goal)
    for _ in range(_STEPS):
        middle = (early + late) / 2
        early, late = (early, middle) if is_level(middle) else (middle, late)
    written = bytes_per_second * late
    return Levelling(late, written, course.shares_at(late, written))


def _without_time(levels: Sequence[Level], course: "_Course", goal: float) -> Levelling:
    """As if nothing expired: the emptier disks are filled until the fullest is as near as the goal says, or until
    their room is used."""
    water = max((float(level.share) for level in levels), default=0.0) - goal
    needed = course.bytes_to([level.used_bytes for level in levels], water)
    return Levelling(None, needed, course.shares_at(0.0, needed))


class _Course:
    """How full the disks are after some time, if every new segment goes to the emptiest one."""

    def __init__(self, levels: Sequence[Level], segment_size: int, lifetime_s: float | None) -> None:
        self._levels = levels
        self._segment_size = segment_size
        self._lifetime_s = lifetime_s
        self._most = [float(level.share_with(level.room, segment_size)) for level in levels]
        """How full each disk can become: its room ends at `force`."""

    def shares_at(self, seconds: float, written_bytes: float) -> dict[DiskNumber, float]:
        left = [self._left(level, seconds) for level in self._levels]
        water = self._water(left, written_bytes)
        return {
            level.number: max(min(water, most), used / level.entire_bytes)
            for level, used, most in zip(self._levels, left, self._most, strict=True)
        }

    def spread_at(self, seconds: float, written_bytes: float) -> float:
        shares = self.shares_at(seconds, written_bytes).values()
        return max(shares) - min(shares) if shares else 0.0

    def _left(self, level: Level, seconds: float) -> float:
        """Used bytes without the segments that have expired; those of a disk are of all ages."""
        if not self._lifetime_s:
            return level.used_bytes
        expired = min(1.0, seconds / self._lifetime_s) * level.movable * self._segment_size
        return max(0.0, level.used_bytes - expired)

    def bytes_to(self, left: Sequence[float], water: float) -> float:
        """The bytes that fill the emptier disks up to this share, as far as their room allows."""
        return sum(
            max(0.0, min(water, most) * level.entire_bytes - used)
            for level, used, most in zip(self._levels, left, self._most, strict=True)
        )

    def _water(self, left: list[float], written_bytes: float) -> float:
        """The share up to which the emptier disks are filled by that many bytes."""
        low, high = 0.0, 2.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.bytes_to(left, middle) <= written_bytes else (low, middle)
        return low
