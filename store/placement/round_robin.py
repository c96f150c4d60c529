"""The default policy: the next eligible disk after that of the segment before.

Unlike RocketMQ's modulo, the rotation does not jump when a disk becomes eligible or stops being so.
"""

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementRequest, rotate_from


class RoundRobin:
    name = "round-robin"

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        numbers = sorted(candidate.number for candidate in candidates)
        if not numbers:
            return []
        if request.predecessor is None:
            # A log may begin at any offset (that of a new slave does), and segment k belongs on disk k mod N.
            members = sorted(request.members)
            regular = members[request.base_offset // request.segment_size % len(members)]
            first = next((i for i, number in enumerate(numbers) if number >= regular), 0)
        else:
            first = next((i for i, number in enumerate(numbers) if number > request.predecessor), 0)
        return rotate_from(numbers, first)
