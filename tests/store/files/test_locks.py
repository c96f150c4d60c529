"""A lock is one daemon's, for as long as anybody has a copy of its descriptor."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlogfs.store.files.locks import lock_holder, take_lock


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two opens of one directory."""
    fds = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    yield fds
    for fd in fds:
        os.close(fd)


def test_the_second_one_is_told(two: tuple[int, int], tmp_path: Path) -> None:
    first, second = two
    assert lock_holder(str(tmp_path)) is None
    assert take_lock(first)
    assert take_lock(first)
    assert not take_lock(second)
    assert not take_lock(second, 0.05)
    assert lock_holder(str(tmp_path)) == os.getpid()


def test_patience_outlasts_a_copy_that_goes_away(two: tuple[int, int]) -> None:
    first, second = two
    assert take_lock(first)
    copy = os.dup(first)
    with open(os.devnull, "rb") as other:
        os.dup2(other.fileno(), first)  # the daemon has died, its child not yet
    assert not take_lock(second)
    ending = threading.Timer(0.1, os.close, [copy])
    ending.start()
    assert take_lock(second, 300.0)
    ending.join()
