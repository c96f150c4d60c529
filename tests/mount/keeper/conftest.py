"""Fixtures of the tests of the keeper."""

import signal
from collections.abc import Iterator

import pytest

from commitlogfs.mount.linux.stop_signals import REOPEN, STOPS, Signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Catches the stop signals of this process until the end of the test."""
    former = {number: signal.getsignal(number) for number in (*STOPS, REOPEN)}
    made = Signals()
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in former.items():
        signal.signal(number, handler)
    made.close()
