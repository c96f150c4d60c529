"""No damage is forgotten because a daemon ends, or because a disk cannot record it."""

from collections.abc import Callable

import pytest
from support import scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.filling import fill_completely
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk, commitlog_directories
from support.pools import PoolMount
from support.scrubs import damaged
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 9
MakePool = Callable[..., PoolMount]


def make_sealed_pool(devices: list[LoopDisk], make_pool: MakePool, count: int = COUNT) -> PoolMount:
    """Sealed segments have checksums."""
    pool = make_pool(len(devices), disks=commitlog_directories(*devices))
    pool.start()
    scrubs.fill(pool, range(count))
    await_checksums(pool, count - NEWEST)
    return pool


@pytest.fixture
def devices(disk_farm: DiskFarm) -> list[LoopDisk]:
    return [disk_farm.add() for _ in range(3)]


def kill(pool: PoolMount) -> None:
    """The daemon dies, and the dead mount is taken away."""
    pool.kill()
    pool.abandon()


def begin(pool: PoolMount) -> None:
    assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST).status == 0


@pytest.mark.parametrize("is_killed", [False, True], ids=["unmounted", "killed"])
def test_a_daemon_that_ends_at_any_moment_takes_no_verdict_along(
    devices: list[LoopDisk], make_pool: MakePool, *, is_killed: bool
) -> None:
    count = 43
    pool = make_sealed_pool(devices, make_pool, count)
    for index in range(count - NEWEST):
        scrubs.flip(backing(pool, index), 100)
    for found in (1, 5, 15, 30, count - NEWEST):
        begin(pool)
        eventually(lambda found=found: len(damaged(pool)) >= found)
        if is_killed:
            kill(pool)
        pool.restart()
        eventually(lambda: len(damaged(pool)) == count - NEWEST)
        scrubs.await_state(pool, "done")
        assert pool.cli("scrub", "clear", pool.name).status == 0


@pytest.mark.alone
def test_a_hung_disk_keeps_no_verdict_of_another_from_its_record(
    devices: list[LoopDisk], make_pool: MakePool
) -> None:
    pool = make_sealed_pool(devices, make_pool)
    for index in (0, 1):
        scrubs.flip(backing(pool, index), 100)
    with frozen(devices[pool.disk_of(0)]):
        begin(pool)
        eventually(lambda: len(damaged(pool)) == 2)
        eventually(lambda: scrubs.has_verdict(pool, 1))
        assert pool.daemon is not None
        pool.daemon.kill()
    kill(pool)
    pool.start()
    eventually(lambda: len(damaged(pool)) == 2)


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_the_next_daemon_finds_what_a_disk_cannot_record(
    devices: list[LoopDisk], make_pool: MakePool, state: str
) -> None:
    pool = make_sealed_pool(devices, make_pool)
    scrubs.flip(backing(pool, 1), 100)
    number = pool.disk_of(1)
    if state == "full":
        fill_completely(devices[number].path)
    else:
        devices[number].turn_read_only()
    name = pool.path(1).name
    found = pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--wait")
    assert found.status == 1
    assert not damaged(pool)[name]["recorded"]
    assert "not recorded by its disk" in pool.cli("scrub", "status", pool.name).out
    (finding,) = [one for one in pool.ask("status")["findings"] if one["code"] == "damaged-segment"]
    assert "has not recorded" in finding["message"]
    pool.restart()
    eventually(lambda: list(damaged(pool)) == [name])
    assert pool.cli("scrub", "status", pool.name).status == 1
