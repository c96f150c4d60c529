"""Disks are checked although nobody uses them: faults that passthrough hides are found, and a busy disk is well."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.freezing import frozen
from support.loop_disks import XFS_MIN_BYTES, DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

FOUND_WITHIN_S = 40.0
"""Disks in trouble are found within 30 s; a busy machine that runs tests gets a margin."""
BACKOFF_S = 60.0
"""Time after which a disk that can be read again takes segments."""
NEVER = {"interval": '"10m"'}
"""Only the checks find a fault: the rules of forced deletion, which probe disks in trouble, do not run."""

MakePool = Callable[..., PoolMount]


def pool_on(make_pool: MakePool, disks: list[Any], **options: object) -> PoolMount:
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, retention=NEVER, **options)
    pool.start()
    return pool


def first(pool: PoolMount) -> Any:
    return status(pool)["disks"][0]


def await_state(pool: PoolMount, state: str, seconds: float = PATIENCE_S) -> None:
    eventually(lambda: first(pool)["state"] == state, seconds)


def place(pool: PoolMount, index: int) -> int:
    """Position of the disk that holds a segment, by the mount's own word: a failing disk cannot be asked."""
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def metric(pool: PoolMount, state: str) -> bool:
    text = pool.metrics()
    return f'commitlogfs_disk_state{{disk="{pool.disks[0]}",pool="test",state="{state}"}} 1.0' in text


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize(
    ("fstype", "found_s", "backoff_s"),
    [
        pytest.param("ext4", PATIENCE_S, PATIENCE_S, id="ext4"),
        pytest.param("xfs", PATIENCE_S, PATIENCE_S, id="xfs"),
        pytest.param("ext4", FOUND_WITHIN_S, BACKOFF_S, id="in_time", marks=pytest.mark.timing),
    ],
)
def test_a_disk_that_fails_every_read(
    disk_farm: DiskFarm, make_pool: MakePool, fstype: str, found_s: float, backoff_s: float
) -> None:
    bad = disk_farm.add_of(FlakyDisk, fstype, XFS_MIN_BYTES if fstype == "xfs" else None)
    pool = pool_on(make_pool, [bad, disk_farm.add()])
    pool.make_segments(range(6))
    bad.bypass_cache()
    bad.fail_reads()
    await_state(pool, "unreadable", found_s)
    assert metric(pool, "unreadable")
    assert "Input/output error" in first(pool)["last_error"]
    pool.require_logged("event=disk_unreadable")
    said = pool.cli("status", pool.name).out.replace("\n", " ")
    assert "cannot be read: gets no new segments until two checks can read again" in said
    placed = pool.log_since_start().count("event=create_moved_on")
    pool.make_segments(range(6, 9))
    assert [place(pool, index) for index in range(6, 9)] == [1, 1, 1]
    assert pool.log_since_start().count("event=create_moved_on") == placed
    bad.heal()
    await_state(pool, "rw", found_s)
    pool.require_logged("event=disk_readable")
    eventually(lambda: first(pool)["eligible"], backoff_s)
    pool.make_segments(range(9, 11))
    assert {place(pool, index) for index in range(9, 11)} == {0, 1}


_MAPPED_READ = """
import mmap, os, sys
with mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
    sys.stdout.buffer.write(mapped[:64])
"""


def read_mapped(path: Path) -> "subprocess.CompletedProcess[bytes]":
    """By a process of its own, which a page that cannot be read ends."""
    return subprocess.run([sys.executable, "-c", _MAPPED_READ, path], stdout=subprocess.PIPE, check=False)


@pytest.mark.alone
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_only_segments_of_an_unreadable_disk_fail(disk_farm: DiskFarm, make_pool: MakePool, mode: str) -> None:
    """With ext4: an xfs whose metadata is not in memory refuses writes, too, and is `failed`."""
    bad = disk_farm.add_of(FlakyDisk)
    pool = pool_on(make_pool, [bad, disk_farm.add()], settings={"passthrough": f'"{mode}"'})
    pool.make_segments(range(4))
    with opened(pool, range(4)) as fds:  # their inodes stay in memory, and their content does not
        for fd in fds:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        bad.bypass_cache()
        bad.drop_caches()
        bad.fail_reads()
        for index in (0, 2):
            with pytest.raises(OSError) as refused:  # noqa: PT011
                os.pread(fds[index], 64, 0)
            assert refused.value.errno == errno.EIO
            assert read_mapped(pool.path(index)).returncode == -signal.SIGBUS
        for index in (1, 3):
            assert os.pread(fds[index], 64, 0) == read_mapped(pool.path(index)).stdout == segment_bytes(index, 64)
        assert [path.stat().st_size for path in pool.mountpoint.iterdir()] == [MIB] * 4
        await_state(pool, "unreadable")
        bad.heal()
        await_state(pool, "rw")
        for index in range(4):
            assert os.pread(fds[index], 64, 0) == read_mapped(pool.path(index)).stdout == segment_bytes(index, 64)


@contextmanager
def opened(pool: PoolMount, indexes: range) -> Iterator[list[int]]:
    fds = [os.open(pool.path(index), os.O_RDONLY) for index in indexes]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.timing
def test_a_frozen_disk(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    disks = [disk_farm.add(), disk_farm.add()]
    pool = pool_on(make_pool, disks)
    pool.make_segments(range(4))
    time.sleep(2)
    started = time.monotonic()
    with frozen(disks[0], FOUND_WITHIN_S + 10) as thaw:
        await_state(pool, "unresponsive", FOUND_WITHIN_S)
        assert time.monotonic() - started < FOUND_WITHIN_S
        assert metric(pool, "unresponsive")
        pool.require_logged("event=disk_unresponsive ")
        said = pool.cli("status", pool.name).out.replace("\n", " ")
        assert "does not answer: gets no new segments until it does" in said
        before = time.monotonic()
        pool.make_segments(range(4, 8))
        assert time.monotonic() - before < 2, "no create waits for it"
        assert [place(pool, index) for index in range(4, 8)] == [1] * 4
        thaw()
    await_state(pool, "rw", 10)
    pool.require_logged("event=disk_responsive")
    assert not first(pool)["last_error"]
    pool.make_segments(range(8, 10))
    assert {place(pool, index) for index in range(8, 10)} == {0, 1}


_STORM = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
number = 0
while True:
    os.pwrite(fd, os.urandom(1 << 18), number % 4 << 18)
    os.fsync(fd)
    number += 1
"""


@contextmanager
def storm(paths: list[Path]) -> Iterator[None]:
    """Processes that write and sync these files, and others that only use the processors."""
    writers = [subprocess.Popen([sys.executable, "-c", _STORM, str(path)]) for path in paths]
    idlers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for process in writers + idlers:
            process.kill()
            process.wait()


@pytest.mark.timing
def test_a_busy_disk_is_well(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool = pool_on(make_pool, [disk_farm.add(), disk_farm.add()])
    pool.make_segments(range(6))
    with storm([pool.path(index) for index in range(6)]):
        time.sleep(40)
        states = [disk["state"] for disk in status(pool)["disks"]]
    assert states == ["rw", "rw"]
    said = pool.log_since_start()
    assert "disk_un" not in said
    assert "disk_check_failed" not in said
    assert 'op="check' not in pool.metrics()


def test_a_check_leaves_nothing_behind(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    disk = disk_farm.add()
    pool = pool_on(make_pool, [disk])
    pool.make_segments(range(3))
    before = sorted(os.listdir(pool.disks[0]))
    written = sectors_written(disk)
    eventually(lambda: sectors_written(disk) > written)  # a synced write of a check
    assert pool.daemon is not None
    pool.daemon.kill()
    pool.daemon.wait()
    eventually(lambda: not checkers_of(disk))
    assert sorted(os.listdir(pool.disks[0])) == before
    pool.abandon()


def checkers_of(disk: LoopDisk) -> list[str]:
    """Processes that check disks, and have this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"check_process" in (process / "cmdline").read_bytes() and any(
                str(disk.path) in os.readlink(fd) for fd in (process / "fd").iterdir()
            ):
                found.append(process.name)
        except OSError:
            pass
    return found


def sectors_written(disk: LoopDisk) -> int:
    return int(Path(f"/sys/class/block/{Path(disk.device).name}/stat").read_text().split()[6])
