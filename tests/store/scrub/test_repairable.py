"""Which damaged segments a copy can repair, and which parts of a copy have to be equal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.scrub.repairable import needs_chain, required_checksum, required_equal, why_not_repairable
from commitlogfs.store.scrub.verdict import Kind, Range, Verdict, whole_verdict

SIZE = 1 << 20
DIGEST = bytes(range(16))


def verdict(kind: Kind, *ranges: Range) -> Verdict:
    return Verdict(kind, 1_800_000_000, ranges or (Range(4096, 8192),))


@pytest.mark.parametrize(
    ("kind", "checksum", "is_repairable", "required"),
    [
        (Kind.ROTTED, DIGEST, True, DIGEST),
        (Kind.ROTTED, None, True, None),
        (Kind.UNREADABLE, DIGEST, True, DIGEST),
        (Kind.UNREADABLE, None, True, None),
        (Kind.HEADER_OR_PADDING, DIGEST, True, DIGEST),
        (Kind.HEADER_OR_PADDING, None, False, None),
        (Kind.WRITTEN_BROKEN, DIGEST, True, None),
        (Kind.WRITTEN_BROKEN, None, True, None),
        (Kind.WRITE_LOST, DIGEST, False, DIGEST),
        (Kind.WRITE_LOST, None, False, None),
        (Kind.UNKNOWN, DIGEST, True, DIGEST),
        (Kind.UNKNOWN, None, False, None),
    ],
)
def test_the_kind_and_the_checksum_decide(
    kind: Kind, checksum: bytes | None, is_repairable: bool, required: bytes | None
) -> None:
    damaged = verdict(kind)
    assert (not why_not_repairable(damaged, checksum)) == is_repairable
    assert required_checksum(damaged, checksum) == required
    assert needs_chain(kind) == (kind is Kind.UNKNOWN)


def test_a_known_checksum_needs_no_comparison() -> None:
    assert required_equal(verdict(Kind.ROTTED), DIGEST, SIZE) == ()


def test_everything_but_the_damage_has_to_be_equal() -> None:
    damaged = verdict(Kind.WRITTEN_BROKEN, Range(0, 10), Range(100, 200), Range(300, SIZE))
    assert required_equal(damaged, DIGEST, SIZE) == (Range(10, 100), Range(200, 300))
    assert required_equal(verdict(Kind.ROTTED), None, SIZE) == (Range(0, 4096), Range(8192, SIZE))


@pytest.mark.parametrize("kind", [Kind.ROTTED, Kind.UNREADABLE])
def test_the_checksum_of_broken_content_is_required_of_no_copy(kind: Kind) -> None:
    damaged = replace(verdict(kind), was_sealed_broken=True)
    assert not why_not_repairable(damaged, DIGEST)
    assert required_checksum(damaged, DIGEST) is None
    assert required_equal(damaged, DIGEST, SIZE) == (Range(0, 4096), Range(8192, SIZE))


def test_what_a_move_could_not_read_need_not_be_equal() -> None:
    damaged, lost = verdict(Kind.WRITTEN_BROKEN, Range(100, 200)), [(0, 50), (150, 300), (900, 1000)]
    assert required_equal(damaged, None, 1000, lost) == (Range(50, 100), Range(300, 900))


def test_damage_that_may_be_anywhere_leaves_nothing_to_compare() -> None:
    assert required_equal(whole_verdict(Kind.ROTTED, SIZE, 1), None, SIZE) == ()


def test_damage_past_the_end_leaves_all_before_it_to_compare() -> None:
    damaged = verdict(Kind.WRITTEN_BROKEN, Range(2 * SIZE, 3 * SIZE))
    assert required_equal(damaged, None, SIZE) == (Range(0, SIZE),)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), min_size=1, max_size=8))
def test_each_position_is_damaged_or_compared(pairs: list[tuple[int, int]]) -> None:
    size = 130
    ranges = sorted(Range(begin, begin + length) for begin, length in pairs)
    compared = required_equal(verdict(Kind.WRITTEN_BROKEN, *ranges), None, size)
    inside = {at for begin, end in ranges for at in range(begin, end)}
    outside = [at for begin, end in compared for at in range(begin, end)]
    assert outside == [at for at in range(size) if at not in inside]
