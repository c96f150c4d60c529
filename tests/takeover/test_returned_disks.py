"""Disks that are unmounted under the mount, or lost, and come back: they are served again by themselves."""

import contextlib
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.filling import status
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk, mkfs_available
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full, pytest.mark.alone]

COUNT = 6
NOTICED_WITHIN_S = 40.0
"""A disk is checked every 5 s; a busy machine that runs tests gets a margin."""
SERVED_WITHIN_S = 10.0
"""Time until the segments of a disk that was taken back can be read."""
DISK_LOOKS_S = 17.0
"""Time for two looks, the first of which may get no answer."""


class Pool:
    """Three disks with segments 0 to 5, of which the first disk has 0 and 3. This process has segment 0 open."""

    def __init__(self, disk_farm: DiskFarm, keep: Callable[..., KeptMount], fstype: str, **settings: str) -> None:
        self.noticed_s = self.served_s = PATIENCE_S
        """Limits of the events and of the reads that are waited for."""
        self.disk: LoopDisk = disk_farm.add(fstype)
        disks = [self.disk, disk_farm.add(), disk_farm.add()]
        self.newest = disks[-1]
        """The disk with the newest segment."""
        directories = [disk.path / "commitlog" for disk in disks]
        for directory in directories:
            directory.mkdir(mode=0o700)
        self.kept = keep(disks=directories, retention={"interval": '"10m"'}, settings=settings)
        self.mount = self.kept.pool
        self.mount.make_segments(range(COUNT))
        self.contents = [self.mount.path(index).read_bytes() for index in range(COUNT)]
        self.opened = os.open(self.mount.path(0), os.O_RDWR)
        os.sync()

    @property
    def state(self) -> str:
        return str(status(self.mount)["disks"][0]["state"])

    @property
    def directory(self) -> Path:
        return Path(self.mount.disks[0])

    def lose(self) -> None:
        """The device is gone: every access fails, and the operator, or udev, unmounts it."""
        self.disk.vanish()
        eventually(lambda: self.state in {"failed", "unreadable"}, self.noticed_s)
        self.disk.detach()

    def await_event(self, event: str) -> None:
        eventually(lambda: f"event={event} " in self.mount.log_since_start(), self.noticed_s)

    def assert_served(self) -> None:
        """Every segment, also those that were open before, and the disk takes new ones."""
        for index, content in enumerate(self.contents):
            eventually(
                lambda index=index, content=content: self.mount.path(index).read_bytes() == content, self.served_s
            )
        eventually(lambda: status(self.mount)["disks"][0]["eligible"], self.noticed_s)
        made = range(len(os.listdir(self.mount.mountpoint)), len(os.listdir(self.mount.mountpoint)) + 3)
        self.mount.make_segments(made)
        assert sorted(self.mount.disk_of(index) for index in made) == [0, 1, 2]


@pytest.fixture
def pool(request: pytest.FixtureRequest, disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> Iterator[Pool]:
    """On ext4 with passthrough, or as the test's parameters say."""
    fstype, mode = getattr(request, "param", ("ext4", "auto"))
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    made = Pool(disk_farm, keep, fstype, passthrough=f'"{mode}"')
    yield made
    with contextlib.suppress(OSError):  # its filesystem may be gone
        os.close(made.opened)


@pytest.mark.parametrize(
    ("pool", "noticed_s", "served_s"),
    [
        pytest.param(("ext4", "auto"), PATIENCE_S, PATIENCE_S, id="ext4-auto"),
        pytest.param(("ext4", "off"), PATIENCE_S, PATIENCE_S, id="ext4-off"),
        pytest.param(("xfs", "auto"), PATIENCE_S, PATIENCE_S, id="xfs-auto"),
        pytest.param(("ext4", "auto"), NOTICED_WITHIN_S, SERVED_WITHIN_S, id="in_time", marks=pytest.mark.timing),
    ],
    indirect=["pool"],
)
def test_a_lost_disk_that_comes_back_as_another_device(pool: Pool, noticed_s: float, served_s: float) -> None:
    pool.noticed_s, pool.served_s = noticed_s, served_s
    pool.lose()
    pool.disk.come_back()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    pool.await_event("disk_returned")
    pool.assert_served()
    assert not status(pool.mount)["degraded"]
    pool.kept.newest_daemon()
    pool.kept.replace()  # the next daemon serves the same inodes
    pool.assert_served()


@pytest.mark.parametrize(
    "noticed_s",
    [
        pytest.param(PATIENCE_S, id="works"),
        pytest.param(NOTICED_WITHIN_S, id="in_time", marks=pytest.mark.timing),
    ],
)
def test_a_disk_that_is_unmounted_and_mounted_again(pool: Pool, noticed_s: float) -> None:
    pool.noticed_s = noticed_s
    pool.disk.detach()
    eventually(lambda: pool.state == "vanished", noticed_s)
    pool.await_event("disk_vanished")
    document = status(pool.mount)
    assert [alert["code"] for alert in document["retention"]["alerts"]] == ["disk-vanished"]
    assert 'state="vanished"} 1.0' in pool.mount.metrics()
    assert "gets no new segments until it is mounted there again" in pool.mount.cli("status", "test").out
    pool.mount.make_segments(range(COUNT, COUNT + 3))
    assert 0 not in {pool.mount.disk_of(index) for index in range(COUNT, COUNT + 3)}
    assert not pool.directory.exists(), "nothing is made under the mountpoint"
    assert pool.mount.path(3).read_bytes() == pool.contents[3], "its filesystem is still there"
    daemon = pool.kept.newest_daemon()
    pool.disk.mount()
    pool.await_event("disk_returned")
    eventually(lambda: pool.state == "rw", noticed_s)
    pool.assert_served()
    assert pool.kept.newest_daemon() == daemon, "it was never closed, so nothing has to be opened"


def test_a_takeover_while_a_disk_is_unmounted(pool: Pool) -> None:
    pool.disk.detach()
    pool.kept.replace()
    assert status(pool.mount)["degraded"]
    assert [int(name) >> 20 for name in sorted(os.listdir(pool.mount.mountpoint))] == [1, 2, 4, 5]
    pool.disk.mount()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    eventually(lambda: not status(pool.mount)["degraded"])
    pool.assert_served()


def test_a_disk_is_taken_back_while_the_newest_segment_is_missing(pool: Pool) -> None:
    """With that, no mount could begin; a takeover continues with what there is."""
    pool.disk.detach()
    pool.newest.detach()
    pool.kept.replace()
    assert [int(name) >> 20 for name in sorted(os.listdir(pool.mount.mountpoint))] == [1, 4]
    pool.disk.mount()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    eventually(lambda: len(status(pool.mount)["missing_disks"]) == 1)
    assert pool.mount.path(3).read_bytes() == pool.contents[3]
    pool.newest.mount()
    pool.kept.newest_daemon()
    pool.kept.await_successor()
    eventually(lambda: not status(pool.mount)["degraded"])
    pool.assert_served()


def test_another_disk_in_its_place(pool: Pool, disk_farm: DiskFarm) -> None:
    """Nothing is made there, and nothing is taken over."""
    pool.disk.detach()
    other = disk_farm.add()
    other.detach()
    eventually(lambda: pool.state == "vanished")
    other.path = pool.disk.path
    other.mount()
    pool.mount.make_segments(range(COUNT, COUNT + 3))
    assert sorted(os.listdir(other.path)) == ["lost+found"]
    assert pool.state == "vanished"
    other.unmount()
    pool.disk.mount()
    eventually(lambda: pool.state == "rw")
    assert "disk_back" not in pool.mount.log_since_start()


def test_a_disk_that_cannot_be_taken_back(pool: Pool) -> None:
    """The check of `restart` refuses, so the daemon continues without it, and the reason is shown."""
    pool.lose()
    size = f"segment_size = {pool.mount.segment_size}"
    pool.mount.config.write_text(pool.mount.config.read_text().replace(size, f"segment_size = {1 << 21}"))
    pool.disk.come_back()
    pool.await_event("disk_not_taken_back")
    found = [one for one in status(pool.mount)["findings"] if one["code"] == "disk-not-taken-back"]
    assert [one["disk"] for one in found] == [str(pool.directory)]
    assert "segment_size" in found[0]["message"]
    pool.mount.write_config()
    pool.kept.change("restart")
    pool.assert_served()
    assert not [one for one in status(pool.mount)["findings"] if one["code"] == "disk-not-taken-back"]


def test_a_disk_that_is_mounted_after_the_pool(pool: Pool) -> None:
    """As at a boot at which one disk is late."""
    os.close(pool.opened)
    pool.opened = os.open(os.devnull, os.O_RDONLY)
    pool.mount.stop()
    pool.disk.unmount()
    pool.mount.settings["on_missing"] = '"degraded"'
    pool.kept.start()
    assert status(pool.mount)["degraded"]
    pool.disk.mount()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    eventually(lambda: not status(pool.mount)["degraded"])
    pool.assert_served()


def test_a_read_only_disk_is_repaired_beside_the_mount(pool: Pool) -> None:
    """docs/runbooks/disk-read-only.md. The last process that has a file there open holds the device."""
    pool.disk.turn_read_only()
    device = pool.disk.device
    pool.disk.detach()
    released = pool.mount.cli("restart", "--degraded", pool.mount.name)
    assert released.status == 0, released.err
    pool.kept.newest_daemon()
    pool.mount.make_segments(range(COUNT, COUNT + 3))
    check = ["e2fsck", "-f", "-y", device]
    assert "in use" in subprocess.run(check, capture_output=True, text=True, check=False).stdout
    with contextlib.suppress(OSError):
        os.close(pool.opened)
    pool.opened = os.open(os.devnull, os.O_RDONLY)
    eventually(lambda: not subprocess.run(["losetup", "--associated", pool.disk.image], capture_output=True).stdout)
    check[-1] = str(pool.disk.image)  # its loop device has gone with its last user
    assert subprocess.run(check, capture_output=True, check=False).returncode <= 1
    pool.disk.mount()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    eventually(lambda: pool.state == "rw")
    pool.assert_served()


@pytest.mark.parametrize("how", ["lost", "unmounted"])
@pytest.mark.parametrize("pool", [("ext4", "off")], ids="-".join, indirect=True)
def test_a_plain_mapping_leads_to_the_disk_that_is_back(pool: Pool, how: str) -> None:
    """A broker must not lose stores to its mapping."""
    with mmap.mmap(pool.opened, pool.mount.segment_size) as mapping:
        mapping[:6] = b"before"
        mapping.flush()
        if how == "lost":
            pool.lose()
            pool.disk.come_back()
        else:
            pool.disk.detach()
            pool.kept.replace()
            pool.disk.mount()
        pool.await_event("disk_back")
        pool.kept.await_successor()
        eventually(lambda: pool.mount.path(0).read_bytes()[6:] == pool.contents[0][6:])
        mapping[:6] = b"behind"
        mapping.flush()
        os.pwrite(pool.opened, b"descriptor", 6)
        assert pool.mount.path(0).read_bytes()[:16] == b"behinddescriptor"
    os.fsync(pool.opened)
    assert (pool.directory / pool.mount.path(0).name).read_bytes()[:16] == b"behinddescriptor"


@pytest.mark.parametrize("pool", [("ext4", "off")], ids="-".join, indirect=True)
def test_a_plain_file_that_was_open_all_the_time_is_retired(pool: Pool) -> None:
    """The daemon that served the mount without the disk must not take it for closed."""
    pool.disk.detach()
    pool.kept.replace()
    pool.disk.mount()
    pool.await_event("disk_back")
    pool.kept.await_successor()
    eventually(pool.mount.path(0).exists)
    pool.mount.path(0).unlink()
    assert os.pread(pool.opened, len(pool.contents[0]), 0) == pool.contents[0]


def test_a_disk_is_not_tried_again_because_a_look_had_no_answer(pool: Pool) -> None:
    """A disk that answers late now and then would let daemon after daemon hand over."""
    pool.lose()
    size = f"segment_size = {pool.mount.segment_size}"
    pool.mount.config.write_text(pool.mount.config.read_text().replace(size, f"segment_size = {1 << 21}"))
    pool.disk.come_back()
    pool.await_event("disk_not_taken_back")
    child = check_child(pool.kept.daemon)
    child.suspend()
    time.sleep(DISK_LOOKS_S)
    assert [one["disk"] for one in status(pool.mount)["findings"] if one["code"] == "disk-not-taken-back"]
    child.resume()
    time.sleep(DISK_LOOKS_S)
    eventually(lambda: pool.mount.log_since_start().count("event=disk_not_taken_back ") == 1)


def test_no_hand_over_while_another_disk_holds_the_daemon(pool: Pool, disk_farm: DiskFarm) -> None:
    """It could not end, and nobody would serve the mount until that disk answers."""
    pool.lose()
    with frozen(disk_farm.disks[1], 2 * PATIENCE_S) as thaw:
        pool.mount.make_segments([COUNT, COUNT + 1])  # the frozen disk is tried for one of them
        pool.disk.come_back()
        pool.await_event("disk_not_taken_back")
        found = [one for one in status(pool.mount)["findings"] if one["code"] == "disk-not-taken-back"]
        assert str(pool.mount.disks[1]) in found[0]["message"]
        assert pool.mount.path(1).read_bytes() == pool.contents[1]
        thaw()
    pool.kept.change("restart")
    pool.assert_served()


def check_child(daemon: int) -> psutil.Process:
    """The process that checks the daemon's disks."""
    children = psutil.Process(daemon).children()
    return next(child for child in children if "commitlogfs.store.checks.check_process" in child.cmdline())
