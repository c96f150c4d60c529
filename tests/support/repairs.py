"""Damaged segments, and a slave's directory that has the right ones."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support import scrubs
from support.checksums import backing
from support.pools import PoolMount
from support.records import make_sealed

from commitlogfs.store import layout

ROT = 100
"""Position of the byte that `rot` changes: in the body of the first message."""


def content(pool: PoolMount, index: int) -> bytes:
    """As scrubs.fill writes it."""
    return make_sealed(index * pool.segment_size, pool.segment_size)


def make_slave(pool: PoolMount, directory: Path, indexes: Iterable[int]) -> Path:
    directory.mkdir()
    for index in indexes:
        (directory / pool.path(index).name).write_bytes(content(pool, index))
    return directory


def rot(pool: PoolMount, *indexes: int, position: int = ROT) -> None:
    """Damage segments on their disks, and let a scrub find it."""
    for index in indexes:
        scrubs.flip(backing(pool, index), position)
    assert set(scrubs.scrub(pool)) >= {pool.path(index).name for index in indexes}


def rotten(pool: PoolMount, index: int, position: int = ROT) -> bytes:
    """The content of such a segment."""
    right = bytearray(content(pool, index))
    right[position] ^= 1
    return bytes(right)


REPAIRED = "test: 1 segment repaired (1.0 MiB)\ntest: a broker that has a repaired segment open reads"


def restore(pool: PoolMount, *options: object, status: int = 0) -> str:
    ran = pool.cli("restore", pool.name, *options)
    assert ran.status == status, ran.err + ran.out
    return ran.out + ran.err


def set_aside(pool: PoolMount) -> list[dict[str, Any]]:
    """As `status` reports it."""
    found: list[dict[str, Any]] = scrubs.report(pool)["set_aside"]
    return found


def files_aside(pool: PoolMount) -> list[Path]:
    """As the disks have it."""
    found: list[Path] = []
    for disk in pool.disks:
        with contextlib.suppress(FileNotFoundError):  # the daemon removes the directory when it is empty
            found += (Path(disk) / os.fsdecode(layout.RETIRED_DIRECTORY)).iterdir()
    return sorted(found)


def files_of(pool: PoolMount, index: int) -> list[Path]:
    """Under the segment's name."""
    paths = [Path(disk) / pool.path(index).name for disk in pool.disks]
    return [path for path in paths if path.exists()]
