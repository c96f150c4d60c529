"""Placement policies: from the eligible disks to the order in which they are tried for a new segment. Pure.

Nothing here measures a disk or makes a segment.
"""

from commitlogfs.store.placement.base import Candidate, PlacementPolicy, PlacementRequest
from commitlogfs.store.placement.emptier_first import EmptierFirst
from commitlogfs.store.placement.modulo import Modulo
from commitlogfs.store.placement.round_robin import RoundRobin
from commitlogfs.store.placement.weighted import Weighted

POLICIES: dict[str, PlacementPolicy] = {policy.name: policy for policy in (RoundRobin(), Modulo(), Weighted())}

__all__ = ["POLICIES", "Candidate", "EmptierFirst", "PlacementPolicy", "PlacementRequest"]
