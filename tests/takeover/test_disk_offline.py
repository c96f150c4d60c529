"""`disk offline` and `disk online`: a disk is released beside a running mount, and taken back."""

import contextlib
import json
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Ran
from support.disk_life import recorded_identity
from support.filling import status
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import PoolMount
from support.waiting import PATIENCE_S

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

COUNT = 6
NEWER = range(COUNT, COUNT + 3)
"""Segments after which the broker writes to none of the first six."""


class Pool:
    """Three disks with segments 0 to 5, of which the first disk, which is cordoned, has 0 and 3. The newest three
    segments are on the other two."""

    def __init__(self, disk_farm: DiskFarm, keep: Callable[..., KeptMount], passthrough: str) -> None:
        self.disk: LoopDisk = disk_farm.add()
        self.others = [disk_farm.add(), disk_farm.add()]
        directories = [disk.path / "commitlog" for disk in (self.disk, *self.others)]
        for directory in directories:
            directory.mkdir(mode=0o700)
        self.kept = keep(disks=directories, settings={"passthrough": f'"{passthrough}"'})
        self.mount = self.kept.pool
        self.mount.make_segments(range(COUNT))
        assert self.cli("cordon").status == 0
        self.mount.make_segments(NEWER)
        self.contents = [self.mount.path(index).read_bytes() for index in range(COUNT)]
        os.sync()

    @property
    def directory(self) -> Path:
        return Path(self.mount.disks[0])

    def cli(self, verb: str, *options: str) -> Ran:
        return self.mount.cli("disk", verb, "1", self.mount.name, *options)

    def take_offline(self) -> None:
        ran = self.cli("offline")
        assert ran.status == 0, ran.err
        self.kept.newest_daemon()

    def take_back(self) -> None:
        ran = self.cli("online")
        assert ran.status == 0, ran.err
        self.kept.newest_daemon()

    def listed(self) -> set[int]:
        return {int(name) // self.mount.segment_size for name in os.listdir(self.mount.mountpoint)}

    def require_all(self) -> None:
        """Every segment is served, and the disk takes new ones."""
        assert self.listed() >= set(range(COUNT))
        for index, content in enumerate(self.contents):
            assert self.mount.path(index).read_bytes() == content, index
        assert self.cli("uncordon").status == 0
        count = len(os.listdir(self.mount.mountpoint))
        self.mount.make_segments(range(count, count + 3))
        assert sorted(self.mount.disk_of(index) for index in range(count, count + 3)) == [0, 1, 2]


@pytest.fixture
def pool(request: pytest.FixtureRequest, disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> Pool:
    """With passthrough, or as the test's parameter says."""
    return Pool(disk_farm, keep, getattr(request, "param", "auto"))


def members(pool: Pool) -> tuple[list[str], list[int], bool]:
    document = status(pool.mount)
    offline = [disk["number"] for disk in document["offline_disks"]]
    return document["missing_disks"], offline, document["degraded"]


@pytest.mark.parametrize("pool", ["auto", "off"], indirect=True)
def test_a_disk_is_checked_beside_the_mount(pool: Pool) -> None:
    planned = pool.cli("offline", "--dry-run")
    assert "would be offline: 2 segments there would not be served" in planned.out
    assert members(pool) == ([], [], False)
    pool.take_offline()
    assert members(pool) == ([], [1], False)
    assert pool.listed() == {1, 2, 4, 5, *NEWER}
    assert f"{pool.directory} offline since" in " ".join(pool.mount.cli("disk", "list", "test").out.split())
    assert "its segments are not served; `disk online 1`" in " ".join(pool.mount.cli("status", "test").out.split())
    assert "members_offline{" in pool.mount.metrics()
    shown = " ".join(pool.mount.cli("map", "test").out.split())
    assert f"{pool.directory} offline since" in shown
    assert "DEGRADED" not in shown
    assert "a disk that is offline may have the files" in shown
    for verb in ("cordon", "uncordon", "drain", "safe-to-remove", "remove"):
        assert "`disk online 1` takes it back" in pool.cli(verb).err, verb
    pool.mount.make_segments(range(9, 12))
    pool.disk.unmount()
    check = subprocess.run(["e2fsck", "-f", "-n", pool.disk.image], capture_output=True, check=False)
    assert check.returncode == 0, check.stdout
    refused = pool.cli("online")
    assert (refused.status, "disk 1 is not there; mount it first" in refused.err) == (4, True)
    pool.disk.mount()
    pool.take_back()
    assert members(pool) == ([], [], False)
    pool.require_all()


@pytest.mark.parametrize("pool", ["auto", "off"], indirect=True)
def test_files_that_are_open_there(pool: Pool) -> None:
    """A process keeps its mapping; the answer names it. What is passed through can still be read."""
    fd = os.open(pool.mount.path(0), os.O_RDONLY)
    try:
        is_passed = status(pool.mount)["daemon"]["passthrough_files"] > 0
        mapping = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
        assert mapping[:4096] == pool.contents[0][:4096]
        ran = pool.cli("offline", "--json")
        assert ran.status == 0, ran.err
        pool.kept.newest_daemon()
        assert [user["pid"] for user in json.loads(ran.out)["users"]] == [os.getpid()]
        assert mapping[:4096] == pool.contents[0][:4096]
        if is_passed:
            assert os.pread(fd, 4096, 4096) == pool.contents[0][4096:8192]
        pool.take_back()
        assert mapping[:4096] == pool.contents[0][:4096]
    finally:
        os.close(fd)
    pool.require_all()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_the_next_daemons_leave_it_alone_until_the_pool_is_mounted_anew(pool: Pool, how: str) -> None:
    pool.take_offline()
    if how == "kill":
        pool.kept.replace()
    else:
        assert pool.mount.cli("restart", "--degraded", "test").status == 0
        pool.kept.newest_daemon()
    assert members(pool) == ([], [1], False)
    assert [one["code"] for one in status(pool.mount)["findings"]].count("disk-offline") == 1
    pool.mount.stop()
    pool.kept.start()
    assert members(pool) == ([], [], False)
    pool.require_all()


def test_a_new_mount_without_the_disk_is_refused(pool: Pool) -> None:
    """A broker that starts would skip its messages; being offline is a matter of the running mount."""
    pool.take_offline()
    pool.disk.unmount()
    pool.mount.stop()
    ran = pool.mount.cli("mount", pool.mount.config)
    assert ran.status != 0
    assert str(pool.directory) in ran.err
    pool.disk.mount()
    pool.kept.start()
    pool.require_all()


def test_an_interrupted_command(pool: Pool) -> None:
    """The decision is recorded before the next daemon starts: it can be completed or taken back."""
    pool.cli("uncordon")
    assert "refused" not in pool.mount.ask("disk-offline", disk="1")
    (disk,) = [disk for disk in status(pool.mount)["disks"] if disk["number"] == 1]
    assert (disk["state"], disk["eligible"]) == ("offline", False)
    assert "to be offline: repeat `disk offline`" in " ".join(pool.mount.cli("disk", "list", "test").out.split())
    assert pool.cli("online").status == 0
    assert status(pool.mount)["disks"][0]["eligible"]
    assert "refused" not in pool.mount.ask("disk-offline", disk="1")
    pool.kept.replace()
    assert members(pool) == ([], [1], False)
    assert "is offline already" in pool.cli("offline").out
    pool.take_back()
    pool.require_all()


def test_a_missing_disk_is_not_missed_any_longer(pool: Pool) -> None:
    pool.disk.detach()
    pool.kept.replace()
    assert members(pool) == ([str(pool.directory)], [], True)
    assert pool.cli("offline").status == 0
    assert members(pool) == ([], [1], False)
    pool.disk.mount()
    pool.take_back()
    pool.require_all()


def test_a_disk_that_changed_places_is_not_taken_back(pool: Pool) -> None:
    pool.take_offline()
    pool.disk.unmount()
    pool.others[0].detach()
    path, pool.others[0].path = pool.others[0].path, pool.disk.path
    with contextlib.ExitStack() as stack:
        pool.others[0].mount()
        stack.callback(setattr, pool.others[0], "path", path)
        stack.callback(pool.others[0].unmount)
        refused = pool.cli("online")
        assert (refused.status, "disk 1 is not there" in refused.err) == (4, True)


def test_what_the_log_has_removed_meanwhile_stays_away_after_a_kill(pool: Pool) -> None:
    """The daemon dies right after the removal is answered. With segment 0, the log would begin before a gap."""
    pool.take_offline()
    for index in (1, 2):
        pool.mount.path(index).unlink()
    pool.kept.replace()
    assert recorded_identity(pool.mount.disks[1])["removed_before"] == 3 * pool.mount.segment_size
    pool.take_back()
    assert pool.listed() == {3, 4, 5, *NEWER}
    assert removed_segments(pool) == [pool.mount.path(0).name]


def removed_segments(pool: Pool) -> list[str]:
    return [found["file"] for found in status(pool.mount)["findings"] if found["code"] == "removed-segments"]


# --- refusals --------------------------------------------------------------------------------------------


def require_refused(pool: PoolMount, ran: Ran, reason: str) -> None:
    assert (ran.status, reason in ran.err) == (4, True), ran.err
    assert status(pool)["offline_disks"] == []


def test_a_disk_that_the_broker_writes_to(pool: Pool) -> None:
    ran = pool.mount.cli("disk", "offline", "2", "test")
    require_refused(pool.mount, ran, "to which the broker may still write")


def test_the_last_disk_that_takes_segments(pool: Pool) -> None:
    assert pool.cli("uncordon").status == 0
    for number in ("2", "3"):
        assert pool.mount.cli("disk", "cordon", number, "test").status == 0
    require_refused(pool.mount, pool.cli("offline"), "no other disk takes new segments")


def test_a_disk_that_drains(pool: Pool) -> None:
    assert pool.cli("drain", "--by-expiry").status == 0
    require_refused(pool.mount, pool.cli("offline"), "is draining")


def test_a_disk_that_hangs(pool: Pool) -> None:
    """It holds a thread of the daemon, which could not end before the disk answers."""
    with frozen(pool.disk, 2 * PATIENCE_S):
        with pytest.raises(OSError, match="rror"):
            pool.mount.path(0).unlink()
        require_refused(pool.mount, pool.cli("offline"), "does not answer this daemon")


def test_an_interrupted_command_whose_segment_has_become_one_of_the_newest(pool: Pool) -> None:
    """The broker has truncated its log meanwhile."""
    assert "refused" not in pool.mount.ask("disk-offline", disk="1")
    for index in (*reversed(NEWER), 5, 4):
        pool.mount.path(index).unlink()
    require_refused(pool.mount, pool.cli("offline"), "to which the broker may still write")
    assert pool.cli("online").status == 0
