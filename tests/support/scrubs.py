"""Logs of real records to scrub, damage of single places, and what a scrub says about it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import checksums
from support.checksums import backing
from support.pools import PoolMount
from support.records import make_sealed
from support.waiting import eventually

from commitlogfs.store.layout import XATTR_SCRUB
from commitlogfs.store.record import BlankRecordError, Record, decode

FAST = "100GiB"
"""A rate that does not limit anything."""


def fill(pool: PoolMount, indexes: Iterable[int]) -> None:
    """Sealed segments of records that were written long ago."""
    for index in indexes:
        pool.make_segments([index], fill=False)
        content = make_sealed(index * pool.segment_size, pool.segment_size)
        checksums.write(pool.path(index), content, checksums.LONG_AGO_NS + index)


@dataclass(frozen=True)
class Placed:
    """A record and its position in its segment."""

    position: int
    record: Record

    @property
    def end(self) -> int:
        return self.position + self.record.total_size


def records_of(content: bytes, base_offset: int) -> list[Placed]:
    found: list[Placed] = []
    position = 0
    while True:
        try:
            record = decode(content[position : position + (1 << 20)], base_offset + position)
        except BlankRecordError:
            return found
        found.append(Placed(position, record))
        position += record.total_size


def damage(path: Path, position: int, content: bytes) -> None:
    """Change bytes of a disk's file, and no timestamp."""
    status = path.stat()
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, content, position)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(path: Path, position: int, mask: int = 1) -> None:
    with path.open("rb") as file:
        file.seek(position)
        damage(path, position, bytes([file.read(1)[0] ^ mask]))


def scrub(pool: PoolMount, *options: str) -> dict[str, dict[str, Any]]:
    """Run one from begin to end; the damaged segments by name."""
    ran = pool.cli("scrub", "start", pool.name, "--rate", FAST, "--wait", *options)
    assert ran.status in (0, 1), ran.err + ran.out
    found = damaged(pool)
    assert ran.status == bool(found), ran.out
    return found


def report(pool: PoolMount) -> dict[str, Any]:
    found: dict[str, Any] = pool.ask("status")["scrub"]
    return found


def damaged(pool: PoolMount) -> dict[str, dict[str, Any]]:
    return {one["segment"]: one for one in report(pool)["damaged"]}


def await_recorded(pool: PoolMount) -> None:
    """A daemon records soon after its start how far the scrub of each disk is; then it lets the directories be."""
    eventually(lambda: all(XATTR_SCRUB in os.listxattr(disk) for disk in pool.disks))


def await_state(pool: PoolMount, state: str) -> None:
    eventually(lambda: report(pool)["state"] == state, shown=lambda: str(report(pool)))


def has_verdict(pool: PoolMount, index: int) -> bool:
    """Whether the disk's file records one."""
    return "user.commitlogfs.verdict" in os.listxattr(backing(pool, index))
