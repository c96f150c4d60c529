"""Shares in proportion to free space times weight; the policy keeps no state.

Weighted rendezvous hashing: each disk gets a score from a hash of (disk, offset), and the best score wins. So a
disk with twice the free space gets twice the segments, and a retry of the same offset gives the same order. "Most
free space first" would put long runs of neighbouring segments on one disk.
"""

import math

import xxhash

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementRequest


class Weighted:
    name = "weighted"

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        def score(candidate: Candidate) -> float:
            digest = xxhash.xxh3_64_intdigest(f"{candidate.disk_id}:{request.base_offset}".encode())
            share = candidate.weight * max(candidate.available_bytes, 1)
            return -math.log((digest + 1) / 2**64) / share

        return [candidate.number for candidate in sorted(candidates, key=lambda c: (score(c), c.number))]
