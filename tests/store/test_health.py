import pytest
from support.files import open_disk

from commitlogfs.store import health
from commitlogfs.store.disk import DiskState
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, DiskReadOnlyError


@pytest.fixture
def disk(workdir):
    with open_disk(workdir) as disk:
        yield disk


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (DiskFullError, health.HOLD_BACK_FULL_S),
        (DiskReadOnlyError, health.HOLD_BACK_READ_ONLY_S),
        (DiskFailedError, health.HOLD_BACK_FAILED_S),
        (DiskError, health.HOLD_BACK_FAILED_S),
    ],
)
def test_a_failed_disk_is_passed_over_for_its_time(disk, kind, seconds):
    assert not health.is_held_back(disk, 1000.0)
    health.note_error(disk, kind("/data1", "trouble"), 1000.0)
    assert health.is_held_back(disk, 1000.0)
    assert health.is_held_back(disk, 1000.0 + seconds - 0.001)
    assert not health.is_held_back(disk, 1000.0 + seconds)
    assert disk.last_error == "/data1: trouble", "told even after the time is over"


def test_the_more_lasting_the_trouble_the_longer_the_time():
    assert health.HOLD_BACK_FULL_S < health.HOLD_BACK_READ_ONLY_S < health.HOLD_BACK_FAILED_S


def test_a_success_forgets(disk):
    health.note_error(disk, DiskFailedError("/data1", "trouble"), 1000.0)
    health.note_success(disk)
    assert not health.is_held_back(disk, 1000.0)
    assert disk.last_error == ""


def test_the_latest_error_decides(disk):
    health.note_error(disk, DiskFailedError("/data1", "old"), 1000.0)
    health.note_error(disk, DiskFullError("/data1", "new"), 1001.0)
    assert not health.is_held_back(disk, 1003.0)
    assert disk.last_error == "/data1: new"


@pytest.mark.parametrize("state", [state for state in DiskState if state is not DiskState.RW])
def test_a_disk_that_takes_nothing_anyway_is_not_held_back(disk, state):
    health.note_error(disk, DiskFailedError("/data1", "trouble"), 1000.0)
    disk.state = state
    assert not health.is_held_back(disk, 1000.0)
