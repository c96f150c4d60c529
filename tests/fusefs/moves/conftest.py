"""A pool whose segments are moved, without a mount."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from support.pooled import SIZE, Parts, make, open_parts, place, segment

from commitlogfs.store.moves.copy import SegmentCopy

COUNT = 8


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    """Eight segments on three disks. Each byte of a segment is its index."""
    with open_parts(workdir) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            place(parts, index).write_bytes(bytes([index]) * SIZE)
            trio.run(parts.attributes.refresh, segment(parts, index))
        yield parts


@pytest.fixture
def when_verified(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Sets what happens between the verification of a copy and its name, in a thread of the disk."""
    verify = SegmentCopy.verify_chunk

    def let(act: Callable[[], None]) -> None:
        def act_at_its_end(copy: SegmentCopy, most: int) -> int:
            count = verify(copy, most)
            if not count:
                act()
            return count

        monkeypatch.setattr(SegmentCopy, "verify_chunk", act_at_its_end)

    return let
