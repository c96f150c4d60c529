"""One disk hangs: it is frozen (fsfreeze), so that writes to it wait in the kernel, or its device answers nothing,
so that reads do, too. The other disks continue, and afterwards the mount is complete."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.timing]

AT_ONCE_S = 1.5
"""Maximum time of a listing or a stat beside a hung disk: the deadline of one second, and a margin."""
CREATE_S = 4.0
"""A removal gives the hung disk three seconds, a create less; the broker gives up after five."""

FOUND_WITHIN_S = 40.0
"""A disk that does not answer is found within 30 s; a busy machine that runs tests gets a margin."""


@pytest.fixture
def farm_pool(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> tuple[PoolMount, list[LoopDisk]]:
    disks = [disk_farm.add("ext4") for _ in range(3)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories)
    pool.start()
    return pool, disks


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def places(pool: PoolMount, index: int) -> list[int]:
    return [n for n, disk in enumerate(pool.disks) if (Path(disk) / pool.path(index).name).exists()]


def descriptors(pool: PoolMount) -> int:
    assert pool.daemon is not None
    return len(os.listdir(f"/proc/{pool.daemon.pid}/fd"))


def test_the_other_disks_go_on_beside_a_hung_one(farm_pool: tuple[PoolMount, list[LoopDisk]]) -> None:
    pool, disks = farm_pool
    pool.make_segments(range(5))  # the next one is due on the disk that will hang
    eventually(lambda: not status(pool)["disks"][2]["last_error"])
    before = descriptors(pool)
    with frozen(disks[2]) as thaw:
        assert timed(lambda: pool.make_segments([5])) < CREATE_S
        assert places(pool, 5) == [0]
        assert timed(lambda: pool.make_segments(range(6, 10))) < AT_ONCE_S  # the disk is in backoff
        assert [places(pool, index) for index in range(6, 10)] == [[1], [0], [1], [0]]
        eventually(lambda: "not answered" in status(pool)["disks"][2]["last_error"])

        names = [pool.path(index).name for index in range(10)]
        assert timed(lambda: check_listing(pool, names)) < AT_ONCE_S
        assert timed(lambda: pool.path(2).stat()) < AT_ONCE_S
        assert pool.path(2).stat().st_size == MIB
        assert timed(lambda: os.statvfs(pool.mountpoint)) < AT_ONCE_S
        for index in (0, 1, 9):
            assert pool.path(index).read_bytes().startswith(segment_bytes(index, 4096))
        pool.path(0).unlink()  # of another disk
        thaw()
    # What had hung was the reservation of segment 5, already given up: nothing of it comes to light.
    eventually(lambda: descriptors(pool) <= before)
    assert places(pool, 5) == [0]
    assert pool.path(2).read_bytes().startswith(segment_bytes(2, 4096))
    pool.restart()
    assert sorted(os.listdir(pool.mountpoint)) == names[1:]
    pool.make_segments([10, 11, 12])
    assert sorted(place for index in (10, 11, 12) for place in places(pool, index)) == [0, 1, 2]


CREATES = 200
P99_S = 0.01
LISTED_S = 0.1


def p99_of_creates(pool: PoolMount, index: int) -> float:
    """The 99th percentile, for a segment that is made and removed again and again."""
    path, took_s = pool.path(index), list[float]()

    def create() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, MIB)
        os.close(fd)

    for _ in range(CREATES):
        took_s.append(timed(create))
        path.unlink()
    return sorted(took_s)[CREATES * 99 // 100 - 1]


@pytest.mark.parametrize("trouble", ["frozen", "unmounted", "lost"])
def test_others_answer_quickly_beside_a_disk_in_trouble(
    farm_pool: tuple[PoolMount, list[LoopDisk]], trouble: str
) -> None:
    """Once it is known. A machine that is busy makes creates slower in both cases."""
    pool, disks = farm_pool
    pool.make_segments(range(6))
    names = [pool.path(index).name for index in range(6)]
    before_s = p99_of_creates(pool, 6)
    with frozen(disks[2]) if trouble == "frozen" else contextlib.nullcontext():
        if trouble == "unmounted":
            disks[2].detach()
        elif trouble == "lost":
            disks[2].vanish()
        eventually(lambda: status(pool)["disks"][2]["state"] != "rw", FOUND_WITHIN_S)
        p99_s = p99_of_creates(pool, 6)
        listed_s = max(timed(lambda: check_listing(pool, names)) for _ in range(20))
        stat_s = max(timed(lambda: pool.path(2).stat()) for _ in range(20))
    print(f"{trouble}: creates p99 {p99_s:.4f} s, before {before_s:.4f}; listing {listed_s:.4f}, stat {stat_s:.4f}")
    assert p99_s < max(P99_S, 3 * before_s)
    assert max(listed_s, stat_s) < LISTED_S
    if trouble == "lost":
        pool.abandon()
        subprocess.run(["umount", disks[2].path], check=True)


def check_listing(pool: PoolMount, names: list[str]) -> None:
    with os.scandir(pool.mountpoint) as entries:
        assert sorted((entry.name, entry.stat().st_size) for entry in entries) == [(name, MIB) for name in names]


def test_a_writer_on_the_hung_disk_waits_and_then_continues(farm_pool: tuple[PoolMount, list[LoopDisk]]) -> None:
    pool, disks = farm_pool
    pool.make_segments(range(3))
    writing = ["dd", "if=/dev/zero", f"of={pool.path(2)}", "bs=4", "count=1", "seek=1", "conv=notrunc,fsync"]
    with frozen(disks[2]) as thaw:
        writer = subprocess.Popen(writing, stderr=subprocess.DEVNULL)
        eventually(lambda: hangs(writer.pid))
        assert timed(lambda: pool.make_segments([3, 4])) < AT_ONCE_S
        assert timed(lambda: check_listing(pool, [pool.path(index).name for index in range(5)])) < AT_ONCE_S
        assert pool.path(0).read_bytes().startswith(segment_bytes(0, 4096))
        assert writer.poll() is None
        thaw()
    assert writer.wait(10) == 0
    plain = (Path(pool.disks[2]) / pool.path(2).name).read_bytes()
    assert plain[:12] == segment_bytes(2, 12)[:4] + bytes(4) + segment_bytes(2, 12)[8:]


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_a_reader_on_the_hung_disk_waits_and_then_continues(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], mode: str
) -> None:
    silent = disk_farm.add_of(FlakyDisk)
    directories = [disk.path / "commitlog" for disk in (silent, disk_farm.add(), disk_farm.add())]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories, settings={"passthrough": f'"{mode}"'})
    pool.start()
    pool.make_segments(range(6))
    for index in range(6):
        fd = os.open(pool.path(index), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    silent.bypass_cache()
    with pool.path(3).open("rb", buffering=0):  # its inode stays in memory
        silent.drop_caches()
        with silent.hanging():
            reader = subprocess.Popen(["head", "-c", "64", str(pool.path(3))], stdout=subprocess.PIPE)
            eventually(lambda: hangs(reader.pid))
            assert timed(lambda: pool.make_segments(range(6, 10))) < 2 * CREATE_S
            assert timed(lambda: check_listing(pool, [pool.path(index).name for index in range(10)])) < AT_ONCE_S
            for index in (1, 2, 4, 5):
                assert timed(lambda index=index: pool.path(index).read_bytes()) < AT_ONCE_S
                assert pool.path(index).read_bytes().startswith(segment_bytes(index, 4096))
            eventually(lambda: status(pool)["disks"][0]["state"] == "unresponsive", FOUND_WITHIN_S)
            assert timed(lambda: pool.make_segments(range(10, 14))) < AT_ONCE_S
            assert reader.poll() is None
        assert reader.communicate(timeout=20)[0] == segment_bytes(3, 64)
    eventually(lambda: status(pool)["disks"][0]["state"] == "rw", FOUND_WITHIN_S)
    # What had hung may have been the last step of making segment 6 there: it is deleted when that returns.
    eventually(lambda: {place for index in range(6, 14) for place in places(pool, index)} == {1, 2})
    pool.make_segments(range(14, 17))
    assert {place for index in range(14, 17) for place in places(pool, index)} == {0, 1, 2}


def test_a_stat_beside_a_hanging_write_to_a_page_that_is_not_cached(
    farm_pool: tuple[PoolMount, list[LoopDisk]],
) -> None:
    pool, disks = farm_pool
    pool.make_segments(range(3))
    writing = ["dd", "if=/dev/zero", f"of={pool.path(2)}", "bs=4", "count=1", "seek=1250", "conv=notrunc"]
    with frozen(disks[2]) as thaw:
        writer = subprocess.Popen(writing, stderr=subprocess.DEVNULL)
        eventually(lambda: hangs(writer.pid))
        looker = subprocess.Popen(["stat", str(pool.path(2))], stdout=subprocess.DEVNULL)
        try:
            looker.wait(CREATE_S)
            answered = True
        except subprocess.TimeoutExpired:
            answered = False
        thaw()
        looker.wait(10)
        writer.wait(10)
    assert answered


def hangs(pid: int) -> bool:
    """In the kernel, beyond the reach of signals: in the disk's filesystem, or waiting for the daemon's answer."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"


def hangs_in(pid: int, function: str) -> bool:
    return function in Path(f"/proc/{pid}/stack").read_text()


def test_a_removal_on_the_hung_disk_does_not_stop_the_others(
    farm_pool: tuple[PoolMount, list[LoopDisk]],
) -> None:
    pool, disks = farm_pool
    pool.make_segments(range(5))
    pool.make_segments([5])
    with frozen(disks[2]) as thaw:
        remover = subprocess.Popen(["rm", "-f", str(pool.path(2))])
        eventually(lambda: hangs_in(remover.pid, "fuse_unlink"))
        listing = subprocess.Popen(["ls", str(pool.mountpoint)], stdout=subprocess.DEVNULL)
        try:
            listing.wait(CREATE_S)
            listed = True
        except subprocess.TimeoutExpired:
            listed = False
        remover.wait(10)
        with pytest.raises(FileExistsError):
            os.open(pool.path(2), os.O_RDWR | os.O_CREAT)
        thaw()
        listing.wait(10)
    assert listed
    assert remover.returncode != 0, "not done yet, so not promised"
    eventually(lambda: not (Path(pool.disks[2]) / pool.path(2).name).exists())
    eventually(lambda: "event=removed" in pool.log_since_start())
    pool.make_segments([2])
    assert pool.path(2).stat().st_size == MIB


OPENERS = 120
_WRITE_TO_ALL = """
import os, sys, threading
def write(path):
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"late", 8)
    os.close(fd)
threads = [threading.Thread(target=write, args=[path]) for path in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def waiting_for_answers(pid: int) -> int:
    """How many threads of a process wait for the daemon."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum((task / "wchan").read_text() == "request_wait_answer" for task in tasks)


def test_more_requests_on_a_hung_disk_than_pyfuse3_takes_by_itself(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    disks = [disk_farm.add("ext4") for _ in range(2)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories, segment_size=16384)
    pool.start()
    pool.make_segments(range(2 * OPENERS), fill=False)
    hung = [pool.path(index) for index in range(1, 2 * OPENERS, 2)]
    assert all((directories[1] / path.name).exists() for path in hung)
    with frozen(disks[1]) as thaw:
        writer = subprocess.Popen([sys.executable, "-c", _WRITE_TO_ALL, *map(str, hung)])
        eventually(lambda: waiting_for_answers(writer.pid) == OPENERS)
        assert timed(lambda: pool.make_segments([2 * OPENERS], fill=False)) < CREATE_S
        assert timed(lambda: os.listdir(pool.mountpoint)) < AT_ONCE_S
        assert timed(lambda: os.statvfs(pool.mountpoint)) < AT_ONCE_S
        for index in (0, 2, 4):
            fd = os.open(pool.path(index), os.O_WRONLY)
            assert timed(lambda fd=fd: os.pwrite(fd, b"soon", 8)) < AT_ONCE_S
            os.close(fd)
            assert pool.path(index).read_bytes()[8:12] == b"soon"
        assert writer.poll() is None
        thaw()
    assert writer.wait(20) == 0
    for path in hung:
        assert path.read_bytes()[8:12] == b"late"
    assert len(os.listdir(pool.mountpoint)) == 2 * OPENERS + 1
