"""A disk in trouble is judged by evidence: a hiccup costs nothing, and what cannot be removed leaves no hole."""

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.filling import fill_and_await, status, used_percent
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes
from support.timings import BRISK, SOON_CHECKED, SOON_LOST, timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.store.checks.probe import DiskProbe, probe_disk
from commitlogfs.store.errors import DiskError, DiskReadOnlyError

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

AT_ONCE = {"interval": '"1s"', "force_after": '"0s"', "grace": '"1s"'}
SEGMENTS = 60

MakePool = Callable[..., PoolMount]


def pool_of_two(disk_farm: DiskFarm, make_pool: MakePool, **options: object) -> tuple[PoolMount, list[LoopDisk]]:
    disks = [disk_farm.add() for _ in range(2)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, retention=AT_ONCE, **options)
    pool.start()
    pool.make_segments(range(SEGMENTS))
    return pool, disks


def alerts(pool: PoolMount) -> dict[str, str]:
    return {alert["code"]: alert["text"] for alert in status(pool)["retention"]["alerts"]}


def await_cycles(pool: PoolMount, count: int) -> None:
    before = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] >= before + count or None)


def listed(pool: PoolMount) -> list[int]:
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


def metric(pool: PoolMount, index: int, state: str) -> bool:
    text = pool.metrics()
    return f'commitlogfs_disk_state{{disk="{pool.disks[index]}",pool="test",state="{state}"}} 1.0' in text


@pytest.mark.alone
def test_a_hiccup_removes_nothing_and_is_forgotten(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """One create that hangs on the disk with room, while the other is above `force`."""
    pool, disks = pool_of_two(disk_farm, make_pool, variables=SOON_CHECKED)
    fill_and_await(pool, 1, 88)
    with frozen(disks[0], 2 * PATIENCE_S) as thaw:
        pool.make_segments([SEGMENTS])
        assert pool.disk_of(SEGMENTS) == 1, "the disk that is asked next"
        eventually(lambda: status(pool)["disks"][0]["last_error"])  # by a check
        await_cycles(pool, 2)
        thaw()
    eventually(lambda: not status(pool)["disks"][0]["last_error"])
    await_cycles(pool, 2)
    assert listed(pool) == list(range(SEGMENTS + 1))
    assert status(pool)["disks"][0]["state"] == "rw"
    assert "disk-failed" not in alerts(pool)
    st = os.statvfs(pool.mountpoint)
    assert 100 * (st.f_blocks - st.f_bfree) < 75 * st.f_blocks  # it has its say


@pytest.mark.alone
@pytest.mark.parametrize("hedge_s", [BRISK.requests.hedge_s, pytest.param(0.25, marks=pytest.mark.timing)])
def test_creates_beside_a_hung_disk_remove_the_oldest(
    disk_farm: DiskFarm, make_pool: MakePool, hedge_s: float
) -> None:
    """Only the disk that hangs has room. Its own oldest segment keeps all later ones. By default, there are rounds
    before the hung disk has had its time."""
    times = replace(BRISK, requests=replace(BRISK.requests, hedge_s=hedge_s))
    disks = [disk_farm.add() for _ in range(3)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(
        disks=directories,
        retention={"interval": '"1s"', "force_after": '"24h"'},
        variables=timing_variables(times),
    )
    pool.start()
    pool.make_segments(range(6))
    assert [pool.disk_of(index) for index in range(3)] == [0, 1, 2]
    for number in (0, 1):
        fill_and_await(pool, number, 90.5)
    with frozen(disks[2]) as thaw:
        pool.make_segments([6, 7])
        assert listed(pool) == list(range(2, 8))
        assert [pool.disk_of(index) for index in (6, 7)] == [0, 1]
        with pytest.raises(OSError) as refused:  # noqa: PT011
            pool.make_segments([8])
        assert refused.value.errno == errno.EIO
        assert listed(pool) == list(range(2, 8))
        thaw()
    pool.make_segments([8])
    assert pool.disk_of(8) == 2
    assert listed(pool) == list(range(2, 9))
    assert pool.path(7).read_bytes()[:4096] == segment_bytes(7, 4096)
    assert 'commitlogfs_segments_removed_total{pool="test",reason="full"} 2.0' in pool.metrics()


def test_a_disk_that_turned_read_only_ends_the_prefix(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_of_two(disk_farm, make_pool)
    disks[0].turn_read_only()
    pool.make_segments([SEGMENTS])
    fill_and_await(pool, 1, 88)
    eventually(lambda: {"disk-failed", "stuck"} <= set(alerts(pool)))
    await_cycles(pool, 2)
    assert listed(pool) == list(range(SEGMENTS + 1))
    assert status(pool)["disks"][0]["state"] == "failed"
    assert metric(pool, 0, "failed")
    assert not metric(pool, 0, "rw")


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [(SOON_LOST, 5.0), pytest.param({}, 300.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])],
    ids=["soon", "after five minutes"],
)
def test_segments_of_a_lost_disk_keep_no_others(
    disk_farm: DiskFarm, make_pool: MakePool, variables: dict[str, str], seconds: float
) -> None:
    """Its oldest segment cannot be read for a long time: it counts as absent, and the rest expires in order."""
    pool, disks = pool_of_two(disk_farm, make_pool, variables=variables)
    fill_and_await(pool, 1, 80)
    disks[0].vanish()
    pool.make_segments([SEGMENTS])
    fill_and_await(pool, 1, 88)
    eventually(lambda: "disk-failed" in alerts(pool))
    began_s = time.monotonic()
    eventually(lambda: "count as absent" in alerts(pool)["disk-failed"], seconds + PATIENCE_S)
    assert time.monotonic() - began_s > seconds / 2
    eventually(lambda: used_percent(disks[1].path) < 83)
    await_cycles(pool, 2)
    left = [index for index in listed(pool) if index % 2 or index == SEGMENTS]
    assert 1 < left[0] < SEGMENTS // 2
    assert left == [*range(left[0], SEGMENTS, 2), SEGMENTS], "oldest first, and no more than needed"
    assert f'commitlogfs_segments_removed_total{{pool="test",reason="force"}} {left[0] // 2}.0' in pool.metrics()


def test_a_disk_that_was_read_only_from_the_start_is_reported(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    pool, disks = pool_of_two(disk_farm, make_pool)
    pool.stop()
    disks[0].remount_ro()
    pool.start()
    fill_and_await(pool, 1, 92)
    with pytest.raises(OSError, match="No space left"):
        pool.make_segments([SEGMENTS])
    text = eventually(lambda: alerts(pool).get("stuck"))
    assert pool.path(0).name in text
    assert "EROFS" in text
    await_cycles(pool, 2)
    assert listed(pool) == list(range(SEGMENTS))
    assert "retention_failed" not in pool.log_since_start()
    assert text in pool.cli("status", pool.name).out.replace("\n", " ")


def test_a_segment_that_cannot_be_removed_is_named(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """An operator's `chattr +i` prevents the removal; punching and the rest of the cycle continue."""
    pool, _ = pool_of_two(disk_farm, make_pool)
    with immutable(Path(pool.disks[0]) / pool.path(0).name):
        for number in range(2):
            fill_and_await(pool, number, 88)
        text = eventually(lambda: alerts(pool).get("stuck"))
        assert pool.path(0).name in text
        assert "EPERM" in text
        assert listed(pool) == list(range(SEGMENTS))
    eventually(lambda: listed(pool)[0] > 0)
    eventually(lambda: "stuck" not in alerts(pool))


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    subprocess.run(["chattr", "+i", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_what_a_trial_finds_out(disk_farm: DiskFarm) -> None:
    disk = disk_farm.add()
    names = (b"%020d" % 0, b"%020d" % MIB)
    for name in names:
        (disk.path / name.decode()).write_bytes(bytes(4096))
    dirfd = os.open(disk.path, os.O_RDONLY)
    try:
        assert probe_disk("/d", dirfd, names, MIB) == DiskProbe(None, is_read_only=False, is_readable=True)
        assert {entry.name for entry in disk.path.iterdir()} == {"lost+found", *(name.decode() for name in names)}
        assert probe_disk("/d", dirfd, (), MIB).is_readable, "nothing lies there, so nothing is lost"
        assert probe_disk("/d", dirfd, names, MIB, may_write=False).is_readable
        disk.turn_read_only()
        probe = probe_disk("/d", dirfd, names, MIB)
        assert isinstance(probe.error, DiskReadOnlyError)
        assert (probe.is_read_only, probe.is_readable) == (True, True)
        disk.vanish()
        probe = probe_disk("/d", dirfd, names, MIB)
        assert isinstance(probe.error, DiskError)
        assert not probe.is_readable
        assert not probe_disk("/d", dirfd, names, MIB, may_write=False).is_readable
    finally:
        os.close(dirfd)
