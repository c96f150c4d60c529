"""A daemon dies and another takes over its mount: the users of the mount do not notice it."""

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import background_user
from support.kept import KeptMount
from support.pools import MIB, segment_bytes
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def grow(kept: KeptMount, index: int) -> int:
    fd = os.open(kept.pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, MIB)
    return fd


def names(kept: KeptMount) -> list[str]:
    return sorted(os.listdir(kept.pool.mountpoint))


def bare(kept: KeptMount, index: int) -> Path:
    name = kept.pool.path(index).name
    (found,) = [Path(disk) / name for disk in kept.pool.disks if (Path(disk) / name).exists()]
    return found


def in_background(work: Callable[[], object]) -> Callable[[], object]:
    """Do it in a thread; the value waits for the result, or raises the error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> object:
        thread.join(PATIENCE_S)
        assert outcome, "still waits"
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    return result


def test_open_files_and_mappings_continue(kept: KeptMount) -> None:
    fd = grow(kept, 0)
    with mmap.mmap(fd, MIB) as mapped:
        mapped[:6] = b"before"
        mapped.flush()
        kept.kill()
        mapped[10:16] = b"during"  # no daemon is there
        kept.go_on()
        mapped[20:25] = b"after"
        mapped.flush()
        os.fsync(fd)
        assert os.pread(fd, 25, 0) == b"before" + bytes(4) + b"during" + bytes(4) + b"after"
        assert os.fstat(fd).st_size == MIB
        second = os.open(kept.pool.path(0), os.O_RDWR)  # another opener of a mapped segment
        assert os.pread(second, 25, 0)[20:] == b"after"
        os.pwrite(second, b"second", 100)
        assert mapped[100:106] == b"second"
        os.close(second)
    os.close(fd)
    assert bare(kept, 0).read_bytes()[:6] == b"before"
    assert kept.pool.status()["daemon"]["restarts"] == 1


def test_requests_wait_for_the_successor(kept: KeptMount) -> None:
    """open, create, unlink, fsync, statfs, listing: sent while nobody is there, answered by the next daemon."""
    kept.pool.make_segments(range(3))
    fd = os.open(kept.pool.path(0), os.O_RDWR)
    kept.kill()
    results = [
        in_background(work)
        for work in (
            lambda: os.fsync(fd),
            lambda: os.statvfs(kept.pool.mountpoint).f_blocks,
            lambda: kept.pool.path(1).read_bytes()[:4],
            lambda: grow(kept, 7),
            lambda: kept.pool.path(2).unlink(),
            lambda: os.listdir(kept.pool.mountpoint),
        )
    ]
    time.sleep(0.2)
    kept.go_on()
    values: list[Any] = [result() for result in results]
    assert values[2] == segment_bytes(1, 4)
    os.close(values[3])
    os.close(fd)
    assert names(kept) == [kept.pool.path(index).name for index in (0, 1, 7)]


def test_many_deaths_in_a_row(kept: KeptMount) -> None:
    # In a process of its own: a page fault that waits for the next daemon holds all threads of its interpreter.
    with background_user.running(kept.pool.mountpoint, kept.pool.segment_size):
        for _ in range(8):
            kept.replace()
    assert names(kept) == []
    assert len(mountinfo.mounts_below(kept.pool.workdir)) == 1
    eventually(lambda: not any((Path(disk) / ".commitlogfs").exists() for disk in kept.pool.disks))


def test_a_removed_but_mapped_segment_is_kept_over_the_death_and_freed_at_its_last_close(kept: KeptMount) -> None:
    fd = grow(kept, 0)
    mapped = mmap.mmap(fd, MIB)
    mapped[:4] = b"held"
    kept.replace()
    kept.pool.path(0).unlink()  # this daemon has seen no open of it
    assert kept.pool.status()["segments"]["retired"] == 1
    kept.replace()
    assert mapped[:4] == b"held"
    assert os.pread(fd, 4, 0) == b"held"
    assert os.fstat(fd).st_nlink == 0
    mapped.close()
    os.close(fd)
    eventually(lambda: kept.pool.status()["segments"]["retired"] == 0)
    assert [os.listdir(disk) for disk in kept.pool.disks] == [[], [], []]
    assert kept.pool.status()["daemon"]["passthrough_files"] == kept.pool.status()["daemon"]["plain_files"] == 0


def test_the_same_name_made_again_is_another_file_over_a_death(kept: KeptMount) -> None:
    old = grow(kept, 0)
    os.pwrite(old, b"old", 0)
    kept.pool.path(0).unlink()
    kept.replace()
    new = grow(kept, 0)
    os.pwrite(new, b"new", 0)
    kept.replace()
    assert (os.pread(old, 3, 0), os.pread(new, 3, 0)) == (b"old", b"new")
    assert kept.pool.path(0).read_bytes()[:3] == b"new"
    os.close(old)
    os.close(new)


def test_unmounting_after_a_takeover_ends_everything(kept: KeptMount) -> None:
    kept.pool.make_segments(range(3))
    kept.replace()
    keeper = kept.pool.daemon
    ran = kept.pool.cli("umount", kept.pool.mountpoint)
    assert ran.status == 0, ran.err
    assert keeper is not None
    assert keeper.wait(PATIENCE_S) == 0
    kept.pool.daemon = None
    kept.start()  # a fresh mount
    assert kept.pool.status()["daemon"]["restarts"] == 0
    assert len(names(kept)) == 3


def test_restart_hands_over_to_new_code(kept: KeptMount) -> None:
    fd = grow(kept, 0)
    before = kept.daemon
    ran = kept.pool.cli("restart", kept.pool.config)
    assert ran.status == 0, ran.err
    assert kept.pool.status()["daemon"]["pid"] != before
    os.pwrite(fd, b"on", 0)
    os.fsync(fd)
    os.close(fd)
    assert kept.pool.path(0).read_bytes()[:2] == b"on"


def test_a_second_daemon_is_refused_while_the_first_is_stopped(kept: KeptMount) -> None:
    """It may go on at any moment, and two would answer the same requests."""
    os.kill(kept.daemon, signal.SIGSTOP)
    try:
        ran = kept.pool.cli("mount", "--no-keeper", kept.pool.config)
    finally:
        os.kill(kept.daemon, signal.SIGCONT)
    assert ran.status == 4
    assert ran.err.count("\n") == 1
    os.close(grow(kept, 0))
    assert len(names(kept)) == 1
