"""The long proof that no load makes a sound disk slow: an hour of everything on each of several pools."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import TurningDisk, flaky_available
from support.loop_disks import DiskFarm, LargeBlockDisk, LoopDisk
from support.pools import MIB, PoolMount

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.soak]

HOUR_S = 3600.0
STORM_FILES = 4

_STORM = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
number = 0
while True:
    os.pwrite(fd, os.urandom(1 << 17), number % 4 << 17)
    os.fsync(fd)
    number += 1
"""
_APPEND = """
import os, sys, time
directory, size, kept = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
index = 0
while True:
    fd = os.open(f"{directory}/{index * size:020d}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    for part in range(16):
        os.pwrite(fd, os.urandom(65536), part * 65536)
        if index // 20 % 2:
            os.fdatasync(fd)
        time.sleep(0.02)
    os.close(fd)
    index += 1
    if index >= kept:
        os.unlink(f"{directory}/{(index - kept) * size:020d}")
"""


@contextmanager
def running(code: str, *arguments: object) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)])
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def stormed(disks: list[LoopDisk], luck: random.Random, ended: threading.Event) -> None:
    """One disk after the other gets a storm of syncs, with pauses."""
    while not ended.wait(luck.uniform(5, 60)):
        path = luck.choice(disks).path
        files = [path / f"storm{number}" for number in range(luck.randint(1, STORM_FILES))]
        storms = [subprocess.Popen([sys.executable, "-c", _STORM, str(file)]) for file in files]
        ended.wait(luck.uniform(20, 90))
        for storm in storms:
            storm.kill()
            storm.wait()
        for file in files:
            file.unlink(missing_ok=True)


def maintained(pool: PoolMount, luck: random.Random, ended: threading.Event) -> None:
    """Scrubs all the time, and one drain after the other, where there is another disk."""
    while not ended.wait(luck.uniform(5, 20)):
        pool.cli("scrub", "start", pool.name)
        if len(pool.disks) > 1:
            drained = luck.choice(list(pool.disks))
            pool.cli("disk", "drain", drained, pool.name)
            ended.wait(luck.uniform(20, 60))
            pool.cli("disk", "cancel", drained, pool.name)
            pool.cli("disk", "uncordon", drained, pool.name)


class LargeBlockTurningDisk(TurningDisk):
    """With blocks as on a large disk, so that its directory can record five members."""

    MKFS_OPTIONS = LargeBlockDisk.MKFS_OPTIONS


POOLS: dict[str, list[type[LoopDisk]]] = {
    "four alike": [LargeBlockDisk] * 4,
    "one that turns": [LargeBlockDisk] * 3 + [LargeBlockTurningDisk],
    "two that turn": [LargeBlockDisk] * 3 + [LargeBlockTurningDisk] * 2,
    "two": [LargeBlockDisk] * 2,
    "one": [LargeBlockDisk],
}


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
@pytest.mark.timeout(HOUR_S + 600)
@pytest.mark.parametrize("kinds", list(POOLS.values()), ids=list(POOLS))
def test_an_hour_of_everything(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], kinds: list[type[LoopDisk]]
) -> None:
    disks = [disk_farm.add_of(kind) for kind in kinds]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories)
    pool.start()
    luck, ended = random.Random(16), threading.Event()  # noqa: S311
    workers = [
        threading.Thread(target=stormed, args=(disks, luck, ended)),
        threading.Thread(target=maintained, args=(pool, luck, ended)),
    ]
    for worker in workers:
        worker.start()
    try:
        with running(_APPEND, pool.mountpoint, MIB, 12 * len(disks)):
            deadline = time.monotonic() + HOUR_S
            while time.monotonic() < deadline:
                time.sleep(5)
                assert [disk["path"] for disk in status(pool)["disks"] if disk["state"] == "slow"] == []
    finally:
        ended.set()
        for worker in workers:
            worker.join()
    assert "event=disk_slow" not in pool.log_since_start()
    assert all(Path(disk).is_dir() for disk in pool.disks)
