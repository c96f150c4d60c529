"""A disk does not answer: no verb hands the mount over, as requests would wait for that disk then."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ran
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LargeBlockDisk, LoopDisk, commitlog_directories
from support.pools import segment_bytes
from support.timings import WITHOUT_WRITES
from support.waiting import eventually

from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

COUNT = 12
REFUSED = 4


class Pool:
    """Three disks, of which the second one is cordoned, and has none of the newest segments."""

    def __init__(
        self, keep: Callable[..., KeptMount], disks: Sequence[LoopDisk], new: Path, **options: Any
    ) -> None:
        self.new = new
        self.kept = keep(disks=commitlog_directories(*disks), **options)
        self.mount = self.kept.pool
        self.mount.make_segments(range(COUNT))
        assert self.cli("disk", "cordon", 2).status == 0
        self.mount.make_segments(range(COUNT, COUNT + 3))

    def cli(self, verb: str, *words: object) -> Ran:
        return self.mount.cli(verb, *words, self.mount.name)

    def state(self, index: int = 1) -> str:
        return str(status(self.mount)["disks"][index]["state"])

    def await_silence(self, index: int = 1) -> None:
        eventually(lambda: self.state(index) == "unresponsive", shown=self.mount.log_since_start)

    def recorded(self) -> object:
        """Whatever a verb could change."""
        document = status(self.mount)
        lists = [os.getxattr(disk, layout.XATTR_IDENTITY) for disk in self.mount.disks[::2]]
        return document["daemon"]["pid"], document["members"], self.mount.config.read_bytes(), lists

    def require_refused(self, verb: str, *words: object, index: int = 1) -> None:
        """Because the disk of this index does not answer. A dry run says the same."""
        dry, ran = self.cli(verb, *words, "--dry-run"), self.cli(verb, *words)
        assert (dry.status, dry.err) == (ran.status, ran.err), (verb, words, dry.out, dry.err)
        assert (ran.status, ran.err.count("\n")) == (REFUSED, 1), (verb, words, ran.out, ran.err)
        assert f"{self.mount.disks[index]}: does not answer this daemon" in ran.err
        assert "repair or detach that disk" in ran.err

    def require_served(self, count: int) -> None:
        for index in range(count):
            assert self.mount.path(index).read_bytes()[:4096] == segment_bytes(index, 4096), index


def test_nothing_is_recorded_and_the_mount_goes_on(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    disks = [disk_farm.add_of(LargeBlockDisk) for _ in range(3)]
    pool = Pool(keep, disks, disk_farm.add_of(LargeBlockDisk).path / "commitlog")
    with frozen(disks[1]):
        pool.await_silence()
        before = pool.recorded()
        pool.require_refused("restart")
        pool.require_refused("disk", "add", pool.new)
        pool.require_refused("disk", "offline", 2)
        pool.require_refused("disk", "remove", 2)
        pool.require_refused("disk", "remove", 2, "--lost", "--yes")
        pool.require_refused("disk", "replace", 2, pool.new, "--yes")
        assert pool.recorded() == before
        assert not pool.new.exists()
        pool.mount.make_segments([COUNT + 3])
    eventually(lambda: pool.state() == "cordoned")
    assert pool.cli("disk", "add", pool.new).status == 0
    pool.kept.newest_daemon()
    assert pool.cli("disk", "offline", 2).status == 0
    pool.kept.newest_daemon()
    with frozen(disks[0]):
        pool.await_silence(0)
        before = pool.recorded()
        pool.require_refused("disk", "online", 2, index=0)
        assert pool.recorded() == before
    eventually(lambda: pool.state(0) == "rw")
    assert pool.cli("disk", "online", 2).status == 0
    pool.kept.newest_daemon()
    pool.require_served(COUNT + 4)


@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_it_is_given_up_when_it_is_detached(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """All requests of a device that is detached fail (docs/operating.md, "A disk has died")."""
    disk = disk_farm.add_of(FlakyDisk)
    disks = [disk_farm.add_of(LargeBlockDisk), disk, disk_farm.add_of(LargeBlockDisk)]
    pool = Pool(keep, disks, disk_farm.add_of(LargeBlockDisk).path / "commitlog")
    with disk.hanging():
        pool.await_silence()
        pool.require_refused("disk", "remove", 2, "--lost", "--yes")
        disk.fail_reads()
        disk.fail_writes()

    def is_given_up() -> bool:
        ran = pool.cli("disk", "remove", 2, "--lost", "--yes")
        assert ran.status in (0, REFUSED), ran.err
        return ran.status == 0

    eventually(is_given_up, shown=pool.mount.log_since_start)
    pool.kept.newest_daemon()
    assert [one["number"] for one in status(pool.mount)["disks"]] == [1, 3]
    assert pool.cli("disk", "add", pool.new).status == 0
    pool.kept.newest_daemon()
    assert [one["number"] for one in status(pool.mount)["disks"]] == [1, 3, 4]


def test_one_is_given_up_and_another_one_hangs_since(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """Nothing has found that yet, so the loss is recorded; the command says how to complete it."""
    disks = [disk_farm.add_of(LargeBlockDisk) for _ in range(3)]
    pool = Pool(keep, disks, disks[0].path / "new", variables=WITHOUT_WRITES)
    pool.mount.stop()
    disks[1].unmount()
    pool.mount.settings["on_missing"] = '"degraded"'
    pool.kept.start()
    with frozen(disks[0]):
        ran = pool.cli("disk", "remove", 2, "--lost", "--yes")
        assert ran.status == 1
        assert f"{pool.mount.disks[0]}: does not answer this daemon" in ran.err
        assert "disk 2 is given up, and `commitlogfs restart test` completes that" in ran.err
        pool.mount.make_segments([COUNT + 3])
    assert pool.cli("restart").status == 0
    pool.kept.newest_daemon()
    assert status(pool.mount)["missing_disks"] == []
