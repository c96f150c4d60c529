"""Which disks give segments to which others: the goal is reached, and with the fewest moves there are."""

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.balance_bound import Filled, fewest_moves

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.moves.balance import GOAL, Flow, Level, balance, order_for_target, spread, tolerance

GIB = 1 << 30
TB = 10**12


def level(number: int, used: int, entire: int, movable: int = 10**6, room: int = 10**6) -> Level:
    return Level(DiskNumber(number), used, entire, movable, room)


def after(levels: list[Level], size: int) -> list[Level]:
    changes = balance(levels, size).changes
    return [
        level(x.number, x.used_bytes + changes[x.number] * size, x.entire_bytes, x.movable, x.room) for x in levels
    ]


def fewest_of_all_vectors(levels: list[Level], size: int) -> int | None:
    """By trying every vector of changes; None if none reaches the goal."""
    best = None
    width = tolerance(levels, size)
    for vector in itertools.product(*(range(-x.movable, x.room + 1) for x in levels)):
        shares = [x.share_with(change, size) for x, change in zip(levels, vector, strict=True)]
        if sum(vector) == 0 and max(shares) - min(shares) <= width:
            count = sum(change for change in vector if change > 0)
            best = count if best is None else min(best, count)
    return best


@st.composite
def small_pools(draw: st.DrawFn) -> tuple[list[Level], int]:
    size = 10
    levels = []
    for number in range(1, draw(st.integers(2, 4)) + 1):
        entire = draw(st.integers(50, 400))
        segments = draw(st.integers(0, min(5, entire // size)))
        other = draw(st.integers(0, entire - segments * size))
        used = other + segments * size
        levels.append(level(number, used, entire, segments, min(5, (entire - used) // size)))
    return levels, size


@settings(max_examples=200)
@given(small_pools())
def test_no_other_vector_of_moves_is_shorter(pool: tuple[list[Level], int]) -> None:
    levels, size = pool
    found = balance(levels, size)
    assert sum(found.changes.values()) == 0
    for x in levels:
        assert -x.movable <= found.changes[x.number] <= x.room
    best = fewest_of_all_vectors(levels, size)
    if best is not None:
        assert spread(after(levels, size)) <= tolerance(levels, size)
        assert found.segments == best


@settings(max_examples=12)
@given(st.randoms(use_true_random=False), st.booleans())
def test_twelve_disks_and_an_empty_one(chance: random.Random, is_equal: bool) -> None:
    require_balanced_with_few_moves(chance, is_equal)


@pytest.mark.full
@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.booleans())
def test_twelve_disks_and_an_empty_one_in_many_pools(chance: random.Random, is_equal: bool) -> None:
    require_balanced_with_few_moves(chance, is_equal)


def require_balanced_with_few_moves(chance: random.Random, is_equal: bool) -> None:
    """Twelve disks as full as `chance` wants, and an empty one."""
    size = GIB
    levels = []
    for number in range(1, 14):
        entire = 100 * GIB if is_equal else chance.choice([60, 100, 130, 180]) * GIB
        segments = 0 if number == 13 else chance.randrange(entire * 3 // 4 // GIB)
        other = chance.randrange(GIB)
        levels.append(level(number, segments * size + other, entire, segments, (entire - other) // size - segments))
    found = balance(levels, size)
    end = spread(after(levels, size))
    assert end <= tolerance(levels, size)
    assert tolerance(levels, size) == pytest.approx(GOAL, abs=1e-8), "no segment is larger than two points"
    assert found.segments <= 1.05 * fewest_moves(
        [Filled(x.used_bytes, x.entire_bytes, x.movable) for x in levels], size, GOAL
    )


@settings(max_examples=60)
@given(small_pools())
def test_each_move_leaves_the_others_the_fewest(pool: tuple[list[Level], int]) -> None:
    """The daemon plans anew after each move."""
    levels, size = pool
    planned = balance(levels, size).segments
    for done in range(planned):
        assert balance(levels, size).segments == planned - done
        flow = balance(levels, size).flows[0]
        shift = {flow.source: -1, flow.target: 1}
        levels = [
            level(
                x.number,
                x.used_bytes + shift.get(x.number, 0) * size,
                x.entire_bytes,
                x.movable + shift.get(x.number, 0),
                x.room - shift.get(x.number, 0),
            )
            for x in levels
        ]
    assert balance(levels, size).segments == 0


def test_a_segment_larger_than_two_points_widens_the_goal() -> None:
    levels = [level(1, 300, 1000, 3), level(2, 0, 1000, 0)]
    assert tolerance(levels, 100) == pytest.approx(Fraction(1, 10), abs=1e-8)
    assert balance(levels, 100).flows == (Flow(DiskNumber(1), DiskNumber(2), 1),)


def test_within_the_goal_nothing_moves() -> None:
    levels = [level(1, 52, 100), level(2, 50, 100), level(3, 102, 200)]
    assert (spread(levels), balance(levels, 1).flows) == (GOAL, ())


def test_what_others_keep_on_a_disk_stays_and_the_rest_become_equal() -> None:
    levels = [level(1, 900, 1000, 0), level(2, 600, 1000, 60), level(3, 0, 1000, 0)]
    found = balance(levels, 10)
    assert found.changes[DiskNumber(1)] == 0
    shares = [x.share for x in after(levels, 10)[1:]]
    assert abs(shares[0] - shares[1]) <= GOAL


def test_a_disk_without_room_takes_nothing() -> None:
    levels = [level(1, 600, 1000, 60), level(2, 0, 1000, 0, 3), level(3, 0, 1000, 0)]
    assert balance(levels, 10).changes[DiskNumber(2)] == 3


def test_one_disk_or_none_has_no_spread() -> None:
    assert (spread([]), balance([], 10).flows) == (0, ())
    assert (spread([level(1, 600, 1000)]), balance([level(1, 600, 1000)], 10).flows) == (0, ())


def test_the_plan_of_large_disks_is_exact() -> None:
    """60 disks of 5 TB: integers, not floats, decide."""
    levels = [level(n, 3 * TB + n, 5 * TB, 2800, 1000) for n in range(1, 60)] + [level(60, 0, 5 * TB, 0, 4000)]
    assert spread(after(levels, GIB)) <= GOAL


@given(st.sets(st.integers(1, 200), min_size=1, max_size=60), st.sets(st.integers(1, 200), max_size=20))
@example({5, 6, 7}, set())
def test_neighbours_come_last(offered: set[int], there: set[int]) -> None:
    offsets, on_target = offered - there, there
    order = order_for_target(offsets, on_target, 0)
    assert sorted(order) == sorted(offsets)
    distances = [min(abs(offset - other) for other in {0, *on_target}) for offset in order]
    assert distances == sorted(distances, reverse=True)


def test_moves_to_an_empty_disk_are_spread_over_the_whole_log() -> None:
    offered: set[int] = set(range(100))
    moved: list[int] = []
    for _ in range(8):
        moved.append(order_for_target(offered, moved, 0)[0])
        offered.remove(moved[-1])
    assert min(b - a for a, b in itertools.pairwise(sorted(moved))) >= 10
    assert min(moved) >= 10
