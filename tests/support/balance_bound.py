"""A lower bound of the moves that make disks equally full, found in another way than store/moves/balance.py."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class Filled(NamedTuple):
    """A disk whose every segment may go, and that has room for all that could come."""

    used: int
    entire: int
    segments: int


def fewest_moves(disks: Sequence[Filled], size: int, width: Fraction) -> int:
    """The least number of segments that must come in, or go out, for the best of all intervals of shares."""
    ends = set()
    for disk in disks:
        for change in range(-disk.segments, (disk.entire - disk.used) // size + 1):
            share = Fraction(disk.used + change * size, disk.entire)
            ends |= {share, share - width}
    found = []
    for low in ends:
        least = [-((disk.used - low * disk.entire) // size) for disk in disks]
        most = [((low + width) * disk.entire - disk.used) // size for disk in disks]
        if sum(least) <= 0 <= sum(most):
            found.append(max(sum(n for n in least if n > 0), -sum(n for n in most if n < 0)))
    return int(min(found))
