"""When a scrub gives up a disk that cannot be read."""

from commitlogfs.store.scrub.patience import Patience
from commitlogfs.store.scrub.progress import Progress, Run
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.timing import DEFAULT

GIVE_UP_S, LONGEST_STEP_S = DEFAULT.scrub.give_up_s, DEFAULT.scrub.longest_step_s


class Watched:
    """A disk that is observed in each second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.position = 0
        self.read_bytes = 0
        self.is_idle = False
        self._patience = Patience(DEFAULT.scrub)
        self.observe()

    def observe(self) -> bool:
        progress = Progress(Run(5, BaseOffset(1 << 40)), BaseOffset(self.position))
        return self._patience.is_over(self.now_s, progress, self.read_bytes, is_idle=self.is_idle)

    def is_given_up_within(self, seconds: float) -> bool:
        is_over = False
        for _ in range(round(seconds)):
            self.now_s += 1.0
            is_over = self.observe()
        return is_over


def test_a_disk_that_returns_nothing_is_given_up() -> None:
    disk = Watched()
    assert not disk.is_given_up_within(GIVE_UP_S - 1)
    assert disk.is_given_up_within(1)


def test_a_segment_that_is_done_ends_the_wait() -> None:
    disk = Watched()
    disk.is_given_up_within(GIVE_UP_S - 1)
    disk.position += 1
    assert not disk.is_given_up_within(GIVE_UP_S)
    assert disk.is_given_up_within(1)


def test_reading_slowly_is_no_wait() -> None:
    disk = Watched()
    for _ in range(3 * round(GIVE_UP_S)):
        disk.read_bytes += 1
        assert not disk.is_given_up_within(1)


def test_a_disk_that_never_ends_a_segment_is_given_up() -> None:
    """It reads for a minute, and is in trouble for the next one, again and again."""
    disk, minutes = Watched(), 0
    while not disk.is_given_up_within(60):
        disk.read_bytes += 1
        minutes += 1
    assert minutes == GIVE_UP_S // 59


def test_a_pause_does_not_count() -> None:
    disk = Watched()
    disk.is_given_up_within(GIVE_UP_S - 1)
    disk.is_idle = True
    assert not disk.is_given_up_within(3 * GIVE_UP_S)
    disk.is_idle = False
    assert disk.is_given_up_within(1)


def test_the_time_of_a_stopped_daemon_does_not_count() -> None:
    disk = Watched()
    disk.now_s += 10 * GIVE_UP_S
    assert not disk.observe()
    assert not disk.is_given_up_within(GIVE_UP_S - LONGEST_STEP_S - 1)
    assert disk.is_given_up_within(1)
