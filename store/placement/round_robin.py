"""The next eligible disk after the predecessor segment's: the default.

Unlike RocketMQ's modulo, the rotation does not jump when a disk leaves or joins the eligible set.
"""

from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementRequest, rotate_from


class RoundRobin:
    name = "round-robin"

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        numbers = sorted(candidate.number for candidate in candidates)
        if not numbers:
            return []
        if request.predecessor is None:
            # A log may begin anywhere (a new slave does): keep segment k on disk k mod N from the start.
            members = sorted(request.members)
            wanted = members[request.base_offset // request.segment_size % len(members)]
            first = next((i for i, number in enumerate(numbers) if number >= wanted), 0)
        else:
            first = next((i for i, number in enumerate(numbers) if number > request.predecessor), 0)
        return rotate_from(numbers, first)
