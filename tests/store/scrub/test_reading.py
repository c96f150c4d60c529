"""Reading one segment: when the read may be ended."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash
from support.records import make_sealed

from commitlogfs.store import layout
from commitlogfs.store.clock import SystemClock
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.scrub.reading import CHUNK_BYTES, SegmentReader
from commitlogfs.store.scrub.verdict import Kind, decide, format_verdict, whole_verdict
from commitlogfs.store.segment import BaseOffset

NAME = b"00000000000000000000"
SIZE = 1 << 20


class StoppedError(Exception):
    pass


def next_chunk_at_once(_done: int, _seconds: float) -> int:
    return CHUNK_BYTES


@contextmanager
def reader_of(
    directory: Path, content: bytes, prepare: Callable[[Path], object] = lambda _: None
) -> Iterator[SegmentReader]:
    path = directory / NAME.decode()
    path.write_bytes(content)
    prepare(path)
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


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Kind.ROTTED, Kind.HEADER_OR_PADDING),
        (Kind.HEADER_OR_PADDING, Kind.HEADER_OR_PADDING),
        (Kind.UNREADABLE, None),
        (Kind.WRITTEN_BROKEN, None),
    ],
)
def test_a_changed_segment_keeps_its_checksum_after_its_touch(
    workdir: Path, kind: Kind, found: Kind | None
) -> None:
    """The verdict on it proves that it had one, and differs from it."""
    content = bytearray(make_sealed(0, SIZE))

    def prepare(path: Path) -> None:
        with path.open("rb") as file:
            write_checksum(file.fileno(), xxhash.xxh3_128(bytes(content)).digest())
        content[-1] ^= 1
        path.write_bytes(content)
        os.utime(path, (1, 1))
        os.setxattr(path, layout.XATTR_VERDICT, format_verdict(whole_verdict(kind, SIZE, 1)))

    with reader_of(workdir, bytes(content), prepare) as reader:
        assert reader.has_checksum is (found is not None)
        verdict = decide(reader.examine(next_chunk_at_once), 1)
    assert (None if verdict is None else verdict.kind) == found
