"""A copy from elsewhere, compared with the damaged segment that it is to repair."""

import errno
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from commitlogfs.mount.restoring.own_log import OwnLog
from commitlogfs.mount.restoring.places import UnreadablePlaceError
from commitlogfs.store.segment import BaseOffset

PAGE = 4096
SIZE = 3 << 20
BASE = BaseOffset(5 * SIZE)
CONTENT = bytes(range(256)) * (SIZE // 256)
EVERYTHING = [(0, SIZE)]


@pytest.fixture
def log(workdir: Path) -> OwnLog:
    (workdir / f"{BASE:020d}").write_bytes(CONTENT)
    return OwnLog(workdir, SIZE, [BASE])


def difference(
    log: OwnLog, copy: bytes, ranges: Collection[tuple[int, int]], *, has_bad_blocks: bool
) -> int | None:
    def read(position: int, length: int) -> bytes:
        return copy[position : position + length]

    return log.first_difference(BASE, read, ranges, has_bad_blocks=has_bad_blocks)


def other_at(position: int) -> bytes:
    return CONTENT[:position] + bytes([CONTENT[position] ^ 1]) + CONTENT[position + 1 :]


def fail(
    monkeypatch: pytest.MonkeyPatch, error: int, at: int, times: int = 1 << 30, *, is_short: bool = False
) -> None:
    """Reads of this position fail, so many times. `is_short`: longer ones end before its block instead."""
    pread = os.pread

    def read(fd: int, length: int, position: int) -> bytes:
        nonlocal times
        if position <= at < position + length and times:
            if position < at // PAGE * PAGE and is_short:
                return pread(fd, at // PAGE * PAGE - position, position)
            times -= 1
            raise OSError(error, "injected")
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", read)


@pytest.mark.parametrize("has_bad_blocks", [True, False])
def test_the_first_difference_within_the_ranges_counts(log: OwnLog, *, has_bad_blocks: bool) -> None:
    at = 2 << 20
    assert difference(log, CONTENT, EVERYTHING, has_bad_blocks=has_bad_blocks) is None
    assert difference(log, other_at(at + 5), EVERYTHING, has_bad_blocks=has_bad_blocks) == at
    assert difference(log, other_at(at + 5), [(0, at), (at + 6, SIZE)], has_bad_blocks=has_bad_blocks) is None


@pytest.mark.parametrize("has_bad_blocks", [True, False])
def test_a_segment_that_cannot_be_opened_is_no_witness(log: OwnLog, workdir: Path, *, has_bad_blocks: bool) -> None:
    (workdir / f"{BASE:020d}").unlink()
    with pytest.raises(UnreadablePlaceError) as caught:
        difference(log, CONTENT, EVERYTHING, has_bad_blocks=has_bad_blocks)
    assert difference(log, CONTENT, [], has_bad_blocks=has_bad_blocks) is None
    reason = os.strerror(errno.ENOENT)
    assert str(caught.value) == f"log offset {BASE}: cannot be compared with the segment ({reason})"


@pytest.mark.parametrize(
    ("error", "has_bad_blocks", "cure"),
    [
        (errno.EIO, False, "; `commitlogfs scrub start` records what its disk cannot read"),
        (errno.ENOTCONN, True, ""),
        (errno.EACCES, False, ""),
    ],
)
def test_a_failed_read_proves_nothing(
    log: OwnLog, monkeypatch: pytest.MonkeyPatch, error: int, cure: str, *, has_bad_blocks: bool
) -> None:
    """Any sound segment would be its copy otherwise."""
    at = 1 << 20
    fail(monkeypatch, error, at)
    with pytest.raises(UnreadablePlaceError) as caught:
        difference(log, other_at(at), EVERYTHING, has_bad_blocks=has_bad_blocks)
    reason = os.strerror(error)
    assert str(caught.value) == f"log offset {BASE + at}: cannot be compared with the segment ({reason}){cure}"


@pytest.mark.parametrize(("error", "is_short"), [(errno.EIO, True), (errno.EIO, False), (errno.ENODATA, False)])
@pytest.mark.parametrize("begin", [0, 1000])
def test_of_bad_blocks_only_these_count_as_equal(
    log: OwnLog, monkeypatch: pytest.MonkeyPatch, error: int, begin: int, *, is_short: bool
) -> None:
    bad, ranges = (1 << 20) + 7 * PAGE, [(begin, SIZE)]
    fail(monkeypatch, error, bad, is_short=is_short)
    for within in (bad, bad + PAGE - 1):
        assert difference(log, other_at(within), ranges, has_bad_blocks=True) is None
    for beside in (bad - 1, bad + PAGE):
        assert difference(log, other_at(beside), ranges, has_bad_blocks=True) == begin + (1 << 20)


def test_a_read_that_fails_once_is_repeated(log: OwnLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.EIO, PAGE, times=1)
    assert difference(log, other_at(PAGE), EVERYTHING, has_bad_blocks=True) == 0
