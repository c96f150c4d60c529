"""Shares in proportion to free space times weight, without any memory.

Weighted rendezvous hashing: each disk draws a deterministic lot from (disk, offset) and the best draw
wins, so a disk with twice the free space gets twice the segments, a retry of the same offset gets the
same answer, and no disk takes a long run of neighbours the way "most free space first" would.
"""

import math

import xxhash

from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementRequest


class Weighted:
    name = "weighted"

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        def lot(candidate: Candidate) -> float:
            draw = xxhash.xxh3_64_intdigest(f"{candidate.disk_id}:{request.base_offset}".encode())
            share = candidate.weight * max(candidate.available_bytes, 1)
            return -math.log((draw + 1) / 2**64) / share

        return [candidate.number for candidate in sorted(candidates, key=lambda c: (lot(c), c.number))]
