"""A copy whose steps run in the threads of disks, and end when they can."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from commitlogfs.store.moves.copy import SegmentCopy, open_source

NAME = b"00000000000000000000"


@pytest.fixture
def dirfd(workdir: Path) -> Iterator[int]:
    (workdir / os.fsdecode(NAME)).write_bytes(bytes(4096))
    fd = os.open(workdir, os.O_RDONLY)
    yield fd
    os.close(fd)


def open_copy(dirfd: int) -> SegmentCopy:
    return open_source(dirfd, NAME, os.stat(NAME, dir_fd=dirfd).st_ino)


def descriptors_of_source(dirfd: int) -> int:
    """Number of descriptors of this process that lead to the source."""
    source = os.readlink(f"/proc/self/fd/{dirfd}") + "/" + os.fsdecode(NAME)
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}") == source
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


def test_a_step_that_begins_after_the_close_fails(dirfd: int) -> None:
    """A step that is late in the queue of its disk's thread must not hold that thread."""
    copy, failures = open_copy(dirfd), list[OSError]()
    copy.close()

    def step() -> None:
        try:
            copy.read_chunk()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=step, daemon=True)  # a thread that waits for ever does not hold the test
    thread.start()
    thread.join(PATIENCE_S)
    assert [failure.errno for failure in failures] == [errno.EBADF]
    assert descriptors_of_source(dirfd) == 0


def test_a_close_during_a_step_takes_effect_at_its_end(dirfd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, preadv = open_copy(dirfd), os.preadv
    seen = list[int]()

    def read(*arguments: object) -> int:
        copy.close()
        seen.append(descriptors_of_source(dirfd))
        return preadv(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", read)
    assert copy.read_chunk() == 4096
    assert (seen, descriptors_of_source(dirfd)) == ([1], 0)


def test_a_close_at_the_very_end_of_a_step_closes_the_files(dirfd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has just found that the copy is open, and has the lock still."""
    copies, new_lock = list[SegmentCopy](), threading.Lock

    class Lock:
        def __init__(self) -> None:
            self._lock = new_lock()

        def acquire(self, *, blocking: bool = True) -> bool:
            return self._lock.acquire(blocking=blocking)

        def release(self) -> None:
            copies[0].close()
            self._lock.release()

    with monkeypatch.context() as patched:
        patched.setattr(threading, "Lock", Lock)
        copies.append(open_copy(dirfd))
    assert copies[0].read_chunk() == 4096
    assert descriptors_of_source(dirfd) == 0
