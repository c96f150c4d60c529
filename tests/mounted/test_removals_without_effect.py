"""Segments whose removal frees nothing, because other processes keep the files on the disks: the log is not emptied
for nothing, neither by the filesystem nor by the broker that statfs steers."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from support.filling import fill_and_await, status
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB, PoolMount
from support.waiting import eventually

from commitlogfs.store.disks.reclaim import FRUITLESS_REMOVALS

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

QUICK = {"interval": '"1s"', "force_after": '"0s"', "grace": '"1s"'}
SEGMENTS = 60
SHOWN_WHERE_NOTHING_HELPS = 75


@contextmanager
def hard_links(directory: Path) -> Iterator[None]:
    subprocess.run(["cp", "-al", str(directory), str(directory.parent / "backup")], check=True)
    yield


@contextmanager
def shared_blocks(directory: Path) -> Iterator[None]:
    (directory.parent / "backup").mkdir()
    for path in directory.iterdir():
        copy = directory.parent / "backup" / path.name
        subprocess.run(["cp", "--reflink=always", str(path), str(copy)], check=True)
    yield


@contextmanager
def open_on_the_disk(directory: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for path in directory.iterdir():
            stack.enter_context(path.open("rb"))
        yield


@pytest.mark.parametrize(
    ("fstype", "keep", "at_most"),
    [
        ("ext4", hard_links, 0),
        ("xfs", shared_blocks, 2 * FRUITLESS_REMOVALS),
    ],
    ids=["hard links", "shared blocks"],
)
def test_what_is_kept_elsewhere_is_not_removed_for_its_space(
    disk_farm: DiskFarm,
    make_pool: Callable[..., PoolMount],
    fstype: str,
    keep: Callable[[Path], AbstractContextManager[None]],
    at_most: int,
) -> None:
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    pool = pool_of_two(disk_farm, make_pool, fstype, written=fstype == "xfs")
    with ExitStack() as stack:
        for disk in pool.disks:
            stack.enter_context(keep(Path(disk)))
        for number in range(2):
            fill_and_await(pool, number, 88)
        eventually(lambda: "not-reclaiming" in alerts(pool))
        await_cycles(pool, 3)
        assert SEGMENTS - len(os.listdir(pool.mountpoint)) <= at_most
        assert shown_percent(pool) <= SHOWN_WHERE_NOTHING_HELPS
    if at_most:
        assert alerts(pool) == {"not-reclaiming"}
        for number in range(2):
            fill_and_await(pool, number, 80)
        eventually(lambda: alerts(pool) == set() or None)


def test_what_is_open_on_the_disks_themselves_counts_as_held(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    """Also for a daemon that has not opened any of it."""
    pool = pool_of_two(disk_farm, make_pool, "ext4")
    pool.restart()
    with ExitStack() as stack:
        for disk in pool.disks:
            stack.enter_context(open_on_the_disk(Path(disk)))
        for number in range(2):
            fill_and_await(pool, number, 88)
        eventually(lambda: status(pool)["retention"]["removed"]["force"])
        eventually(lambda: status(pool)["retention"]["force_in_seconds"] is None or None)
        gone = SEGMENTS - len(os.listdir(pool.mountpoint))
        await_cycles(pool, 4)  # a removed file that nobody knows of would have been freed by now
        assert SEGMENTS - len(os.listdir(pool.mountpoint)) == gone < SEGMENTS // 2
        assert status(pool)["retention"]["held_open"]["segments"] == gone
    eventually(lambda: status(pool)["retention"]["held_open"]["segments"] == 0 or None)
    eventually(lambda: alerts(pool) == set() or None)


def pool_of_two(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], fstype: str, *, written: bool = False
) -> PoolMount:
    directories = []
    for _ in range(2):
        directory = disk_farm.add(fstype).path / "commitlog"
        directory.mkdir(mode=0o700)
        directories.append(directory)
    size = 4 * MIB if fstype == "xfs" else MIB
    pool = make_pool(disks=directories, retention=QUICK, segment_size=size)
    pool.start()
    pool.make_segments(range(SEGMENTS))
    if written:  # blocks that are only reserved are not shared
        for index in range(SEGMENTS):
            with pool.path(index).open("r+b") as file:
                file.write(bytes(range(256)) * (size // 256))
                os.fsync(file.fileno())
    return pool


def alerts(pool: PoolMount) -> set[str]:
    return {alert["code"] for alert in status(pool)["retention"]["alerts"]}


def await_cycles(pool: PoolMount, count: int) -> None:
    before = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] >= before + count or None)


def shown_percent(pool: PoolMount) -> float:
    st = os.statvfs(pool.mountpoint)
    return 100 * (st.f_blocks - st.f_bfree) / st.f_blocks
