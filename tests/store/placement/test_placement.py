"""Properties of every placement policy, and of each single one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.placement import POLICIES, Candidate, EmptierFirst, PlacementRequest
from commitlogfs.store.segment import BaseOffset

GIB = 1 << 30
SIZE = GIB
TB = 1 << 40


def candidate(number: int, *, available: int = TB, weight: float = 1.0, path: str | None = None) -> Candidate:
    return Candidate(DiskNumber(number), f"id-{number}", path or f"/data{number}", weight, available)


def request(index: int, predecessor: int | None, members: tuple[int, ...] = (1, 2, 3)) -> PlacementRequest:
    return PlacementRequest(
        BaseOffset(index * SIZE),
        SIZE,
        None if predecessor is None else DiskNumber(predecessor),
        tuple(DiskNumber(number) for number in members),
    )


members_and_eligible = st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True).flatmap(
    lambda members: st.tuples(st.just(tuple(members)), st.lists(st.sampled_from(members), unique=True))
)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@settings(max_examples=30)
@given(members_and_eligible, st.integers(0, 10**6), st.data())
def test_every_candidate_is_ranked_once_and_the_same_way_again(policy, disks, index, data):
    members, eligible = disks
    predecessor = data.draw(st.one_of(st.none(), st.sampled_from(members)))
    candidates = tuple(
        candidate(
            number,
            available=data.draw(st.integers(0, 10 * TB)),
            weight=data.draw(st.sampled_from([0.1, 1.0, 2.5])),
        )
        for number in eligible
    )
    asked = request(index, predecessor, members)
    ranked = policy.rank(asked, candidates)
    assert sorted(ranked) == sorted(eligible)
    assert policy.rank(asked, candidates) == ranked
    assert policy.rank(asked, candidates[::-1]) == ranked, "the order in which candidates are given decides nothing"


def test_there_are_three_policies_under_their_own_names():
    assert {name: policy.name for name, policy in POLICIES.items()} == {
        name: name for name in ("round-robin", "modulo", "weighted")
    }


# --- round-robin -------------------------------------------------------------------------------------


def place(policy, first: int, count: int, eligible_at, members=(1, 2, 3)) -> list[int]:
    """Place segments one after the other; `eligible_at(step)` names the eligible disks."""
    placed: list[int] = []
    for step in range(count):
        candidates = tuple(candidate(number) for number in eligible_at(step))
        asked = request(first + step, placed[-1] if placed else None, members)
        placed.append(policy.rank(asked, candidates)[0])
    return placed


@given(st.integers(1, 12), st.integers(0, 10**9))
def test_round_robin_keeps_segment_k_on_disk_k_mod_n_wherever_the_log_begins(count, first):
    members = tuple(range(1, count + 1))
    placed = place(POLICIES["round-robin"], first, 3 * count, lambda step: members, members)
    assert placed == [(first + step) % count + 1 for step in range(3 * count)]


@given(st.lists(st.sets(st.integers(1, 6), min_size=1), min_size=1, max_size=40))
def test_round_robin_stays_fair_when_disks_leave_and_join(history):
    """The next one is always the nearest eligible disk after the last one in the circle: nobody is overtaken."""
    members = tuple(range(1, 7))
    placed = place(POLICIES["round-robin"], 0, len(history), lambda step: sorted(history[step]), members)
    for step in range(1, len(history)):
        distance = {number: (number - placed[step - 1] - 1) % 6 for number in history[step]}
        assert placed[step] == min(distance, key=lambda number: distance[number])


def test_round_robin_does_not_jump_where_modulo_does():
    eligible = [(1, 2, 3)] * 4 + [(1, 3)] * 4 + [(1, 2, 3)] * 4
    assert place(POLICIES["round-robin"], 0, 12, lambda step: eligible[step]) == [
        1,
        2,
        3,
        1,
        3,
        1,
        3,
        1,
        2,
        3,
        1,
        2,
    ]


def test_round_robin_moves_on_to_the_next_disk_when_one_refuses():
    candidates = tuple(candidate(number) for number in (1, 2, 3))
    assert POLICIES["round-robin"].rank(request(7, 2), candidates) == [3, 1, 2]


def test_the_first_segment_goes_past_a_disk_that_is_not_eligible():
    candidates = tuple(candidate(number) for number in (1, 3))
    assert POLICIES["round-robin"].rank(request(1, None), candidates) == [3, 1]
    assert POLICIES["round-robin"].rank(request(2, None), (candidate(1), candidate(2))) == [1, 2]


# --- modulo ------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 10**9), st.integers(1, 12))
def test_modulo_is_rocketmqs_formula(count, index, predecessor):
    paths = [f"/data{number}" for number in range(1, count + 1)]
    candidates = tuple(candidate(number, path=path) for number, path in enumerate(paths, start=1))
    ranked = POLICIES["modulo"].rank(request(index, predecessor), candidates)
    by_path = {c.path: c.number for c in candidates}
    expected = [by_path[path] for path in sorted(paths)]
    assert ranked[0] == expected[index * SIZE // SIZE % count]
    assert ranked[1:2] == [expected[(index + 1) % count]][: count - 1], "the second choice is next in the circle"


def test_modulo_sorts_paths_as_java_does():
    """By UTF-16 code unit: U+1F600 (surrogates, D83D) comes before U+FF21, though its code point is larger."""
    candidates = (candidate(1, path="/\uff21"), candidate(2, path="/\U0001f600"), candidate(3, path="/data10"))
    assert POLICIES["modulo"].rank(request(0, None), candidates) == [3, 2, 1]
    plain = tuple(candidate(n, path=path) for n, path in ((1, "/data2"), (2, "/data10"), (3, "/data1")))
    assert POLICIES["modulo"].rank(request(0, None), plain) == [3, 2, 1]


# --- weighted ----------------------------------------------------------------------------------------


def test_weighted_shares_follow_free_space_times_weight():
    candidates = (
        candidate(1, available=4 * TB),
        candidate(2, available=2 * TB),
        candidate(3, available=1 * TB, weight=2.0),
    )
    count = 8000
    chosen = Counter(POLICIES["weighted"].rank(request(index, 1), candidates)[0] for index in range(count))
    assert chosen[DiskNumber(1)] / count == pytest.approx(1 / 2, abs=0.02)
    assert chosen[DiskNumber(2)] / count == pytest.approx(1 / 4, abs=0.02)
    assert chosen[DiskNumber(3)] / count == pytest.approx(1 / 4, abs=0.02)


def test_weighted_takes_no_long_runs():
    candidates = (candidate(1, available=2 * TB), candidate(2), candidate(3))
    chosen = [POLICIES["weighted"].rank(request(index, 1), candidates)[0] for index in range(2000)]
    longest = max(len(list(run)) for run in _runs(chosen))
    assert longest < 16  # half the segments: a run of 16 has probability 2000 / 2**16


def test_weighted_remembers_nothing():
    """A disk that leaves moves only its own segments: the others keep their choice."""
    all_three = tuple(candidate(number) for number in (1, 2, 3))
    for index in range(300):
        with_all = POLICIES["weighted"].rank(request(index, 1), all_three)
        without = POLICIES["weighted"].rank(request(index, 2), tuple(c for c in all_three if c.number != 2))
        assert without == [number for number in with_all if number != 2]


@pytest.mark.parametrize("available", [0, 1])
def test_weighted_ranks_disks_without_space_too(available):
    candidates = (candidate(1, available=available), candidate(2, available=available))
    assert sorted(POLICIES["weighted"].rank(request(0, None), candidates)) == [1, 2]


def _runs(values):
    run: list[object] = []
    for value in values:
        if run and run[-1] != value:
            yield run
            run = []
        run.append(value)
    yield run


# --- while a rebalance by placement runs -------------------------------------------------------------


def filled(number: int, used: int, entire: int = 100) -> Candidate:
    return Candidate(DiskNumber(number), f"id-{number}", f"/data{number}", 1.0, entire - used, used)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@given(st.lists(st.integers(0, 99), min_size=1, max_size=12), st.integers(0, 100), st.data())
def test_disks_below_the_common_share_come_first(policy, used, index, data):
    candidates = tuple(filled(number, share) for number, share in enumerate(used, start=1))
    predecessor = data.draw(st.sampled_from(range(1, len(used) + 1)))
    asked = request(index, predecessor, tuple(range(1, len(used) + 1)))
    ranked = EmptierFirst(policy).rank(asked, candidates)
    below = [number for number in ranked if used[number - 1] * len(used) < sum(used)]
    assert sorted(ranked) == [candidate.number for candidate in candidates]
    assert ranked[: len(below)] == below
    others = tuple(candidate for candidate in candidates if candidate.number not in below)
    assert ranked[len(below) :] == policy.rank(asked, others)
    emptiest_first = sorted(below, key=lambda number: (number == predecessor, used[number - 1], number))
    assert below == emptiest_first


def test_the_disk_of_the_segment_before_comes_last_of_the_emptier_ones():
    candidates = (filled(1, 90), filled(2, 10), filled(3, 30))
    ranks = EmptierFirst(POLICIES["round-robin"]).rank
    assert ranks(request(5, 2), candidates) == [3, 2, 1]
    assert ranks(request(5, 3), candidates) == [2, 3, 1]
    assert ranks(request(5, 1), (filled(1, 90), filled(2, 10))) == [2, 1]


def test_the_share_counts_and_not_the_bytes():
    candidates = (filled(1, 50, 100), filled(2, 60, 1000))
    assert EmptierFirst(POLICIES["round-robin"]).rank(request(5, 2), candidates) == [2, 1]
