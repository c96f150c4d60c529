"""Which damaged segments a copy from elsewhere can repair, and what proves that a copy is right. Pure.

The checksum from before the damage is proof by itself, also of a segment that was sealed early and so has no blank
record. Without it, a copy needs an unbroken chain of records with right checksums (store/sealed_segment.py). That
proves no header, property or unused byte, and not that it is a copy of this segment. So it has to be as this table
says:

    verdict              the file has a checksum of it          it has none
    rotted, unreadable   the same checksum                      equal outside the damaged ranges
    header-or-padding    the same checksum                      not repairable
    written-broken, or   equal outside the damaged ranges: the checksum is that of the broken content
    damaged since then
    write-lost           not repairable: memory may show more than any copy has
    unknown              the same checksum, and a right        not repairable
                         chain, as it may be that of broken
                         content

A segment that was written broken, and of which only the later damage is known, has a checksum that no right copy
has: only a copy of the broken content repairs it. It becomes what was sealed, and the former damage can be found
and repaired afterwards. To accept a copy that is equal outside the damaged ranges would also accept one whose
headers or properties are wrong within them, and which the checksum excludes if the segment was sealed right.

Ranges that a move could not read count as damaged, too. A segment that has such ranges gets no checksum.
"""

from collections.abc import Iterable

from commitlogfs.store.scrub.verdict import Kind, Range, Verdict


def why_not_repairable(verdict: Verdict, checksum: bytes | None) -> str:
    """Why no copy can repair a segment with this verdict and checksum; empty if one can."""
    if verdict.kind is Kind.WRITE_LOST:
        return "memory may show what its disk lacks; save it (docs/runbooks/lost-writes.md)"
    if verdict.kind is Kind.HEADER_OR_PADDING and checksum is None:
        return "it has lost its checksum, so nothing shows which copy is right"
    if verdict.kind is Kind.UNKNOWN and checksum is None:
        return "its verdict cannot be read, and it has no checksum; `commitlogfs scrub start` finds the damage anew"
    return ""


def needs_chain(kind: Kind) -> bool:
    """Whether the required checksum does not suffice: it may be that of a segment that was written broken."""
    return kind is Kind.UNKNOWN


def required_checksum(verdict: Verdict, checksum: bytes | None) -> bytes | None:
    """The checksum that a copy must have; None if that is not known."""
    return None if verdict.kind is Kind.WRITTEN_BROKEN or verdict.was_sealed_broken else checksum


def required_equal(
    verdict: Verdict, checksum: bytes | None, size: int, lost: Iterable[tuple[int, int]] = ()
) -> tuple[Range, ...]:
    """The ranges in which a copy must be equal to the damaged segment of this size; none if its checksum decides,
    or if the damage may be anywhere. The segment lacks what is `lost`, because a move could not read it."""
    if not verdict.is_located or required_checksum(verdict, checksum) is not None:
        return ()
    found, position = [], 0
    for damaged in sorted([*verdict.ranges, *(Range(*one) for one in lost)]):
        if min(damaged.begin, size) > position:
            found.append(Range(position, min(damaged.begin, size)))
        position = max(position, damaged.end)
    if position < size:
        found.append(Range(position, size))
    return tuple(found)
