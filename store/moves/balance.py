"""Which disks give segments to which others until all are about equally full, with as few moves as possible. Pure.

After the moves, the shares of all disks lie in one interval [low, low + width]. For a given `low`, each disk has a
least and a largest number of segments that it can take (less than 0: give). The least number of moves for it is
what the disks below must take, or what the disks above must give, whichever is more. The first grows with `low`,
the second falls, so the best `low` is where they cross.

A disk that cannot get into the interval, because it has nothing to give or no room, gets as near as it can.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from commitlogfs.store.disks.membership import DiskNumber

GOAL: Final = Fraction(2, 100)
"""Largest difference between the shares of two disks that counts as equal: two points."""
_ONE: Final = 10**9
"""The share of a full disk, in the integers in which `low` is searched."""


@dataclass(frozen=True, slots=True)
class Level:
    """How full a disk that takes part is. Its share is used / entire, data of others included."""

    number: DiskNumber
    used_bytes: int
    """Without files that have left the log and are only open still."""
    entire_bytes: int
    """Used and available; more than 0."""
    movable: int
    """Number of segments that can leave it."""
    room: int
    """Number of segments that it can take."""

    @property
    def share(self) -> Fraction:
        return Fraction(self.used_bytes, self.entire_bytes)

    def share_with(self, change: int, segment_size: int) -> Fraction:
        """Its share once it has taken that many segments; less than 0: given."""
        return Fraction(self.used_bytes + change * segment_size, self.entire_bytes)


@dataclass(frozen=True, slots=True)
class Flow:
    """Segments to move from one disk to another."""

    source: DiskNumber
    target: DiskNumber
    segments: int


@dataclass(frozen=True, slots=True)
class Balance:
    """The fewest moves after which the disks are equally full, as far as that is possible."""

    changes: dict[DiskNumber, int]
    """Number of segments that each disk takes; less than 0: gives."""
    flows: tuple[Flow, ...]
    """Most segments first. After one of these moves, the others are still the fewest."""

    @property
    def segments(self) -> int:
        return sum(flow.segments for flow in self.flows)


def spread(levels: Iterable[Level]) -> Fraction:
    """Difference between the shares of the fullest and the emptiest disk; 0 for less than two disks."""
    shares = [level.share for level in levels]
    return max(shares) - min(shares) if shares else Fraction(0)


def tolerance(levels: Iterable[Level], segment_size: int) -> Fraction:
    """The spread to reach: two points, or the share of one segment on the smallest disk if that is more."""
    return Fraction(_width(levels, segment_size), _ONE)


def _width(levels: Iterable[Level], segment_size: int) -> int:
    # One unit more than a segment's share, so that `low` needs to be searched among whole numbers only.
    largest = max((-(-segment_size * _ONE // level.entire_bytes) for level in levels), default=0)
    return max(int(GOAL * _ONE), largest + 1)


class _Search:
    """The numbers of segments that the disks may take, depending on `low`."""

    def __init__(self, levels: Sequence[Level], segment_size: int) -> None:
        self._levels = levels
        self._unit = segment_size * _ONE
        self._width = _width(levels, segment_size)

    def fewest(self, low: int) -> list[int]:
        """The number that each disk must take at least, so that its share is not below `low`."""
        return [
            _clamped(level, -((level.used_bytes * _ONE - low * level.entire_bytes) // self._unit))
            for level in self._levels
        ]

    def most(self, low: int) -> list[int]:
        """The number that each disk may take at most, so that its share is not above the interval."""
        high = low + self._width
        return [
            _clamped(level, (high * level.entire_bytes - level.used_bytes * _ONE) // self._unit)
            for level in self._levels
        ]

    def best_low(self) -> int:
        """The lower end of an interval that needs the fewest moves."""
        lowest = _first(-self._width, _ONE, lambda low: sum(self.most(low)) >= 0)
        highest = _first(lowest, _ONE, lambda low: sum(self.fewest(low + 1)) > 0)
        crossing = _first(lowest, highest, lambda low: self._to_take(low) >= self._to_give(low))
        return min(
            (crossing, max(lowest, crossing - 1)), key=lambda low: max(self._to_take(low), self._to_give(low))
        )

    def _to_take(self, low: int) -> int:
        return sum(count for count in self.fewest(low) if count > 0)

    def _to_give(self, low: int) -> int:
        return -sum(count for count in self.most(low) if count < 0)


def _clamped(level: Level, change: int) -> int:
    return max(-level.movable, min(level.room, change))


def _first(low: int, high: int, is_reached: Callable[[int], bool]) -> int:
    """The first number from `low` on that meets a condition, as do all after it; `high` if none before it does."""
    return low + bisect_left(range(low, high), True, key=is_reached)


def balance(levels: Sequence[Level], segment_size: int) -> Balance:
    """The fewest moves. None are needed if the spread is within `tolerance`."""
    if spread(levels) <= tolerance(levels, segment_size):
        return Balance({level.number: 0 for level in levels}, ())
    search = _Search(levels, segment_size)
    low = search.best_low()
    fewest, most = search.fewest(low), search.most(low)
    changes = [max(least, min(largest, 0)) for least, largest in zip(fewest, most, strict=True)]

    def share(index: int) -> Fraction:
        return levels[index].share_with(changes[index], segment_size)

    while (missing := sum(changes)) != 0:  # disks within the interval make up for the difference
        if missing > 0:
            index = max((i for i, change in enumerate(changes) if change > fewest[i]), key=share)
            changes[index] -= 1
        else:
            index = min((i for i, change in enumerate(changes) if change < most[i]), key=share)
            changes[index] += 1
    by_number = {level.number: change for level, change in zip(levels, changes, strict=True)}
    return Balance(by_number, _flows(by_number))


def _flows(changes: dict[DiskNumber, int]) -> tuple[Flow, ...]:
    """Sources and targets in pairs, by their numbers: so the pairs stay when some of the moves are done."""
    giving = [[number, -change] for number, change in sorted(changes.items()) if change < 0]
    taking = [[number, change] for number, change in sorted(changes.items()) if change > 0]
    flows = []
    while giving and taking:
        (source, has), (target, takes) = giving[0], taking[0]
        count = min(has, takes)
        flows.append(Flow(DiskNumber(source), DiskNumber(target), count))
        giving[0][1] -= count
        taking[0][1] -= count
        giving = giving if giving[0][1] else giving[1:]
        taking = taking if taking[0][1] else taking[1:]
    return tuple(sorted(flows, key=lambda flow: -flow.segments))


def order_for_target(offsets: Iterable[int], on_target: Iterable[int], begin: int) -> list[int]:
    """In which order segments of a disk are to be moved to another one: first those that are furthest from all that
    the other has, so that neighbours are on different disks, and each disk has a part of every time.

    All are base offsets. `begin` is that of the log: what is near to it expires soon, and comes late.
    """
    there = sorted({begin, *on_target})

    def distance(offset: int) -> int:
        index = bisect_left(there, offset)
        around = there[max(0, index - 1) : index + 1]
        return min(abs(offset - other) for other in around)

    return sorted(offsets, key=lambda offset: (-distance(offset), -offset))
