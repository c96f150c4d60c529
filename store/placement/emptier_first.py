"""Placement while a rebalance by placement runs: new segments go to the disks that are less full than the others.

Only disks below the common share are preferred, the emptiest one first. The disk of the segment before comes last
among them, so that two emptier disks take turns. The other disks follow in the order of the configured policy.
"""

from fractions import Fraction

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementPolicy, PlacementRequest


class EmptierFirst:
    name = "emptier-first"

    def __init__(self, otherwise: PlacementPolicy) -> None:
        """`otherwise` ranks the disks that are not below the common share."""
        self._otherwise = otherwise

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        common = _common_share(candidates)
        below = [candidate for candidate in candidates if candidate.used_ratio < common]
        below.sort(key=lambda c: (c.number == request.predecessor, c.used_ratio, c.number))
        preferred = [candidate.number for candidate in below]
        others = tuple(candidate for candidate in candidates if candidate.number not in preferred)
        return [*preferred, *self._otherwise.rank(request, others)]


def _common_share(candidates: tuple[Candidate, ...]) -> Fraction:
    """The share that each disk would have if all were equally full."""
    used = sum(candidate.used_bytes for candidate in candidates)
    entire = used + sum(candidate.available_bytes for candidate in candidates)
    return Fraction(used, entire) if entire else Fraction(0)
