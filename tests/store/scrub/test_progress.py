"""The record of a scrub on a disk's directory, and the schedule."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commitlogfs.store.scrub.progress import (
    LATEST_S,
    MOST_ERAS,
    MOST_UNREAD,
    NOTHING,
    Command,
    Progress,
    Run,
    format_progress,
    parse_progress,
    read_progress,
    write_progress,
)
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.segment import BaseOffset

seconds, sizes = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
runs = st.builds(
    Run,
    seconds,
    sizes.map(BaseOffset),
    st.integers(0, 2**16 - 1),
    st.sampled_from(Command),
    sizes,
    st.booleans(),
    st.booleans(),
    st.integers(0, MOST_ERAS),
)
progresses = st.builds(
    Progress, runs, sizes.map(BaseOffset), sizes, seconds, seconds, seconds, st.integers(0, MOST_UNREAD)
)


@given(progresses)
def test_the_record_says_the_same_again(progress: Progress) -> None:
    raw = format_progress(progress)
    assert parse_progress(raw) == progress
    assert len(raw) == 59, "as the limit in store/disks/identity.py assumes"


@given(progresses, st.integers(0, 58), st.integers(0, 7))
def test_a_damaged_record_counts_as_absent(progress: Progress, at: int, bit: int) -> None:
    raw = bytearray(format_progress(progress))
    raw[at] ^= 1 << bit
    assert parse_progress(bytes(raw)) is None
    assert parse_progress(bytes(raw[:-1])) is None


def test_more_unread_segments_than_have_room_are_the_most() -> None:
    many = Progress(Run(5, BaseOffset(7)), unread=MOST_UNREAD + 1)
    assert parse_progress(format_progress(many)) == replace(many, unread=MOST_UNREAD)


def test_a_directory_records_it(workdir: Path) -> None:
    dirfd = os.open(workdir, os.O_RDONLY)
    try:
        assert read_progress(dirfd) == NOTHING
        progress = Progress(Run(5, BaseOffset(7)), BaseOffset(3))
        write_progress(dirfd, progress)
        assert read_progress(dirfd) == progress
    finally:
        os.close(dirfd)


def test_the_later_order_counts() -> None:
    first = Run(5, BaseOffset(0), 9)
    assert first.order < Run(6, BaseOffset(0)).order
    assert Run(5, BaseOffset(0), 10).order > first.order
    assert Run(4, BaseOffset(0), era=1).order > Run(5, BaseOffset(0), 10).order


@given(st.lists(st.integers(1, LATEST_S), max_size=200))
@example([LATEST_S] * 200)
def test_the_next_run_is_later_whatever_the_clock_says(times_s: list[int]) -> None:
    run = NOTHING.run
    for now_s in times_s:
        era, begun_s = run.next_number(now_s)
        following = Run(begun_s, BaseOffset(0), era=era)
        assert following.order > run.order
        assert following.begun_s == now_s or run.era == MOST_ERAS
        progress = Progress(following)
        assert parse_progress(format_progress(progress)) == progress
        run = following


def test_a_record_of_a_former_version_is_of_the_first_era() -> None:
    raw = bytes.fromhex(
        "020003020003000500000006000000070000000800000009000000000000000a000000000000000b000000000000000c00000000000000"
    )
    run = Run(5, BaseOffset(10), 2, Command.RUN, 9, is_scheduled=True, follows_chains=True)
    former = Progress(run, BaseOffset(11), 12, 8, 6, 7, 3)
    assert format_progress(former)[:-4] == raw
    assert parse_progress(format_progress(former)) == former


@pytest.mark.parametrize(("hour", "is_open"), [(21, False), (22, True), (0, True), (5, True), (6, False)])
def test_the_window_is_in_local_hours(hour: int, is_open: bool) -> None:
    rules = ScrubRules(window=frozenset({22, 23, 0, 1, 2, 3, 4, 5}))
    assert rules.is_open(time.mktime((2030, 5, 5, hour, 30, 0, 0, 0, -1))) is is_open
    assert ScrubRules().is_open(time.time())


def test_the_next_one_is_due_after_the_last() -> None:
    assert ScrubRules(3600.0).next_s(100.0) == 3700.0
    assert ScrubRules(0.0).next_s(100.0) is None


@pytest.mark.parametrize(
    ("hour", "work_h", "elapsed_h"),
    [
        (22.5, 1.0, 1.0),
        (22.5, 8.0, 24.0),
        (12.0, 1.0, 11.0),
        (12.0, 8.0, 18.0),
        (12.0, 24.0, 66.0),
        (0.0, 6.0, 6.0),
    ],
)
def test_hours_outside_of_the_window_take_time(hour: float, work_h: float, elapsed_h: float) -> None:
    rules = ScrubRules(window=frozenset({22, 23, 0, 1, 2, 3, 4, 5}))
    now_s = time.mktime((2030, 5, 5, int(hour), round(hour % 1 * 60), 0, 0, 0, -1))
    assert rules.elapsed_s(now_s, work_h * 3600) == pytest.approx(elapsed_h * 3600)
    assert ScrubRules().elapsed_s(now_s, work_h * 3600) == work_h * 3600
