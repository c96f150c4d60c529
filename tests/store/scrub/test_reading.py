"""Reading one segment: when the read may be ended."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlogfs.store.clock import SystemClock
from commitlogfs.store.scrub.reading import CHUNK_BYTES, SegmentReader
from commitlogfs.store.segment import BaseOffset

NAME = b"00000000000000000000"


class StoppedError(Exception):
    pass


@contextmanager
def reader_of(directory: Path, content: bytes) -> Iterator[SegmentReader]:
    path = directory / NAME.decode()
    path.write_bytes(content)
    dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    reader = SegmentReader(dirfd, NAME, path.stat().st_ino, BaseOffset(0), SystemClock())
    try:
        yield reader
    finally:
        reader.close()
        os.close(dirfd)


def test_a_read_ends_while_it_searches_a_chunk(workdir: Path) -> None:
    """And the bytes of the chunk are reported once."""
    calls: list[int] = []

    def next_chunk(done: int, seconds: float) -> int:
        calls.append(done)
        if len(calls) == stop_at:
            raise StoppedError
        return CHUNK_BYTES

    stop_at = 5
    with reader_of(workdir, b"\xda" * CHUNK_BYTES) as reader:
        with pytest.raises(StoppedError):
            reader.examine(next_chunk)
        assert calls == [0] * 5
        calls, stop_at = [], 0
        (damage,) = reader.examine(next_chunk).damages
    assert damage.range == (0, CHUNK_BYTES)
    assert [done for done in calls if done] == [CHUNK_BYTES]
