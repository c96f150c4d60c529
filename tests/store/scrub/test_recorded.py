"""Records of damage with the files of a disk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlogfs.store import layout
from commitlogfs.store.moves.unreadable import UnreadableRanges
from commitlogfs.store.scrub.recorded import Recorded, find_recorded, remove_verdict, verdict_of_copy, write_verdict
from commitlogfs.store.scrub.verdict import (
    Kind,
    Message,
    Range,
    Verdict,
    combine,
    format_verdict,
    parse_verdict,
    whole_verdict,
)

SIZE = 8192
VERDICT = Verdict(Kind.ROTTED, 1_800_000_000, (Range(100, 200),))
RECORD = format_verdict(VERDICT)
NEWER = bytes([RECORD[0] + 1]) + RECORD[1:]


@pytest.fixture
def file(workdir: Path) -> Path:
    path = workdir / "file"
    path.write_bytes(bytes(SIZE))
    return path


@pytest.fixture
def dirfd(file: Path) -> Iterator[int]:
    fd = os.open(file.parent, os.O_RDONLY)
    yield fd
    os.close(fd)


def read(dirfd: int) -> Recorded:
    (found,), unread = find_recorded(dirfd, [b"file"])
    assert unread == []
    return found


def unknown(file: Path) -> Verdict:
    return whole_verdict(Kind.UNKNOWN, SIZE, int(file.stat().st_ctime))


def test_a_right_record_is_read(file: Path, dirfd: int) -> None:
    os.setxattr(file, layout.XATTR_VERDICT, RECORD)
    os.setxattr(file, layout.XATTR_UNREADABLE, b"[[0, 4096]]")
    found = read(dirfd)
    assert (found.verdict, found.unreadable.ranges) == (VERDICT, [(0, 4096)])
    assert (found.illegible, found.is_recorded) == ("", True)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the verdict is damaged"),
        (RECORD[:3], "the verdict is damaged"),
        (RECORD[:-1], "the verdict is damaged"),
        (RECORD[:20] + bytes([RECORD[20] ^ 3]) + RECORD[21:], "the verdict is damaged"),
        (NEWER, "the verdict is damaged, or of version 2 instead of 1"),
    ],
    ids=["empty", "head", "cut", "flipped", "newer"],
)
def test_a_verdict_that_cannot_be_read_is_one(file: Path, dirfd: int, raw: bytes, reason: str) -> None:
    os.setxattr(file, layout.XATTR_VERDICT, raw)
    found = read(dirfd)
    assert (found.verdict, found.illegible, found.is_recorded) == (unknown(file), reason, True)
    assert os.getxattr(file, layout.XATTR_VERDICT) == raw


@pytest.mark.parametrize("raw", [b"", b"[[0, 40", b"[]"])
def test_unreadable_ranges_that_cannot_be_read_are_a_verdict(file: Path, dirfd: int, raw: bytes) -> None:
    os.setxattr(file, layout.XATTR_UNREADABLE, raw)
    found = read(dirfd)
    assert (found.verdict, found.unreadable.ranges) == (unknown(file), [])
    assert (found.illegible, found.is_recorded) == ("the record of unreadable ranges is damaged", False)


def test_a_right_verdict_beside_such_ranges_stays(file: Path, dirfd: int) -> None:
    os.setxattr(file, layout.XATTR_VERDICT, RECORD)
    os.setxattr(file, layout.XATTR_UNREADABLE, b"?")
    assert (read(dirfd).verdict, read(dirfd).illegible) == (VERDICT, "")


def write(file: Path, dirfd: int, verdict: Verdict) -> Verdict:
    return write_verdict(dirfd, os.fsencode(file.name), file.stat().st_ino, verdict)


def test_a_later_verdict_is_added_to_the_recorded_one(file: Path, dirfd: int) -> None:
    assert write(file, dirfd, VERDICT) == VERDICT
    later = Verdict(Kind.WRITTEN_BROKEN, 1_800_000_009, (Range(300, 400),), (Message(300, "topic", 1, 7),), 1)
    both = combine(VERDICT, later)
    for _ in range(2):
        assert write(file, dirfd, later) == both
        assert read(dirfd).verdict == both
    assert (both.kind, both.since_s) == (Kind.ROTTED, VERDICT.since_s)
    assert both.ranges == (Range(100, 200), Range(300, 400))


@pytest.mark.parametrize("raw", [RECORD[:-1], NEWER, b""], ids=["cut", "newer", "empty"])
def test_only_more_than_unknown_damage_takes_the_place_of_one_that_cannot_be_read(
    file: Path, dirfd: int, raw: bytes
) -> None:
    os.setxattr(file, layout.XATTR_VERDICT, raw)
    assert write(file, dirfd, unknown(file)) == unknown(file)
    assert os.getxattr(file, layout.XATTR_VERDICT) == raw
    assert write(file, dirfd, VERDICT) == VERDICT
    assert os.getxattr(file, layout.XATTR_VERDICT) == RECORD


@pytest.mark.parametrize(("raw", "stays"), [(b"?", False), (b"[[0,4096]]", True)])
def test_a_damaged_record_of_unreadable_ranges_can_be_cleared(
    file: Path, dirfd: int, raw: bytes, *, stays: bool
) -> None:
    os.setxattr(file, layout.XATTR_UNREADABLE, raw)
    os.setxattr(file, layout.XATTR_VERDICT, RECORD)
    remove_verdict(dirfd, os.fsencode(file.name), file.stat().st_ino, binds_checksum=True)
    assert os.listxattr(file) == ([layout.XATTR_UNREADABLE] if stays else [])


@pytest.mark.parametrize("raw", [RECORD[:-1], NEWER])
def test_a_move_that_cannot_read_more_records_that_instead(raw: bytes) -> None:
    """The rest of the segment was read meanwhile."""
    combined = parse_verdict(verdict_of_copy(raw, UnreadableRanges([(0, 4096)]), 8192, 1_800_000_009.0))
    assert combined == Verdict(Kind.UNREADABLE, 1_800_000_009, (Range(0, 4096),))
