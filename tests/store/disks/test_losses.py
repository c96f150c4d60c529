from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.losses import MOST_RUNS, Loss, Run, is_accepted, runs_of, still_lost

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


@given(ranges(), st.sets(st.integers(0, 400)))
def test_what_is_there_again_is_no_loss_any_more(lost, present):
    loss = Loss(2, "/data2", 5, runs_of(lost))
    covered = {index for run in loss.runs for index in run.indexes()}
    (left,) = still_lost([loss], present.__contains__)
    assert (left.number, left.path, left.since_s) == (2, "/data2", 5)
    remaining = {index for run in left.runs for index in run.indexes()}
    assert remaining == covered - present or left is loss
    assert still_lost([left], present.__contains__) == (left,)


def test_nothing_else_is_accepted_when_the_rest_of_a_loss_is_irregular():
    loss = Loss(2, "/data2", 5, (Run(1, 1, 3, 1000),))
    restored = {index for index in range(1, 3000, 3) if index * index % 7 < 3}
    (left,) = still_lost([loss], lambda index: index % 3 != 1 or index in restored)
    assert not is_accepted([left], 5 * SIZE, 6 * SIZE, SIZE)


def test_a_loss_without_returned_segments_is_the_same_object():
    loss = Loss(2, "/data2", 5, runs_of([(4, 2), (10, 1)]))
    assert still_lost([loss], {3, 6, 9}.__contains__)[0] is loss
