"""Nobody reads the daemon's log, or its disk is full: lines are lost, and the mount works."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import COMMAND
from support.loop_disks import DiskFarm
from support.pools import PoolMount, segment_bytes
from support.waiting import eventually

from commitlogfs.console.errors import UnreachableError

pytestmark = [pytest.mark.mounted, pytest.mark.root]

PIPE_BYTES = 4096
SEGMENTS = 200
"""Their lines are several times as many as a pipe takes."""


def start(pool: PoolMount, log: int) -> None:
    pool.write_config()
    pool.daemon = subprocess.Popen(
        [*COMMAND, "mount", "-v", "--no-keeper", str(pool.config)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **pool.env},
    )
    eventually(lambda: answers(pool))


def answers(pool: PoolMount) -> bool:
    with contextlib.suppress(UnreachableError, OSError):
        pool.ask("status")
        return os.path.ismount(pool.mountpoint)
    return False


@contextlib.contextmanager
def unread_pipe() -> Iterator[tuple[int, int]]:
    """Its ends to read and to write; a process that fills it waits."""
    to_read, to_write = os.pipe()
    try:
        fcntl.fcntl(to_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield to_read, to_write
    finally:
        os.close(to_read)
        os.close(to_write)


def use(pool: PoolMount) -> None:
    pool.make_segments(range(SEGMENTS))
    for index in range(0, SEGMENTS, 10):
        pool.path(index).unlink()
    assert len(os.listdir(pool.mountpoint)) == SEGMENTS - SEGMENTS // 10
    assert pool.path(1).read_bytes().startswith(segment_bytes(1, 64))
    assert pool.status()["segments"]["count"] == SEGMENTS - SEGMENTS // 10
    assert "commitlogfs_" in pool.metrics()


def test_a_reader_of_the_log_that_stands_still(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(3, segment_size=65536)
    with unread_pipe() as (to_read, to_write):
        start(pool, to_write)
        use(pool)
        os.set_blocking(to_write, False)
        with pytest.raises(BlockingIOError):
            os.write(to_write, bytes(PIPE_BYTES))
        os.set_blocking(to_write, True)
        pool.stop()
        assert len(os.read(to_read, 2 * PIPE_BYTES)) > PIPE_BYTES // 2


@pytest.mark.timing
def test_a_full_log_costs_no_time(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(3, segment_size=65536)
    with unread_pipe() as (_, to_write):
        start(pool, to_write)
        started = time.monotonic()
        use(pool)
        assert time.monotonic() - started < 30
        pool.stop()


@pytest.mark.timing
def test_a_full_disk_of_the_log_costs_no_time(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    place = disk_farm.add().path
    pool = make_pool(3, segment_size=65536)
    with (place / "log").open("ab", buffering=0) as log:
        start(pool, log.fileno())
        fill_completely(place)
        started = time.monotonic()
        use(pool)
        assert time.monotonic() - started < 30
        pool.stop()


def test_a_log_on_a_full_disk(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    place = disk_farm.add().path
    pool = make_pool(3, segment_size=65536)
    with (place / "log").open("ab", buffering=0) as log:
        start(pool, log.fileno())
        hog = fill_completely(place)
        use(pool)
        with pytest.raises(OSError, match="No space left"):
            log.write(bytes(8192))
        hog.unlink()
        pool.path(1).unlink()
        eventually(lambda: "event=removed" in (place / "log").read_text().splitlines()[-1])
        pool.stop()


def fill_completely(directory: Path) -> Path:
    hog = directory / "hog"
    with hog.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return hog
