"""A disk answers every write with EIO, below a writer that makes segments as a broker does: two names ahead."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.flaky_disks import FlakyDisk, flaky_available
from support.loop_disks import XFS_MIN_BYTES, DiskFarm, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.timing]

MakePool = Callable[..., PoolMount]
RETRY_S = 0.001
"""A broker's own pause after a failure."""
PAUSE_S = 0.1


class Writer(threading.Thread):
    """Makes segment after segment: open, ftruncate, the first bytes; the same one again until it is made."""

    def __init__(self, pool: PoolMount) -> None:
        super().__init__(daemon=True)
        self._pool = pool
        self._ends = threading.Event()
        self.made = 0
        self.failures = 0
        self.longest_s = 0.0
        """From the first attempt to make a segment to its end."""

    def run(self) -> None:
        while not self._ends.is_set():
            started = time.monotonic()
            while not self._make(self.made) and not self._ends.wait(RETRY_S):
                self.failures += 1
                self.longest_s = max(self.longest_s, time.monotonic() - started)
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            self.made += 1
            self._ends.wait(PAUSE_S)

    def stop(self) -> None:
        self._ends.set()
        self.join(20)
        assert not self.is_alive()

    def _make(self, index: int) -> bool:
        try:
            fd = os.open(self._pool.path(index), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return False
        try:
            os.ftruncate(fd, MIB)
            os.pwrite(fd, segment_bytes(index, 4096), 0)
        except OSError:
            return os.fstat(fd).st_size == MIB  # sized, and its first bytes refused: what was written is lost there
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
        return True


def place(pool: PoolMount, index: int) -> int:
    directory = os.getxattr(pool.path(index), "user.commitlogfs.disk")
    return [os.fsencode(disk) for disk in pool.disks].index(directory)


def run_against(disk_farm: DiskFarm, make_pool: MakePool, fstype: str) -> None:
    lack = flaky_available() or ("" if mkfs_available(fstype) else f"no mkfs.{fstype}")
    if lack:
        pytest.skip(lack)
    size = XFS_MIN_BYTES if fstype == "xfs" else 512 * MIB
    flaky = disk_farm.add_of(FlakyDisk, fstype, size)
    if fstype == "ext4":
        flaky.unmount()
        flaky.mount("commit=1")  # it notices when it writes its journal
    disks = [flaky, disk_farm.add("ext4", 512 * MIB), disk_farm.add("ext4", 512 * MIB)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    pool = make_pool(disks=directories, retention={"interval": '"1s"'})
    pool.start()
    writer = Writer(pool)
    writer.start()
    try:
        eventually(lambda: writer.made >= 6)
        flaky.fail_writes()
        before = writer.made
        eventually(lambda: is_noticed(pool), 30)
        at = writer.made
        eventually(lambda: writer.made >= at + 10, 30)
        assert {place(pool, index) for index in range(at + 3, at + 10)} <= {1, 2}
    finally:
        writer.stop()
    assert writer.made > before
    assert writer.longest_s < 5.0, f"{writer.failures} failures"
    leftovers_are_recognised(pool, flaky, writer.made)


def is_noticed(pool: PoolMount) -> bool:
    log = pool.log_since_start()
    return any(f"event={event} " in log for event in ("sync_failed", "create_moved_on", "given_up"))


def leftovers_are_recognised(pool: PoolMount, flaky: FlakyDisk, made: int) -> None:
    """After the repair nothing is doubled; what the failed disk has lost for good may be missing, as anywhere."""
    pool.kill()
    pool.abandon()
    flaky.unmount()
    flaky.heal()
    flaky.repair()
    pool.settings = {"on_missing": '"degraded"'}
    pool.start()
    log = pool.log_since_start()
    assert "code=duplicate-segment" not in log
    listed = {int(name) // MIB for name in os.listdir(pool.mountpoint)}
    for index in range(made):
        held = [n for n in (1, 2) if (Path(pool.disks[n]) / pool.path(index).name).exists()]
        assert len(held) <= 1
        if held:
            assert index in listed
            assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    failed = Path(pool.disks[0])
    elsewhere = [pool.path(index).name for index in listed if place(pool, index) != 0]
    eventually(lambda: not any((failed / name).exists() for name in elsewhere))


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_write_errors_stop_no_creates(disk_farm: DiskFarm, make_pool: MakePool, fstype: str) -> None:
    run_against(disk_farm, make_pool, fstype)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(10))
def test_write_errors_stop_no_creates_ten_times(disk_farm: DiskFarm, make_pool: MakePool, run: int) -> None:
    run_against(disk_farm, make_pool, "xfs" if run % 3 == 2 else "ext4")
