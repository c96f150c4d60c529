"""Ranges of the log that no segment covers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.gaps import gaps_between, uncovered

SIZE = 1 << 20


def test_gaps_between_segments() -> None:
    bases = [0, SIZE, 4 * SIZE, 5 * SIZE, 7 * SIZE]
    assert gaps_between(bases, SIZE) == [(2 * SIZE, 4 * SIZE), (6 * SIZE, 7 * SIZE)]
    assert gaps_between([], SIZE) == gaps_between([SIZE], SIZE) == []


@pytest.mark.parametrize(
    ("covered", "missing"),
    [
        ([], [(10, 50)]),
        ([(0, 60)], []),
        ([(10, 50)], []),
        ([(0, 10), (50, 60)], [(10, 50)]),
        ([(20, 30)], [(10, 20), (30, 50)]),
        ([(0, 20), (10, 15), (30, 60)], [(20, 30)]),
    ],
)
def test_parts_outside_covered_ranges(covered: list[tuple[int, int]], missing: list[tuple[int, int]]) -> None:
    assert uncovered(10, 50, covered) == missing


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple))


@given(st.integers(0, 40), st.integers(0, 40), ranges)
def test_each_offset_is_covered_or_missing(start: int, end: int, given_ranges: list[tuple[int, int]]) -> None:
    covered = sorted(given_ranges)
    offsets = set(range(start, end)) - {offset for one in covered for offset in range(*one)}
    missing = uncovered(start, end, covered)
    assert {offset for one in missing for offset in range(*one)} == offsets
    assert all(begin < stop for begin, stop in missing)
