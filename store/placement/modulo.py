"""RocketMQ's own policy: (offset / segment size) mod n over the eligible paths, sorted as Java strings.

Source: MultiPathMappedFileQueue#tryCreateMappedFile of 5.5.0 (and RIP-7's hash of the create offset).
"""

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement.base import Candidate, PlacementRequest, rotate_from


class Modulo:
    name = "modulo"

    def rank(self, request: PlacementRequest, candidates: tuple[Candidate, ...]) -> list[DiskNumber]:
        if not candidates:
            return []
        # Java compares strings by UTF-16 code unit, which big-endian bytes reproduce.
        ordered = sorted(candidates, key=lambda candidate: candidate.path.encode("utf-16-be", "surrogatepass"))
        numbers = [candidate.number for candidate in ordered]
        return rotate_from(numbers, request.base_offset // request.segment_size)
