"""Ranges of a segment that could not be read when it was moved away from a failing disk, and are zeros in its copy.

An attribute of the copy records it, because nothing else shows which zeros were once messages.
"""

import errno
import json
import os
from collections.abc import Iterable
from typing import Final

from commitlogfs.store import layout

MOST_RANGES: Final = 100
"""Ranges of one segment: about 2 KiB of the 4 KiB that ext4 has for the attributes of a file."""

_LONGEST: Final = (1 << 63) - 1


class UnreadableRanges:
    """Ranges [begin, end) of positions in a segment, in ascending order. Pure."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges` are in any order."""
        self.ranges: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            self.add(begin, end)

    def add(self, begin: int, end: int) -> None:
        """`begin` is not before the last end. Of too many ranges, the two nearest become one."""
        if self.ranges and self.ranges[-1][1] == begin:
            self.ranges[-1] = (self.ranges[-1][0], end)
            return
        self.ranges.append((begin, end))
        if len(self.ranges) > MOST_RANGES:
            gaps = [after[0] - before[1] for before, after in zip(self.ranges, self.ranges[1:], strict=False)]
            at = gaps.index(min(gaps))
            self.ranges[at : at + 2] = [(self.ranges[at][0], self.ranges[at + 1][1])]

    def __len__(self) -> int:
        """Number of bytes."""
        return sum(end - begin for begin, end in self.ranges)


def write_unreadable(fd: int, unreadable: UnreadableRanges) -> None:
    """Not durable before the file is. Raises OSError."""
    if unreadable.ranges:
        text = json.dumps(unreadable.ranges, separators=(",", ":")).encode()
        os.setxattr(fd, layout.XATTR_UNREADABLE, text)


def read_unreadable(file: int | str) -> UnreadableRanges:
    """The ranges that a file, given as descriptor or path, records; none if its attribute cannot be read."""
    try:
        return parse_unreadable(read_unreadable_record(file) or b"")
    except OSError:
        return UnreadableRanges()


def read_unreadable_record(file: int | str) -> bytes | None:
    """The attribute of a file, given as descriptor or path; None without one. Raises OSError."""
    try:
        return os.getxattr(file, layout.XATTR_UNREADABLE, follow_symlinks=isinstance(file, int))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
    return None


def parse_unreadable(raw: bytes) -> UnreadableRanges:
    """The ranges of an attribute; none for a damaged one, or one that no version writes."""
    try:
        ranges = [(begin, end) for begin, end in json.loads(raw)]
    except (ValueError, TypeError, RecursionError):
        return UnreadableRanges()
    are_positions = all(type(at) is int and 0 <= at <= _LONGEST for one in ranges for at in one)
    if not are_positions or any(begin >= end for begin, end in ranges):
        return UnreadableRanges()
    return UnreadableRanges(ranges)


def find_unreadable(dirfd: int, names: Iterable[bytes]) -> list[tuple[bytes, UnreadableRanges]]:
    """Those of the files in a directory that record unreadable ranges. One system call for each file; blocks."""
    found = ((name, read_unreadable(f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}")) for name in names)
    return [(name, unreadable) for name, unreadable in found if unreadable.ranges]
