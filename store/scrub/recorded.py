"""Records of damage with a segment's file: the verdict (store/scrub/verdict.py), and the ranges that a move could
not read (store/moves/unreadable.py). A record that cannot be read still says that the segment is damaged: it stands
for a verdict of the kind UNKNOWN. All functions block."""

import errno
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from commitlogfs.store import layout
from commitlogfs.store.files import durable, safe_open
from commitlogfs.store.files.hashing import read_verdict, rebind_checksum
from commitlogfs.store.moves.unreadable import UnreadableRanges, parse_unreadable
from commitlogfs.store.scrub.verdict import (
    FORMAT_VERSION,
    Kind,
    Verdict,
    combine,
    format_verdict,
    parse_recorded,
    parse_verdict,
    shortest,
    unreadable_verdict,
    whole_verdict,
)

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})


class Recorded(NamedTuple):
    """Record of one file."""

    name: bytes
    verdict: Verdict | None
    unreadable: UnreadableRanges
    illegible: str = ""
    """Which record could not be read, and why; empty if none."""
    is_recorded: bool = True
    """Whether the file has an attribute for the verdict."""


def write_verdict(dirfd: int, name: bytes, ino: int, verdict: Verdict) -> Verdict:
    """Add a verdict to what the file records, which the daemon may not have read yet; durable. Returns what both
    say. A disk without room for all of it gets a shorter one, and a record that cannot be read gives way only to
    one that says more. Raises OSError."""
    fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
    try:
        present = read_verdict(fd)
        former = parse_verdict(present)
        if not present or former is not None or verdict.kind is not Kind.UNKNOWN:
            verdict = combine(former, verdict)
            _set_verdict(fd, verdict)
        os.fsync(fd)
    finally:
        os.close(fd)
    return verdict


def _set_verdict(fd: int, verdict: Verdict) -> None:
    try:
        os.setxattr(fd, layout.XATTR_VERDICT, format_verdict(verdict))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        os.setxattr(fd, layout.XATTR_VERDICT, format_verdict(shortest(verdict)))


def verdict_of_copy(
    recorded: bytes | None, unreadable: UnreadableRanges, size: int, now_s: float, *, is_rotten: bool = False
) -> bytes:
    """The attribute of the copy of a segment, empty without a verdict. `recorded` is that of its source, as of
    SegmentCopy; `unreadable` are the ranges that could not be read either. `now_s` is in seconds since 1970.
    `is_rotten`: the copy gets a checksum that it does not have, so it must never be without a verdict."""
    if recorded and not unreadable.ranges and not is_rotten:
        return recorded
    verdict = parse_recorded(recorded, size, now_s)
    if unreadable.ranges:
        verdict = combine(verdict, unreadable_verdict(unreadable.ranges, round(now_s)))
    if is_rotten:
        verdict = combine(verdict, whole_verdict(Kind.ROTTED, size, round(now_s)))
    return b"" if verdict is None else format_verdict(verdict)


def remove_verdict(dirfd: int, name: bytes, ino: int, *, binds_checksum: bool) -> None:
    """Durable; also on a read-only filesystem if the file records none, and has no checksum to be bound.
    `binds_checksum`: the checksum that the file has, of whatever state, is bound to the present one first: no other
    one is computed. If that cannot be done, the verdict stays, which alone keeps the checksum. A damaged record of
    unreadable ranges stands for a verdict, and is removed, too. Raises OSError."""
    if binds_checksum:
        fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
        try:
            rebind_checksum(fd)
        finally:
            os.close(fd)
    path = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
    present = os.listxattr(path, follow_symlinks=False)
    if layout.XATTR_UNREADABLE in present:
        raw = os.getxattr(path, layout.XATTR_UNREADABLE, follow_symlinks=False)
        if not parse_unreadable(raw).ranges:
            durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_UNREADABLE)
    if layout.XATTR_VERDICT in present:
        durable.remove_file_xattr(dirfd, name, ino, layout.XATTR_VERDICT)


def find_recorded(dirfd: int, names: Iterable[bytes]) -> tuple[list[Recorded], list[bytes]]:
    """The records of the files in a directory, and the names of those that cannot be read now. One system call for
    each file that records nothing."""
    found, unread = list[Recorded](), list[bytes]()
    for name in names:
        path = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
        try:
            present = os.listxattr(path, follow_symlinks=False)
            verdict, unreadable = (
                os.getxattr(path, attribute, follow_symlinks=False) if attribute in present else None
                for attribute in (layout.XATTR_VERDICT, layout.XATTR_UNREADABLE)
            )
            status = None if verdict is unreadable is None else os.lstat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENODATA:  # the attribute was removed a moment ago
                unread.append(name)
            continue
        if status is not None:
            found.append(_recorded(name, verdict, unreadable, status))
    return found, unread


def _recorded(name: bytes, verdict: bytes | None, unreadable: bytes | None, status: os.stat_result) -> Recorded:
    """The record that these attributes are; None stands for one that the file lacks."""
    known = None if verdict is None else parse_verdict(verdict)
    ranges = UnreadableRanges() if unreadable is None else parse_unreadable(unreadable)
    if known is not None:
        return Recorded(name, known, ranges)
    illegible = ""
    if verdict is not None:
        illegible = f"the verdict is {_fault(verdict)}"
    elif not ranges.ranges:
        illegible = "the record of unreadable ranges is damaged"
    if illegible:  # the record was written when the inode last changed, or before
        known = whole_verdict(Kind.UNKNOWN, status.st_size, int(status.st_ctime))
    return Recorded(name, known, ranges, illegible, is_recorded=verdict is not None)


def _fault(verdict: bytes) -> str:
    version = verdict[0] if verdict else FORMAT_VERSION
    return (
        "damaged" if version == FORMAT_VERSION else f"damaged, or of version {version} instead of {FORMAT_VERSION}"
    )
