"""The alert for writes that a disk has lost outlives the daemon that has found them, until it is cleared."""

import contextlib
import errno
import os
import time
from collections.abc import Callable

import pytest
from support.flaky_disks import DeadBlocksDisk, FlakyDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import MIB, PoolMount, segment_bytes
from support.scrubs import damaged, has_verdict
from support.waiting import PATIENCE_S, eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available() or "can be made"),
]

NOTICED_S = 30.0
PAGE = 4096


@pytest.fixture
def flaky(disk_farm: DiskFarm) -> FlakyDisk:
    disk = disk_farm.add_of(FlakyDisk, "ext4", 64 * MIB)
    assert isinstance(disk, FlakyDisk)
    disk.bypass_cache()
    return disk


@pytest.fixture
def kept(flaky: FlakyDisk, disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> KeptMount:
    """Segment 0 is on the flaky disk, and the newest one."""
    directories = commitlog_directories(flaky, disk_farm.add())
    kept = keep(disks=directories, retention={"interval": '"1s"'})
    kept.pool.make_segments([0])
    assert (directories[0] / kept.pool.path(0).name).exists()
    return kept


def alerts(pool: PoolMount) -> list[str]:
    return [alert["text"] for alert in pool.status()["retention"]["alerts"] if alert["code"] == "writeback-lost"]


def lose_a_write(pool: PoolMount, flaky: FlakyDisk, noticed_s: float) -> None:
    """The disk fails, and is well again when that is noticed; its filesystem has turned read-only."""
    fd = os.open(pool.path(0), os.O_RDWR)
    try:
        for page in range(5):  # a segment is watched some seconds after it was opened
            os.pwrite(fd, b"x" * PAGE, 2 * page * PAGE)
            os.fsync(fd)
            time.sleep(1.0)
        flaky.fail_writes()
        os.pwrite(fd, b"y" * PAGE, 0)
        with contextlib.suppress(OSError):
            os.fsync(fd)
        eventually(lambda: alerts(pool), noticed_s, pool.log_since_start)
        flaky.heal()
    finally:
        os.close(fd)


def sync_error(pool: PoolMount) -> int:
    """The errno of a sync of segment 0; 0 if it succeeds."""
    fd = os.open(pool.path(0), os.O_RDONLY)
    try:
        os.fdatasync(fd)
    except OSError as error:
        return error.errno or -1
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
    return 0


@pytest.mark.parametrize(
    "noticed_s",
    [pytest.param(PATIENCE_S, id="works"), pytest.param(NOTICED_S, id="in_time", marks=pytest.mark.timing)],
)
def test_the_alert_is_kept_over_kills_and_restarts_until_it_is_cleared(
    kept: KeptMount, flaky: FlakyDisk, noticed_s: float
) -> None:
    pool = kept.pool
    lose_a_write(pool, flaky, noticed_s)
    before = pool.status()["disks"][0]["lost_writes"]
    assert before[0]["segment"] == pool.path(0).name
    for how in ("kill", "restart"):
        kept.change(how)
        eventually(lambda: alerts(pool), shown=pool.log_since_start)
        (lost,) = pool.status()["disks"][0]["lost_writes"]
        assert (lost["segment"], lost["since"]) == (before[0]["segment"], before[0]["since"])
        assert sync_error(pool) == errno.EIO
    pool.stop()
    flaky.repair()
    kept.start()
    eventually(lambda: alerts(pool), shown=pool.log_since_start)
    eventually(lambda: has_verdict(pool, 0), shown=pool.log_since_start)
    assert sync_error(pool) == errno.EIO
    assert pool.cli("scrub", "clear", pool.name).status == 0
    eventually(lambda: not alerts(pool), shown=pool.log_since_start)
    assert sync_error(pool) == 0
    kept.replace()
    time.sleep(3.0)
    assert alerts(pool) == []
    assert pool.status()["disks"][0]["cordon"]["reason"] == f"had lost writes of {pool.path(0).name}"
    assert damaged(pool) == {}


@pytest.mark.alone
def test_a_failed_sync_of_a_sealed_segment_is_known_to_the_next_daemon(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> None:
    dead = disk_farm.add_of(DeadBlocksDisk)
    assert isinstance(dead, DeadBlocksDisk)
    directories = commitlog_directories(dead, disk_farm.add())
    kept = keep(disks=directories, retention={"interval": '"1s"'})
    pool = kept.pool
    pool.make_segments(range(8))
    assert (directories[0] / pool.path(0).name).exists()
    fd = os.open(pool.path(0), os.O_RDWR)
    try:
        dead.refuse_a_page(f"commitlog/{pool.path(0).name}", fd, segment_bytes(0, MIB), 8)
        with pytest.raises(OSError, match="Input/output error"):
            os.fdatasync(fd)
        eventually(lambda: has_verdict(pool, 0))
        kept.replace()
        dead.mend()
        with pytest.raises(OSError, match="Input/output error"):
            os.fdatasync(fd)
        eventually(lambda: alerts(pool), shown=pool.log_since_start)
        assert pool.cli("scrub", "clear", pool.name).status == 0
        os.fdatasync(fd)
    finally:
        os.close(fd)
