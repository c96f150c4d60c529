"""Which former file is needed, for every combination of records and contents."""

import itertools
from typing import NamedTuple

import pytest

from commitlogfs.store.checksum import Checksum, Key
from commitlogfs.store.moves.former import Comparison, ContentRecord, compare

RIGHT, WRONG, OTHER = b"r" * 16, b"w" * 16, b"o" * 16
"""Digests of the content that was sealed, of damage, and of what was written to a copy."""
SEALED_NS, WRITTEN_NS = 10**9, 2 * 10**9


class File(NamedTuple):
    """The content of a file, and the records that it has."""

    content: bytes
    recorded: bytes | None
    has_verdict: bool
    is_unreadable: bool = False

    def record(self, ino: int, mtime_ns: int) -> ContentRecord:
        unreadable = ((0, 1),) if self.is_unreadable else ()
        return ContentRecord(
            Key(ino, 4096, mtime_ns), None, True, unreadable, self.recorded, False, self.has_verdict
        )

    def read(self, ino: int, mtime_ns: int) -> Checksum:
        return Checksum(self.content, Key(ino, 4096, mtime_ns))


FORMERS = [
    File(*contents, has_verdict)
    for contents in ((RIGHT, RIGHT), (RIGHT, None), (WRONG, RIGHT), (WRONG, WRONG), (WRONG, None))
    for has_verdict in (True, False)
]
COPIES = [
    File(*made) for made in itertools.product((RIGHT, WRONG), (RIGHT, WRONG, None), (True, False), (True, False))
]


def outcome(copy: File, former: File, copy_ns: int = SEALED_NS) -> Comparison:
    """After everything was read that had to be."""
    of_copy, of_former = None, None
    for _ in range(3):
        found = compare(copy.record(1, copy_ns), former.record(2, SEALED_NS), of_copy, of_former)
        if found is Comparison.READ_COPY:
            assert of_copy is None
            of_copy = copy.read(1, copy_ns)
        elif found is Comparison.READ_FORMER:
            assert of_former is None
            of_former = former.read(2, SEALED_NS)
        else:
            return found
    raise AssertionError("is never decided")


@pytest.mark.parametrize("former", FORMERS)
@pytest.mark.parametrize("copy", COPIES)
def test_a_right_file_is_never_removed_for_a_wrong_one(copy: File, former: File) -> None:
    found = outcome(copy, former)
    if former.content == RIGHT and copy.content == WRONG:
        assert found in (Comparison.COPY_IS_WRONG, Comparison.UNCERTAIN)
    if found is Comparison.COPY_IS_WRONG:
        assert former.content in (former.recorded, copy.recorded)
        assert not former.has_verdict
        assert copy.content != copy.recorded  # else each file agrees with its own record


@pytest.mark.parametrize("former", FORMERS)
def test_a_usual_former_file_goes(former: File) -> None:
    """The copy is right and has its checksum, and the former file has the same one, or is equal."""
    if former.content == RIGHT or former.recorded == RIGHT:
        assert outcome(File(RIGHT, RIGHT, False), former) is Comparison.NOT_NEEDED


@pytest.mark.parametrize("former", FORMERS)
def test_a_copy_that_was_written_to_is_judged_by_its_own_checksum(former: File) -> None:
    assert outcome(File(OTHER, None, False), former, WRITTEN_NS) is Comparison.NO_CHECKSUM
    assert outcome(File(OTHER, OTHER, False), former, WRITTEN_NS) is Comparison.NOT_NEEDED
    assert outcome(File(WRONG, OTHER, False), former, WRITTEN_NS) is not Comparison.COPY_IS_WRONG
    if former.content != WRONG:
        assert outcome(File(WRONG, OTHER, False), former, WRITTEN_NS) is Comparison.UNCERTAIN
        assert outcome(File(OTHER, OTHER, True), former, WRITTEN_NS) is Comparison.UNCERTAIN


def test_what_was_read_of_another_state_does_not_count() -> None:
    copy, former = File(RIGHT, RIGHT, False), File(RIGHT, RIGHT, False)
    stale = copy.read(1, SEALED_NS - 1)
    found = compare(copy.record(1, SEALED_NS), former.record(2, SEALED_NS), stale, None)
    assert found is Comparison.READ_COPY
    wrong = File(WRONG, RIGHT, False)
    found = compare(wrong.record(1, SEALED_NS), former.record(2, SEALED_NS), wrong.read(1, SEALED_NS), stale)
    assert found is Comparison.READ_FORMER
