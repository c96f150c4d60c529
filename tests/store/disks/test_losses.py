from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.losses import MOST_RUNS, Loss, Run, is_accepted, runs_of

SIZE = 4096


@st.composite
def ranges(draw):
    found, at = [], 0
    for distance, length in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=60)):
        found.append((at + distance, length))
        at += distance + length
    return found


@given(ranges())
def test_every_lost_segment_is_covered_and_a_short_record_covers_nothing_else(lost):
    runs = runs_of(lost)
    assert len(runs) <= MOST_RUNS
    expected = {index for first, length in lost for index in range(first, first + length)}
    end = max(expected, default=0) + 20
    covered = {index for index in range(end) if any(run.covers(index) for run in runs)}
    assert expected <= covered
    if len(runs) > 1 or len(lost) <= 1:
        assert covered == expected


def test_a_disk_of_a_rotation_is_one_run():
    assert runs_of((12 * number + 3, 1) for number in range(5000)) == (Run(3, 1, 12, 5000),)


def test_ranges_without_any_order_are_covered_as_a_whole():
    lost = [(number * number, 1) for number in range(1, 200)]
    assert runs_of(lost) == (Run(1, 199 * 199, 199 * 199, 1),)


def test_a_gap_is_accepted_only_as_a_whole():
    losses = [Loss(2, "/data2", 5, runs_of([(4, 2), (10, 1)])), Loss(3, "/data3", 6, runs_of([(6, 1)]))]
    assert is_accepted(losses, 4 * SIZE, 6 * SIZE, SIZE)
    assert is_accepted(losses, 5 * SIZE, 7 * SIZE, SIZE)  # of two disks
    assert is_accepted(losses, 10 * SIZE, 11 * SIZE, SIZE)
    assert not is_accepted(losses, 4 * SIZE, 8 * SIZE, SIZE)
    assert not is_accepted(losses, 11 * SIZE, 12 * SIZE, SIZE)
    assert not is_accepted([], 4 * SIZE, 5 * SIZE, SIZE)
