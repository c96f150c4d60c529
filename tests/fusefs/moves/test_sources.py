"""Sources of moves that become segments again, without a kernel."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
from support.pooled import Parts, make, open_parts, place, segment

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Segment

COUNT = 8


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    with open_parts(workdir) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            trio.run(parts.attributes.refresh, segment(parts, index))
        yield parts


@contextmanager
def writer(parts: Parts, index: int) -> Iterator[BinaryIO]:
    """A process that has a segment open."""
    with place(parts, index).open("r+b", buffering=0) as file:
        yield file


async def move(parts: Parts, index: int) -> Segment:
    """To the next disk. Returns what it was copied from, which is set aside while it is open."""
    file = segment(parts, index)
    target = DiskNumber(file.disk % len(parts.commitlog.disks) + 1)
    await parts.mover.move(file, target, lambda: 0, lambda: True)
    await parts.sources.finish()
    return file


def test_a_put_back_source_has_owner_and_mode_of_its_copy(parts: Parts) -> None:
    """A caller has changed them since the move."""
    owner = (77, 88) if os.geteuid() == 0 else (os.geteuid(), os.getegid())

    async def main() -> None:
        with writer(parts, 1) as file:
            source = await move(parts, 1)
            wanted = Changes(mode=0o604, uid=owner[0], gid=owner[1])
            await parts.attributes.change(segment(parts, 1), wanted)
            file.write(b"late")
            assert await parts.sources.put_back_if_changed(source)
            assert segment(parts, 1) is source

    trio.run(main)
    seen = place(parts, 1).stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o604, *owner)
    assert place(parts, 1).read_bytes()[:4] == b"late"
