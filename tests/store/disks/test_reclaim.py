"""Removals that give nothing are noticed, and a busy disk is not taken for one that gives nothing."""

import pytest

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.disks.reclaim import FRUITLESS_REMOVALS, ReclaimedSpace
from commitlogfs.store.timing import DEFAULT

SIZE = 100
DISK = DiskNumber(1)
FRUITLESS_S = DEFAULT.health.fruitless_s


@pytest.fixture
def yields():
    return ReclaimedSpace(SIZE, FRUITLESS_S)


def remove(yields: ReclaimedSpace, *gains: int, free: int = 1000, now_s: float = 0.0) -> None:
    for gained in gains:
        yields.record_removal(DISK, SIZE, gained, free, now_s)


def test_several_in_a_row_that_give_nothing_make_a_disk_barren(yields):
    remove(yields, *[0] * (FRUITLESS_REMOVALS - 1))
    assert not yields.reclaims_nothing(DISK, 0.0)
    remove(yields, 10)
    assert yields.reclaims_nothing(DISK, 0.0)
    assert not yields.reclaims_nothing(DiskNumber(2), 0.0)


def test_one_that_gives_ends_the_row(yields):
    remove(yields, 0, 0, 60, 0, 0)
    assert not yields.reclaims_nothing(DISK, 0.0)
    remove(yields, 0, 100)
    assert not yields.reclaims_nothing(DISK, 0.0)


def test_what_was_not_counted_on_proves_nothing(yields):
    for _ in range(10):
        yields.record_removal(DISK, 0, 0, 1000, 0.0)
    assert not yields.reclaims_nothing(DISK, 0.0)


def test_free_space_that_rises_by_itself_allows_one_more(yields):
    """From its lowest: a writer may have taken some before."""
    remove(yields, 0, 0, 0)
    yields.record_free(DISK, 900)
    yields.record_free(DISK, 949)
    assert yields.reclaims_nothing(DISK, 0.0)
    yields.record_free(DISK, 950)
    assert not yields.reclaims_nothing(DISK, 0.0)
    remove(yields, 0, free=950)
    assert yields.reclaims_nothing(DISK, 0.0)


def test_space_that_comes_late_counts(yields):
    """A filesystem that frees in the background: never three removals without effect in a row, so it stays
    reclaiming."""
    for number in range(10):
        remove(yields, 0, free=1000 + number * SIZE)
        yields.record_free(DISK, 1000 + (number + 1) * SIZE)
        assert not yields.reclaims_nothing(DISK, 0.0)


def test_noise_allows_one_at_a_time(yields):
    """Other data that comes and goes must not cost a segment for each step of the row."""
    remove(yields, 0, 0, 0)
    yields.record_free(DISK, 1100)
    yields.record_free(DISK, 1200)
    remove(yields, 0, free=1200)
    assert yields.reclaims_nothing(DISK, 0.0)


def test_after_a_long_time_one_more_is_tried(yields):
    remove(yields, 0, 0, 0, now_s=5.0)
    assert yields.reclaims_nothing(DISK, 5.0 + FRUITLESS_S - 1)
    assert not yields.reclaims_nothing(DISK, 5.0 + FRUITLESS_S)
    remove(yields, 0, now_s=5.0 + FRUITLESS_S)
    assert yields.reclaims_nothing(DISK, 5.0 + FRUITLESS_S)
    remove(yields, 100, now_s=6.0 + 2 * FRUITLESS_S)
    assert not yields.reclaims_nothing(DISK, 6.0 + 2 * FRUITLESS_S)
