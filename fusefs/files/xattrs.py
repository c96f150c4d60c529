"""Read-only extended attributes of a segment (names in docs/reference/status.md)."""

import os
from collections.abc import Callable

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import SegmentState

PREFIX = b"user.commitlogfs."
STATE = PREFIX + b"state"
CHECKSUM = PREFIX + b"xxh3"
ACL_PREFIX = b"system.posix_acl_"
"""Access control lists: there are none, only mode bits."""


def _full_path(disk: Disk, file: Segment) -> bytes:
    return os.fsencode(disk.path) + b"/" + file.path


_ATTRIBUTES: dict[bytes, Callable[[Disk, Segment], bytes]] = {
    PREFIX + b"disk": lambda disk, file: os.fsencode(disk.path),
    PREFIX + b"disk_id": lambda disk, file: disk.disk_id.encode(),
    PREFIX + b"fullpath": _full_path,
    PREFIX + b"base_offset": lambda disk, file: b"%d" % file.base_offset,
    PREFIX + b"allocated_bytes": lambda disk, file: b"%d" % (unpack(file.attributes).allocated_bytes),
}


def names() -> list[bytes]:
    """Names of the attributes that every file has."""
    return [*_ATTRIBUTES, STATE]


def value(name: bytes, disk: Disk, file: Segment) -> bytes | None:
    """Value of any attribute but STATE and CHECKSUM, which have to be read from the disk. None for an unknown
    name."""
    read = _ATTRIBUTES.get(name)
    return None if read is None else read(disk, file)


def successors(commitlog: CommitLog, file: Segment) -> list[Segment]:
    """The segments whose content decides between active and sealed: the next two (a broker makes at most
    two segments ahead)."""
    following: list[Segment] = []
    for segment in commitlog.catalog.after(file.base_offset):
        following.append(segment)
        if len(following) == 2:
            break
    return following


def state_of(file: Segment, own_data: bool, successor_data: bool) -> SegmentState:
    if file.role is Role.SEGMENT and successor_data:
        return SegmentState.SEALED
    return SegmentState.ACTIVE if own_data else SegmentState.PREALLOCATED
