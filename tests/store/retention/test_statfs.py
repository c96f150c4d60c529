"""Figures of statfs, checked by the arithmetic of their reader, RocketMQ."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.java import used_percent

from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.retention import Mode, Trigger
from commitlogfs.store.retention.statfs import BLOCK_BYTES, DiskShare, StatfsFigures, compose
from commitlogfs.store.thresholds import Thresholds

TB = 10**12


def shown(figures: StatfsFigures) -> int:
    """The percent that an unmodified broker computes: three calls, f_bavail as f_bfree."""
    return used_percent(figures.blocks * BLOCK_BYTES, figures.free * BLOCK_BYTES, figures.free * BLOCK_BYTES)


def share(
    percent: float,
    *,
    ours: float | None = None,
    state: DiskState = DiskState.RW,
    total: int = TB,
    thresholds: Thresholds | None = None,
) -> DiskShare:
    """A disk; `ours` is the percentage that our segments take (all that is used, if not given)."""
    used = round(total * percent / 100)
    mine = used if ours is None else round(total * ours / 100)
    return DiskShare(state, DiskUsage(total, total - used, total - used), mine, thresholds or Thresholds())


SILENT = DiskShare(DiskState.RW, None, 0, Thresholds())


@st.composite
def thresholds(draw):
    clean = draw(st.integers(10, 85))
    force = draw(st.integers(max(clean, 30), 85))
    return Thresholds(clean=clean, force=force, full=draw(st.integers(max(force, 35), 90)))


ANY_STATE = st.sampled_from(list(DiskState))


@st.composite
def shares(draw, states=ANY_STATE, answers=True):
    total = draw(st.integers(1, 20 * TB))
    free = draw(st.integers(0, total))
    usage = DiskUsage(total, free, draw(st.integers(0, free)))
    if not answers and draw(st.booleans()):
        usage = None
    used = usage.used_bytes if usage else 0
    return DiskShare(draw(states), usage, draw(st.integers(0, used)), draw(thresholds()))


triggers = st.sampled_from(list(Trigger))


def answering(disks) -> list[DiskShare]:
    return [disk for disk in disks if disk.usage is not None and disk.usage.entire_bytes > 0]


def foreign_ratio(disk: DiskShare) -> Fraction:
    return Fraction(disk.usage.used_bytes - disk.segment_bytes, disk.usage.entire_bytes)


@given(st.lists(shares(st.just(DiskState.RW)), min_size=1, max_size=12), triggers)
def test_the_broker_computes_exactly_the_deciding_disks_percent(disks, trigger):
    able = answering(disks)
    figures = compose(tuple(disks), trigger)
    if not able:
        assert shown(figures) == 0
        return
    percents = []
    for disk in able:
        percent = math.ceil(disk.usage.used_ratio * 100)
        if foreign_ratio(disk) * 100 < disk.thresholds.clean:
            percents.append(percent)
        elif disk.usage.used_ratio * 100 < disk.thresholds.force:  # incurable, but it still takes segments
            percents.append(min(percent, disk.thresholds.clean))
    if not percents:
        percents = [min(disk.thresholds.clean for disk in able)]
    assert shown(figures) == (min(percents) if trigger is Trigger.ALL else max(percents))


@given(st.lists(shares(answers=False), max_size=12), triggers)
def test_figures_always_make_sense(disks, trigger):
    figures = compose(tuple(disks), trigger)
    assert figures.blocks >= 100, "zero blocks are -1 to the broker: it deletes expired files every 10 s"
    assert 0 <= figures.free <= figures.blocks
    assert 0 <= shown(figures) <= 100
    assert 0 <= figures.used_ratio <= 1
    total = sum(disk.usage.entire_bytes for disk in answering(disks))
    assert figures.blocks * BLOCK_BYTES <= max(total, 100 * BLOCK_BYTES), "never more room than there is"


@given(st.lists(shares(st.sampled_from([s for s in DiskState if s is not DiskState.RW])), min_size=1), triggers)
def test_without_a_writable_disk_nothing_above_clean_is_shown(disks, trigger):
    limit = min((disk.thresholds.clean for disk in answering(disks)), default=0)
    assert shown(compose(tuple(disks), trigger)) <= limit


@given(st.lists(shares(st.just(DiskState.RW)), min_size=1, max_size=6), triggers)
def test_pressure_by_foreign_data_alone_never_empties_the_log(disks, trigger):
    without_ours = tuple(DiskShare(disk.state, disk.usage, 0, disk.thresholds) for disk in disks)
    limit = max(disk.thresholds.clean for disk in disks)
    assert shown(compose(without_ours, trigger)) <= limit


@pytest.mark.parametrize(
    ("percents", "least", "fullest"),
    [
        ((10, 50, 80), 10, 80),
        ((75, 75, 75), 75, 75),
        ((75.01, 76, 77), 76, 77),
        ((85, 90, 95), 85, 95),
        ((85.01, 90.01, 100), 86, 100),
        ((0, 0, 0), 0, 0),
    ],
)
def test_all_shows_the_least_full_and_any_the_fullest(percents, least, fullest):
    disks = tuple(share(percent) for percent in percents)
    assert shown(compose(disks, Trigger.ALL)) == least
    assert shown(compose(disks, Trigger.ANY)) == fullest


def test_disks_that_take_nothing_do_not_decide_nor_count():
    disks = (share(60), share(5, state=DiskState.RO), share(99, state=DiskState.DRAINING), SILENT)
    for trigger in Trigger:
        figures = compose(disks, trigger)
        assert shown(figures) == 60
        assert figures.blocks * BLOCK_BYTES == pytest.approx(TB, rel=1e-6)


def test_sizes_add_up_over_the_writable_disks():
    figures = compose((share(50), share(50), share(50)), Trigger.ALL)
    assert figures.blocks * BLOCK_BYTES == pytest.approx(3 * TB, rel=1e-6)


def test_a_disk_full_of_foreign_data_is_not_shown_above_clean():
    assert shown(compose((share(95, ours=15),), Trigger.ALL)) == 75
    assert shown(compose((share(95, ours=20),), Trigger.ALL)) == 75, "exactly at clean: not below it"
    assert shown(compose((share(95, ours=21),), Trigger.ALL)) == 95
    assert shown(compose((share(60, ours=0),), Trigger.ALL)) == 60, "and not raised to it either"


def test_foreign_data_on_one_disk_hides_no_pressure_on_another():
    lost = share(96, ours=5)
    assert shown(compose((lost, share(88)), Trigger.ANY)) == 88
    assert shown(compose((lost, share(97)), Trigger.ALL)) == 97, "nothing takes segments unless ours go"
    still_used = share(80, ours=1)
    assert shown(compose((still_used, share(97)), Trigger.ALL)) == 75, "segments go there: no need to delete"
    assert shown(compose((still_used, share(97)), Trigger.ANY)) == 97


def test_a_disk_that_stops_answering_does_not_raise_the_ratio():
    before = shown(compose((share(60), share(70)), Trigger.ALL))
    assert shown(compose((share(60), SILENT), Trigger.ALL)) == before


def test_nobody_answers():
    for disks in ((), (SILENT, SILENT)):
        figures = compose(disks, Trigger.ALL)
        assert (figures.blocks, figures.free) == (100, 100)


# --- modes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "seen"), [(10, 10), (75, 75), (76, 75), (89.9, 75), (90, 90), (97, 97)])
def test_where_the_filesystem_deletes_pressure_is_hidden_up_to_full(percent, seen):
    assert shown(compose((share(percent),), Trigger.ALL, Mode.FILESYSTEM)) == seen


def test_where_the_filesystem_deletes_foreign_data_is_hidden_too():
    assert shown(compose((share(97, ours=1),), Trigger.ALL, Mode.FILESYSTEM)) == 75


@given(st.lists(shares(st.just(DiskState.RW)), min_size=1, max_size=6), triggers)
def test_off_hides_nothing(disks, trigger):
    figures = compose(tuple(disks), trigger, Mode.OFF)
    able = answering(disks)
    percents = [math.ceil(disk.usage.used_ratio * 100) for disk in able]
    if able:
        assert shown(figures) == (min(percents) if trigger is Trigger.ALL else max(percents))


def test_while_forced_segments_are_held_a_broker_is_made_to_look_for_expired_ones():
    for mode in (Mode.COOPERATIVE, Mode.FILESYSTEM):
        assert shown(compose((share(40),), Trigger.ALL, mode, forced_are_open=True)) == 76
        assert shown(compose((share(88),), Trigger.ALL, mode, forced_are_open=True)) == (
            88 if mode is Mode.COOPERATIVE else 76
        )
    assert shown(compose((share(40),), Trigger.ALL, Mode.OFF, forced_are_open=True)) == 40


def test_that_never_makes_it_delete_what_is_not_expired():
    """Above `force` age does not count."""
    close = Thresholds(clean=85, force=85)
    assert shown(compose((share(40, thresholds=close),), Trigger.ALL, forced_are_open=True)) == 85
