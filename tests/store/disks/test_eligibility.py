from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.eligibility import DiskView, RefusalReason, evaluate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

SIZE = 1
NOBODY: frozenset[DiskNumber] = frozenset()
DEFAULTS = Thresholds()  # clean 75, force 85, full 90, resume 83


def usage(percent: float, entire: int = 10_000) -> DiskUsage:
    used = round(entire * percent / 100)
    return DiskUsage(entire, entire - used, entire - used)


def view(number: int, percent: float | None, **options: Any) -> DiskView:
    thresholds = options.pop("thresholds", DEFAULTS)
    state = options.pop("state", DiskState.RW)
    measured = None if percent is None else usage(percent)
    return DiskView(DiskNumber(number), state, measured, thresholds, **options)


@pytest.mark.parametrize(
    ("percent", "before", "skipped"),
    [
        (0, False, False),
        (82.99, False, False),
        (83, False, False),  # between resume and force: only who was skipped stays skipped
        (84.99, False, False),
        (85, False, True),
        (85.01, False, True),
        (82.99, True, False),
        (83, True, True),
        (84.99, True, True),
        (85, True, True),
        (None, False, False),  # no answer: as before
        (None, True, True),
    ],
)
def test_hysteresis(percent, before, skipped):
    answer = evaluate((view(1, percent), view(2, 10)), SIZE, frozenset({DiskNumber(1)}) if before else NOBODY)
    assert (1 in answer.skipped) is skipped
    assert (1 in answer.eligible) is (percent is not None and not skipped)
    assert 2 in answer.eligible
    assert not answer.fallback


@pytest.mark.parametrize(("left", "takes"), [(19, False), (20, True)])
def test_what_is_still_held_open_is_counted_as_free_but_not_used_to_the_last_block(left, takes):
    """100 segments of 10; half of them are removed but open, so that only `left` is really there."""
    held = view(1, 50, pending_bytes=5000 - left)
    answer = evaluate((held,), 10, NOBODY)
    assert (1 in answer.eligible) is takes
    if not takes:
        assert answer.refusals == {1: RefusalReason.NO_ROOM}


def test_a_disk_rises_falls_and_comes_back():
    skipped = NOBODY
    story = []
    for percent in (84, 85, 84, 83, 82.9, 84, 85.5):
        answer = evaluate((view(1, percent), view(2, 10)), SIZE, skipped)
        skipped = answer.skipped
        story.append(1 in answer.eligible)
    assert story == [True, False, False, False, True, True, False]


def test_each_disk_has_its_own_thresholds():
    strict = Thresholds(clean=50, force=60, full=70)
    answer = evaluate((view(1, 65, thresholds=strict), view(2, 65)), SIZE, NOBODY)
    assert answer.eligible == (2,)
    assert answer.refusals == {1: RefusalReason.ABOVE_FORCE}


def test_all_above_force_fall_back_to_those_below_full():
    answer = evaluate((view(1, 86), view(2, 89.99), view(3, 90)), SIZE, NOBODY)
    assert answer.eligible == (1, 2)
    assert answer.fallback
    assert answer.refusals == {3: RefusalReason.NO_ROOM}


def test_all_full_means_nobody():
    answer = evaluate((view(1, 90), view(2, 99)), SIZE, NOBODY)
    assert answer.eligible == ()
    assert not answer.fallback
    assert set(answer.refusals.values()) == {RefusalReason.NO_ROOM}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"state": DiskState.RO}, RefusalReason.NOT_WRITABLE),
        ({"state": DiskState.DRAINING}, RefusalReason.CORDONED),
        ({"state": DiskState.OFFLINE}, RefusalReason.CORDONED),
        ({"state": DiskState.FAILED}, RefusalReason.NOT_WRITABLE),
        ({"in_backoff": True}, RefusalReason.IN_BACKOFF),
        ({"percent": None}, RefusalReason.UNKNOWN_USAGE),
        ({"percent": 95}, RefusalReason.NO_ROOM),
        ({"percent": 86}, RefusalReason.ABOVE_FORCE),
    ],
)
def test_refusals_and_what_a_fall_back_overrides(options, reason):
    refused = view(1, options.pop("percent", 10), **options)
    with_another = evaluate((refused, view(2, 10)), SIZE, NOBODY)
    assert with_another.eligible == (2,)
    assert with_another.refusals == {1: reason}
    assert with_another.fallback is False
    alone = evaluate((refused, view(2, 86)), SIZE, NOBODY)
    assert alone.fallback
    assert alone.eligible == ((1, 2) if reason is RefusalReason.ABOVE_FORCE else (2,))


@pytest.mark.parametrize(("available", "takes"), [(1000, True), (999, False)])
def test_min_free_is_what_stays_after_the_segment(available, takes):
    thresholds = Thresholds(min_free_bytes=900)
    measured = DiskUsage(100_000, available, available)
    # Percentages are kept out of it: the disk is nearly empty of other data.
    measured = DiskUsage(2000, available, available)
    answer = evaluate((DiskView(DiskNumber(1), DiskState.RW, measured, thresholds),), 100, NOBODY)
    assert (answer.eligible == (1,)) is takes
    assert answer.refusals == ({} if takes else {1: RefusalReason.NO_ROOM})


def test_a_segment_must_fit_entirely():
    tiny = DiskUsage(100, 50, 50)
    one = (DiskView(DiskNumber(1), DiskState.RW, tiny, DEFAULTS),)
    assert evaluate(one, 50, NOBODY).eligible == (1,)
    assert evaluate(one, 51, NOBODY).refusals == {1: RefusalReason.NO_ROOM}


def test_a_disk_out_of_reach_of_every_measurement_is_full():
    assert evaluate((view(1, 0, thresholds=DEFAULTS),), SIZE, NOBODY).eligible == (1,)
    empty = DiskView(DiskNumber(1), DiskState.RW, DiskUsage(0, 0, 0), DEFAULTS)
    assert evaluate((empty,), SIZE, NOBODY).refusals == {1: RefusalReason.NO_ROOM}


percents = st.one_of(st.none(), st.integers(0, 10_000).map(lambda n: n / 100), st.sampled_from([83, 85, 90]))
view_lists = st.lists(st.tuples(percents, st.sampled_from(list(DiskState)), st.booleans()), max_size=8)


@given(view_lists, st.sets(st.integers(1, 8)))
def test_properties(described, before):
    views = tuple(
        view(number, percent, state=state, in_backoff=held)
        for number, (percent, state, held) in enumerate(described, start=1)
    )
    skipped = frozenset(DiskNumber(number) for number in before)
    answer = evaluate(views, SIZE, skipped)
    by_number = {v.number: v for v in views}
    assert set(answer.eligible) | set(answer.refusals) == set(by_number), "every disk is judged"
    assert not set(answer.eligible) & set(answer.refusals), "once"
    for number in answer.eligible:
        chosen = by_number[number]
        assert chosen.state is DiskState.RW
        assert not chosen.in_backoff
        assert chosen.usage is not None
        assert not chosen.usage.is_at_or_above(chosen.thresholds.full)
        assert answer.fallback or not chosen.usage.is_at_or_above(chosen.thresholds.force)
    able = [
        v
        for v in views
        if v.state is DiskState.RW
        and not v.in_backoff
        and v.usage
        and not v.usage.is_at_or_above(v.thresholds.full)
    ]
    if answer.fallback:
        assert all(v.number in answer.skipped for v in able), "never while an able disk is not skipped"
        assert set(answer.eligible) == {v.number for v in able}
    if able:
        assert answer.eligible, "never refused while a writable disk is below full"
    assert evaluate(views, SIZE, answer.skipped).eligible == answer.eligible, "measured again: the same answer"


def test_a_disk_that_failed_a_moment_ago_is_the_last_resort():
    well, ill = view(1, 10), view(2, 10, in_backoff=True)
    found = evaluate((well, ill), SIZE, frozenset())
    assert (found.eligible, found.in_backoff) == ((1,), (2,))
    found = evaluate((ill,), SIZE, frozenset())
    assert (found.eligible, found.in_backoff, found.fallback) == ((), (2,), False)


def test_a_slow_disk_is_better_than_none_and_than_one_in_backoff():
    views = (view(1, 10, is_slow=True), view(2, 86), view(3, 10, in_backoff=True), view(4, 95, is_slow=True))
    answer = evaluate(views, SIZE, NOBODY)
    assert answer.eligible == (2,), "above force, but not slow"
    assert (answer.fallback, answer.slow, answer.in_backoff) == (True, (1,), (3,))
    assert answer.refusals[DiskNumber(1)] is RefusalReason.SLOW
    assert answer.refusals[DiskNumber(4)] is RefusalReason.NO_ROOM
    alone = evaluate((view(1, 10, is_slow=True, in_backoff=True), view(2, 10, is_slow=True)), SIZE, NOBODY)
    assert (alone.eligible, alone.slow, alone.in_backoff) == ((), (2,), (1,))
