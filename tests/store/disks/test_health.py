import pytest
from support.files import open_disk

from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, DiskReadOnlyError
from commitlogfs.store.slowness.pace import Operation
from commitlogfs.store.slowness.policy import Comparison, Slowness
from commitlogfs.store.timing import DEFAULT

FAILED = DiskFailedError("/data1", "trouble")
TIMING = DEFAULT.health
PROBE_AFTER_S = DEFAULT.slowness.probe_after_s


@pytest.fixture
def disk(workdir):
    with open_disk(workdir) as disk:
        yield disk


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (DiskFullError, TIMING.full_s),
        (DiskReadOnlyError, TIMING.read_only_s),
        (DiskFailedError, TIMING.failed_s),
        (DiskError, TIMING.failed_s),
    ],
)
def test_a_failed_disk_is_passed_over_for_its_time(disk, kind, seconds):
    assert not health.is_in_backoff(disk, 1000.0)
    health.record_error(disk, kind("/data1", "trouble"), 1000.0, TIMING)
    assert health.is_in_backoff(disk, 1000.0)
    assert health.is_in_backoff(disk, 1000.0 + seconds - 0.001)
    assert not health.is_in_backoff(disk, 1000.0 + seconds)
    assert disk.last_error == "/data1: trouble", "kept after the time is over"


def test_the_more_lasting_the_trouble_the_longer_the_time():
    assert TIMING.full_s < TIMING.read_only_s < TIMING.failed_s


def test_a_success_forgets(disk):
    health.record_error(disk, DiskFailedError("/data1", "trouble"), 1000.0, TIMING)
    health.record_success(disk)
    assert not health.is_in_backoff(disk, 1000.0)
    assert disk.last_error == ""


def test_the_latest_error_decides(disk):
    health.record_error(disk, DiskFailedError("/data1", "old"), 1000.0, TIMING)
    health.record_error(disk, DiskFullError("/data1", "new"), 1001.0, TIMING)
    assert not health.is_in_backoff(disk, 1003.0)
    assert disk.last_error == "/data1: new"


@pytest.mark.parametrize("state", [state for state in DiskState if state is not DiskState.RW])
def test_a_disk_that_takes_nothing_is_not_in_backoff(disk, state):
    health.record_error(disk, DiskFailedError("/data1", "trouble"), 1000.0, TIMING)
    disk.state = state
    assert not health.is_in_backoff(disk, 1000.0)


def test_one_failure_is_a_suspicion_and_a_second_one_a_proof(disk):
    health.record_error(disk, FAILED, 1000.0, TIMING)
    assert (disk.present_state, disk.is_troubled) == (DiskState.RW, True)
    health.record_attempt(disk, FAILED, 1001.0)
    assert (disk.present_state, disk.is_troubled) == (DiskState.FAILED, True)


@pytest.mark.parametrize("answer", [None, DiskFullError("/data1", "full")])
def test_an_attempt_that_succeeds_or_only_lacks_room_ends_it(disk, answer):
    health.record_error(disk, FAILED, 1000.0, TIMING)
    health.record_attempt(disk, FAILED, 1001.0)
    health.record_readability(disk, is_readable=False, now_s=1001.0)
    health.record_attempt(disk, answer, 1002.0)
    assert (disk.present_state, disk.is_troubled) == (DiskState.RW, False)
    assert not health.is_lost(disk, 1e9, TIMING)
    assert health.is_in_backoff(disk, 1003.0), "but it is tried last for its time"


def test_a_disk_that_does_not_answer_keeps_its_say_for_a_time_and_is_never_lost(disk):
    health.record_error(disk, FAILED, 1000.0, TIMING)
    health.record_readability(disk, is_readable=False, now_s=1000.0)
    health.record_no_answer(disk, 1000.0 + TIMING.suspect_s - 1, TIMING)
    assert disk.present_state is DiskState.RW
    health.record_no_answer(disk, 1000.0 + TIMING.suspect_s, TIMING)
    assert disk.present_state is DiskState.FAILED
    assert not health.is_lost(disk, 1e9, TIMING)


def test_lost_is_what_cannot_be_read_at_any_look_for_long(disk):
    for seconds in (0.0, TIMING.lost_after_s - 1):
        health.record_readability(disk, is_readable=False, now_s=1000.0 + seconds)
    assert not health.is_lost(disk, 1000.0 + TIMING.lost_after_s - 1, TIMING)
    assert health.is_lost(disk, 1000.0 + TIMING.lost_after_s, TIMING)
    health.record_readability(disk, is_readable=True, now_s=2000.0)
    health.record_readability(disk, is_readable=False, now_s=2001.0)
    assert not health.is_lost(disk, 2002.0, TIMING)


def test_silence_is_a_suspicion_then_a_failure_and_an_answer_ends_it(disk):
    health.record_silence(disk, 1000.0, 1013.0, TIMING)
    assert (disk.present_state, disk.reported_state) == (DiskState.RW, DiskState.UNRESPONSIVE)
    assert disk.is_troubled
    assert "13 s" in disk.last_error
    assert health.is_in_backoff(disk, 1e9), "no create tries it first"
    health.record_silence(disk, 1000.0, 1000.0 + TIMING.suspect_s, TIMING)
    assert (disk.present_state, disk.reported_state) == (DiskState.FAILED, DiskState.UNRESPONSIVE)
    health.record_answer(disk)
    assert (disk.reported_state, disk.is_troubled, disk.last_error) == (DiskState.RW, False, "")
    assert not health.is_in_backoff(disk, 1013.0)


def test_a_disk_that_cannot_be_read_is_tried_last_whatever_can_be_made_there(disk):
    health.record_unreadable(disk, "Input/output error")
    health.record_success(disk)
    health.record_attempt(disk, None, 1000.0)
    assert disk.present_state is disk.reported_state is DiskState.UNREADABLE
    assert health.is_in_backoff(disk, 1000.0)
    assert not disk.is_troubled, "its segments can be removed"
    assert "Input/output error" in disk.last_error
    health.record_unreadable(disk, "")
    assert (disk.reported_state, disk.last_error) == (DiskState.RW, "")


def test_a_read_only_disk_that_cannot_be_read_is_reported(disk):
    disk.state = DiskState.RO
    health.record_unreadable(disk, "Input/output error")
    assert (disk.present_state, disk.reported_state) == (DiskState.RO, DiskState.UNREADABLE)


COMPARISON = Comparison(Operation.WRITE, 0.2, 0.002, 0.003)


def test_a_slow_disk_shows_it_until_a_probe_finds_it_well(disk):
    health.record_slow(disk, COMPARISON, 1000.0, PROBE_AFTER_S)
    assert (disk.is_slow, disk.reported_state, disk.present_state) == (True, DiskState.SLOW, DiskState.RW)
    assert not disk.is_troubled
    assert not health.is_in_backoff(disk, 1000.0)
    health.record_slow(disk, COMPARISON, 1600.0, PROBE_AFTER_S)
    assert disk.slowness == Slowness(COMPARISON, 1000.0, 1600.0 + PROBE_AFTER_S)
    health.record_success(disk)
    health.record_noted_slowness(disk, None, 1601.0)
    assert disk.is_slow, "neither a create nor a window ends it"
    health.record_not_slow(disk)
    assert (disk.is_slow, disk.reported_state, disk.slowness) == (False, DiskState.RW, None)


def test_a_noted_slowness_changes_no_state(disk):
    for now_s in (1000.0, 1010.0):
        health.record_noted_slowness(disk, COMPARISON, now_s)
    assert disk.slowness == Slowness(COMPARISON, 1000.0, None)
    assert (disk.is_slow, disk.reported_state) == (False, DiskState.RW)
    health.record_noted_slowness(disk, None, 1020.0)
    assert disk.slowness is None


def test_a_worse_state_hides_slowness(disk):
    health.record_slow(disk, COMPARISON, 1000.0, PROBE_AFTER_S)
    health.record_unreadable(disk, "Input/output error")
    assert disk.reported_state is DiskState.UNREADABLE
    health.record_silence(disk, 1000.0, 1020.0, TIMING)
    assert disk.reported_state is DiskState.UNRESPONSIVE
