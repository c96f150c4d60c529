"""Ranges of the log that no segment covers. Pure."""

from collections.abc import Iterable

from commitlogfs.store.segment import BaseOffset


def uncovered(start: int, end: int, covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of [start, end) outside the `covered` ranges, which are in ascending order."""
    missing, at = [], start
    for begin, stop in covered:
        if begin >= end:
            break
        if begin > at:
            missing.append((at, begin))
        at = max(at, stop)
    if at < end:
        missing.append((at, end))
    return missing


def gaps_between(bases: Iterable[int], segment_size: int) -> list[tuple[BaseOffset, BaseOffset]]:
    """The ranges [start, end) missing between whole segments with these base offsets, in ascending order."""
    covered = [(base, base + segment_size) for base in bases]
    if not covered:
        return []
    missing = uncovered(covered[0][0], covered[-1][1], covered)
    return [(BaseOffset(start), BaseOffset(end)) for start, end in missing]
