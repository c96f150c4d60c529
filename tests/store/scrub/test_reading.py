"""Reading one segment: when the read may be ended."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash
from support.records import V1, V2, make_blank, make_sealed
from support.scrubs import records_of

from commitlogfs.store import layout
from commitlogfs.store.clock import SystemClock
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.scrub.reading import CHUNK_BYTES, SegmentReader
from commitlogfs.store.scrub.verdict import Kind, Message, Range, Verdict, decide
from commitlogfs.store.segment import BaseOffset

NAME = b"00000000000000000000"
SIZE = 1 << 20
CONTENT = make_sealed(0, SIZE)


class StoppedError(Exception):
    pass


def next_chunk_at_once(_done: int, _seconds: float) -> int:
    return CHUNK_BYTES


@contextmanager
def reader_of(
    directory: Path, content: bytes, prepare: Callable[[Path], object] = lambda _: None, size: int = 0
) -> Iterator[SegmentReader]:
    path = directory / NAME.decode()
    path.write_bytes(content)
    prepare(path)
    dirfd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    reader = SegmentReader(dirfd, NAME, path.stat().st_ino, BaseOffset(0), size or len(content), SystemClock())
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


RECORDS = records_of(CONTENT, 0)
MIDDLE = RECORDS[len(RECORDS) // 2]


def seal(path: Path) -> None:
    """Give the segment the checksum of its present content."""
    with path.open("rb") as file:
        write_checksum(file.fileno(), xxhash.xxh3_128(path.read_bytes()).digest())


def resize(size: int, *, keeps_mtime: bool = True) -> Callable[[Path], None]:
    """Give the file of a sealed segment another size."""

    def prepare(path: Path) -> None:
        seal(path)
        before = path.stat()
        os.truncate(path, size)
        os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns - (not keeps_mtime)))

    return prepare


@pytest.mark.parametrize("keeps_mtime", [True, False])
@pytest.mark.parametrize(
    ("size", "found"),
    [
        (MIDDLE.position, Verdict(Kind.ROTTED, 1, (Range(MIDDLE.position, SIZE),))),
        (0, Verdict(Kind.ROTTED, 1, (Range(0, SIZE),))),
        (SIZE - 1, Verdict(Kind.HEADER_OR_PADDING, 1, (Range(0, SIZE),), is_located=False)),
    ],
)
def test_a_file_that_was_cut_is_damaged(workdir: Path, size: int, found: Verdict, *, keeps_mtime: bool) -> None:
    with reader_of(workdir, CONTENT, resize(size, keeps_mtime=keeps_mtime), SIZE) as reader:
        assert not reader.has_checksum
        assert decide(reader.examine(next_chunk_at_once), 1) == found


@pytest.mark.parametrize(
    ("size", "end", "topic"),
    [
        (MIDDLE.end - 1, MIDDLE.end, "TopicTest"),
        (MIDDLE.position + 200, SIZE, ""),
        (MIDDLE.position + 84, SIZE, ""),
    ],
)
def test_a_file_that_was_cut_in_a_message_names_it(workdir: Path, size: int, end: int, topic: str) -> None:
    """With its last byte, nothing is missing that has a checksum."""
    with reader_of(workdir, CONTENT, resize(size), SIZE) as reader:
        verdict = decide(reader.examine(next_chunk_at_once), 1)
    record = MIDDLE.record
    named = Message(MIDDLE.position, topic, record.queue_id, record.queue_offset)
    assert verdict == Verdict(Kind.ROTTED, 1, (Range(MIDDLE.position, end),), (named,), 1)


@pytest.mark.parametrize("keeps_mtime", [True, False])
@pytest.mark.parametrize("appended", [1, 4096, 2 * CHUNK_BYTES])
def test_what_was_appended_is_no_part_of_the_segment(workdir: Path, appended: int, *, keeps_mtime: bool) -> None:
    with reader_of(workdir, CONTENT, resize(SIZE + appended, keeps_mtime=keeps_mtime), SIZE) as reader:
        assert reader.has_checksum is keeps_mtime
        assert reader.matches_checksum(next_chunk_at_once) is keeps_mtime
        assert decide(reader.examine(next_chunk_at_once), 1) is None


@pytest.mark.parametrize("magic", [V1, V2])
def test_the_file_of_another_segment_is_not_this_one(workdir: Path, magic: int) -> None:
    """Its checksum goes with it, and says nothing about the place of its records. No message is named: nothing
    shows which ones are missing."""
    with reader_of(workdir, make_sealed(SIZE, SIZE, magic=magic), seal) as reader:
        assert not reader.matches_checksum(next_chunk_at_once)
        verdict = decide(reader.examine(next_chunk_at_once), 1)
    assert verdict == Verdict(Kind.WRITTEN_BROKEN, 1, (Range(0, SIZE),), was_sealed_broken=True)


@pytest.mark.parametrize("content", [CONTENT, bytes(SIZE), make_blank(SIZE).ljust(SIZE, b"\0"), b"\1" * SIZE])
def test_a_checksum_decides_whatever_else_a_segment_begins_with(workdir: Path, content: bytes) -> None:
    with reader_of(workdir, content, seal) as reader:
        assert reader.matches_checksum(next_chunk_at_once)


def lose(*ranges: tuple[int, int]) -> Callable[[Path], None]:
    """Let a move have left these ranges out."""

    def prepare(path: Path) -> None:
        with path.open("r+b") as file:
            for begin, end in ranges:
                file.seek(begin)
                file.write(bytes(end - begin))
        os.setxattr(path, layout.XATTR_UNREADABLE, json.dumps(ranges).encode())

    return prepare


def test_what_a_move_could_not_read_is_found_again(workdir: Path) -> None:
    """The verdict may have been cleared, and nothing else shows it."""
    with reader_of(workdir, CONTENT, lose((8192, 12288), (2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 4096))) as reader:
        assert not reader.has_checksum
        verdict = decide(reader.examine(next_chunk_at_once), 1)
    assert verdict is not None
    assert verdict.kind is Kind.UNREADABLE
    hit = [placed for placed in RECORDS if placed.position < 12288 and placed.end > 8192]
    assert verdict.ranges == (Range(hit[0].position, hit[-1].end),)
    assert verdict.message_count == 1


def test_padding_that_a_move_could_not_read_is_found_again(workdir: Path) -> None:
    """In zeros that are not part of a message, the chain of records shows nothing."""
    end = MIDDLE.position
    content = CONTENT[:end] + make_blank(SIZE - end).ljust(SIZE - end, b"\1")
    with reader_of(workdir, content, lose((SIZE - 5000, SIZE - 10), (SIZE - 5, SIZE))) as reader:
        verdict = decide(reader.examine(next_chunk_at_once), 1)
    assert verdict == Verdict(Kind.UNREADABLE, 1, (Range(SIZE - 5000, SIZE - 10), Range(SIZE - 5, SIZE)))


def test_a_range_that_was_written_to_since_is_not(workdir: Path) -> None:
    """A broker cut the log in a segment that had been moved."""

    def prepare(path: Path) -> None:
        lose((8192, 16384))(path)
        path.write_bytes(CONTENT)

    with reader_of(workdir, CONTENT, prepare) as reader:
        assert decide(reader.examine(next_chunk_at_once), 1) is None


@pytest.mark.parametrize(
    "raw", [b"[[-5000,0]]", b"[[9e15,1e16]]", b"[[8192,4096]]", b"[[1e999,3]]", b"x", b"[[5,5]]"]
)
def test_odd_ranges_lead_to_no_verdict(workdir: Path, raw: bytes) -> None:
    def prepare(path: Path) -> None:
        os.setxattr(path, layout.XATTR_UNREADABLE, raw)

    with reader_of(workdir, CONTENT, prepare) as reader:
        assert decide(reader.examine(next_chunk_at_once), 1) is None
