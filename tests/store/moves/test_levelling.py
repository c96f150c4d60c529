"""How long a rebalance by placement is expected to take."""

import pytest

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.moves.balance import Level
from commitlogfs.store.moves.levelling import expect_levelling

SEGMENT = 10


def level(number: int, used: int, movable: int = 0, room: int = 1000) -> Level:
    return Level(DiskNumber(number), used, 1000, movable, room)


def test_without_growth_only_the_bytes_are_known() -> None:
    found = expect_levelling([level(1, 600), level(2, 100)], SEGMENT, 0.02, 0.0, None)
    assert found.seconds is None
    assert found.written_bytes == pytest.approx(480)
    assert found.shares[DiskNumber(2)] == pytest.approx(0.58)


def test_the_emptier_disks_are_filled_at_the_rate_of_growth() -> None:
    found = expect_levelling([level(1, 600), level(2, 100), level(3, 300)], SEGMENT, 0.02, 10.0, None)
    assert found.seconds == pytest.approx((480 + 280) / 10)
    assert [found.shares[DiskNumber(n)] for n in (1, 2, 3)] == pytest.approx([0.6, 0.58, 0.58])


def test_what_expires_on_the_fuller_disks_shortens_it() -> None:
    """600 bytes of segments go within 100 s, and 6 bytes a second come: the disks meet at 300."""
    found = expect_levelling([level(1, 600, 60), level(2, 0)], SEGMENT, 0.0001, 6.0, 100.0)
    assert found.seconds == pytest.approx(50, rel=0.01)
    assert found.shares[DiskNumber(1)] == pytest.approx(0.3, rel=0.01)


def test_disks_that_are_equal_are_expected_at_once() -> None:
    assert expect_levelling([level(1, 100), level(2, 100)], SEGMENT, 0.02, 1.0, None).seconds == pytest.approx(0)


def test_one_disk_alone_is_level() -> None:
    assert expect_levelling([level(1, 100)], SEGMENT, 0.02, 1.0, None).written_bytes == 0


@pytest.mark.parametrize("bytes_per_second", [0.0, 10.0])
def test_no_disk_is_filled_beyond_its_room(bytes_per_second: float) -> None:
    """Data of others fill a disk to 97.4 %; the room of the others ends at 85 %."""
    levels = [level(1, 974), level(2, 100, room=75), level(3, 300, room=55)]
    found = expect_levelling(levels, SEGMENT, 0.02, bytes_per_second, None)
    assert found.seconds is None
    assert found.written_bytes == pytest.approx(750 + 550)
    assert [found.shares[DiskNumber(n)] for n in (1, 2, 3)] == pytest.approx([0.974, 0.85, 0.85])
