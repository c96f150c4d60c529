"""How often the thread of `top` asks."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.clocks import RecordedWaits
from support.scripted_daemon import scripted_daemon
from support.waiting import eventually

from commitlogfs.mount.location.name_lock import hold_file
from commitlogfs.mount.location.runtime_directory import keeper_lock_path, socket_path
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.top import feed as feed_module
from commitlogfs.mount.top.feed import Feed

NAME = "test"


@pytest.fixture
def pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the feed, which are over at once. Its questions have little time."""
    clock = RecordedWaits()
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(feed_module, "time", clock)
    monkeypatch.setattr(feed_module, "FIRST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(feed_module, "TIMEOUT_S", 0.1)
    return clock.waits_s


@pytest.fixture
def feed(pauses: list[float]) -> Iterator[Feed]:
    """Its thread ends before the clock of its pauses becomes another test's."""
    others = set(threading.enumerate())
    made = Feed(Target(NAME), NAME)
    (thread,) = set(threading.enumerate()) - others
    yield made
    made.close()
    thread.join()


def ask_three_times(feed: Feed) -> None:
    for count in range(3):
        feed.request()
        eventually(lambda count=count: feed.answer.count > count)


def test_a_daemon_that_hangs_is_asked_less_and_less_often(feed: Feed, pauses: list[float]) -> None:
    with scripted_daemon(socket_path(NAME)) as daemon:
        daemon.held.add("status")
        ask_three_times(feed)
        assert pauses[:2] == [1, 2]


def test_a_daemon_that_is_replaced_is_asked_as_often_as_another(feed: Feed, pauses: list[float]) -> None:
    with ExitStack() as stack:
        lock = hold_file(keeper_lock_path(NAME), 0.0)
        assert lock is not None
        stack.callback(os.close, lock)
        ask_three_times(feed)
        assert pauses == []
