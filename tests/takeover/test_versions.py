"""Upgrades and downgrades over a living mount: what another version does not understand it leaves alone."""

import contextlib
import mmap
import os
from collections.abc import Callable

import pytest
from support.pools import MIB, PoolMount, segment_bytes
from support.versions import VersionedMount
from support.waiting import eventually

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

LAYOUTS = {
    "handshake": {"fusefs/kernel/handshake.py": ("LAYOUT = 1", "LAYOUT = 2")},
    "table": {"fusefs/kernel/backing_table.py": ("LAYOUT = 1", "LAYOUT = 2")},
}
OTHER_FLAGS = {"fusefs/operations.py": ("enable_writeback_cache = False", "enable_writeback_cache = True")}
SMALLER_REQUESTS = {
    "fusefs/kernel/session.py": (
        "kept.init_reply, False)",
        "kept.init_reply[:23] + bytes([127]) + kept.init_reply[24:], False)",
    )
}
"""As if the mount had a larger max_write (in struct fuse_init_out) than this libfuse can read."""
NAME_MAX = 255
OTHER_NAMES = {"fusefs/operations.py": ("NAME_MAX = 255", "NAME_MAX = 254")}
"""A harmless difference that tells the versions apart."""


def grow(pool: PoolMount, index: int) -> int:
    fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, MIB)
    return fd


def start_with(mount: VersionedMount) -> tuple[int, mmap.mmap]:
    """A segment, open and mapped."""
    fd = grow(mount.pool, 0)
    return fd, mmap.mmap(fd, MIB)


def test_a_version_that_cannot_be_loaded_is_not_restarted_to(
    keep_reserved: Callable[..., VersionedMount],
) -> None:
    mount = keep_reserved(2)
    pool = mount.pool
    mount.make("broken", {"mount/daemon/served_mount.py": ("import trio\n", "import trio_that_is_not_installed\n")})
    fd, mapped = start_with(mount)
    before = mount.daemon
    mount.choose("broken")
    ran = pool.cli("restart", pool.name)
    assert ran.status == 4
    assert ran.err.count("\n") == 1
    assert "the program as it is installed now does not start" in ran.err
    assert pool.status()["daemon"]["pid"] == before
    pool.require_logged("trio_that_is_not_installed")
    ran = pool.cli("restart", pool.name, "--force", "--timeout", "1")
    assert ran.status == 1
    mapped[:4] = b"goes"
    mount.choose(None)
    mount.wait_ready(2)
    os.fsync(fd)
    assert mapped[:4] == b"goes"
    ran = pool.cli("restart", pool.name)
    assert ran.status == 0, ran.err
    mount.wait_ready(3)
    eventually(lambda: mount.events("daemon_started", pid=mount.daemon, stood_by="true"))
    mapped.close()
    os.close(fd)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_version_with_another_layout_leaves_the_mount_to_the_one_that_knows_it(
    keep_versions: Callable[..., VersionedMount], layout: str
) -> None:
    mount = keep_versions(2)
    pool = mount.pool
    mount.make("other", LAYOUTS[layout])
    fd, mapped = start_with(mount)
    mapped[:6] = b"before"
    before = mount.daemon
    mount.choose("other")
    ran = pool.cli("restart", pool.name, "--timeout", "1")
    mapped[10:16] = b"during"
    mount.choose(None)
    mount.wait_ready(2)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert f"no successor of daemon {before} has answered within 1 s" in ran.err
    told = [line for line in pool.log_since_start().splitlines() if " layout 1" in line]
    assert told
    said = "has layout 1, this version knows 2; install the version that it was mounted by"
    assert all(said in line for line in told)
    assert not mount.events("state_lost")
    assert len(mountinfo.mounts_below(pool.workdir)) == 1
    second = os.open(pool.path(0), os.O_RDWR)
    assert os.pread(second, 16, 0) == b"before" + bytes(4) + b"during"
    os.fsync(fd)
    assert pool.status()["daemon"]["state_lost"] is False
    mapped.close()
    os.close(second)
    os.close(fd)


def test_a_version_that_would_request_other_features_serves_with_those_of_the_mount(
    keep_versions: Callable[..., VersionedMount],
) -> None:
    mount = keep_versions(2)
    mount.make("other", OTHER_FLAGS)
    fd, mapped = start_with(mount)
    for turn, version in enumerate(("other", "other", None), start=1):
        mount.choose(version)
        mount.replace()
        mapped[turn] = turn
        os.fsync(fd)
        assert os.pread(fd, turn, 1) == bytes(range(1, turn + 1))
        with mount.pool.path(0).open("rb") as second:
            assert second.read(turn + 1) == bytes(range(turn + 1))
        os.close(grow(mount.pool, turn))
    assert not mount.events("successor_refused")
    assert not mount.events("state_lost")
    mapped.close()
    os.close(fd)


def test_a_version_whose_libfuse_reads_smaller_requests_leaves_the_mount_alone(
    keep_versions: Callable[..., VersionedMount],
) -> None:
    mount = keep_versions(2)
    mount.make("other", SMALLER_REQUESTS)
    fd, mapped = start_with(mount)
    mount.kill()
    mount.choose("other")
    mount.let_go_on("successor_refused")
    mapped[:4] = b"goes"
    mount.choose(None)
    mount.wait_ready(2)
    os.fsync(fd)
    assert os.pread(fd, 4, 0) == b"goes"
    mount.pool.require_logged("this libfuse reads smaller requests than the kernel sends on this mount")
    mapped.close()
    os.close(fd)


def test_versions_and_wishes_alternate(keep_versions: Callable[..., VersionedMount]) -> None:
    """The features negotiated with the kernel at the mount stay, whatever a version or a configuration requests."""
    mount = keep_versions(2)
    pool = mount.pool
    mount.make("other", OTHER_NAMES)
    fd, mapped = start_with(mount)
    files = [fd]
    for turn in range(1, 7):
        odd = turn % 2
        mount.choose("other" if odd else None)
        pool.settings["passthrough"] = '"off"' if odd else '"auto"'
        pool.write_config()
        mount.replace()
        assert os.statvfs(pool.mountpoint).f_namemax == NAME_MAX - odd
        daemon = pool.status()["daemon"]
        assert (daemon["passthrough"], daemon["restarts"]) == ("off" if odd else "on", turn)
        files.append(grow(pool, turn))
        mapped[turn] = turn
        mapped.flush()
        for index, file in enumerate(files):  # passed through or not, and by whomever opened
            os.pwrite(file, b"%d" % turn, 100 + turn)
            os.fsync(file)
            with pool.path(index).open("rb") as second:
                assert second.read(110)[100 + turn : 101 + turn] == b"%d" % turn
        assert (daemon["passthrough_files"], daemon["plain_files"]) == ((turn + 1) // 2, turn // 2)
    assert mapped[:7] == bytes(range(7))
    mapped.close()
    for file in files:
        os.close(file)
    assert len(mountinfo.mounts_below(pool.workdir)) == 1


def test_a_mount_made_without_passthrough_says_how_to_get_it(keep_versions: Callable[..., VersionedMount]) -> None:
    mount = keep_versions(1, settings={"passthrough": '"off"'})
    mount.pool.settings["passthrough"] = '"required"'
    mount.pool.write_config()
    mount.replace()
    daemon = mount.pool.status()["daemon"]
    assert daemon["passthrough"] == "off"
    assert daemon["passthrough_reason"] == "the mount was made without it: unmount, and mount it again"
    assert "backing_id_stays" not in mount.pool.log_since_start()


def test_a_disk_leaves_the_configuration_and_comes_back(keep_versions: Callable[..., VersionedMount]) -> None:
    mount = keep_versions(3)
    pool = mount.pool
    pool.make_segments(range(5))
    fd = os.open(pool.path(2), os.O_RDWR)
    mapped = mmap.mmap(fd, MIB)
    before = {disk["path"]: (disk["id"], disk["number"]) for disk in pool.status()["disks"]}
    disks, pool.disks = pool.disks, pool.disks[:2]
    pool.write_config()
    mount.replace()
    status = pool.status()
    assert [disk["path"] for disk in status["disks"]] == [str(disk) for disk in pool.disks]
    assert status["missing_disks"] == [str(disks[2])]
    assert status["degraded"]
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in (0, 1, 3, 4)]
    mapped[:4] = b"goes"
    assert os.pread(fd, 4, 0) == b"goes"
    with pytest.raises(FileExistsError, match="File exists"):
        grow(pool, 2)  # not a second one of this name
    pool.disks = disks
    pool.write_config()
    mount.replace()
    with pool.path(2).open("r+b") as again:  # another inode of the same file
        assert again.read(4) == mapped[:4] == b"goes"
    mapped.close()
    with contextlib.suppress(OSError):  # the kernel knows the former inode no more
        os.close(fd)
    after = {disk["path"]: (disk["id"], disk["number"]) for disk in pool.status()["disks"]}
    assert after == before
    assert not pool.status()["degraded"]
    assert pool.path(2).read_bytes()[:4] == b"goes"
    assert pool.path(2).read_bytes()[4:4096] == segment_bytes(2, 4096)[4:]


def test_a_new_disk_in_the_configuration_is_told_and_left_alone(
    keep_versions: Callable[..., VersionedMount],
) -> None:
    mount = keep_versions(2)
    pool = mount.pool
    new = pool.workdir / "new"
    new.mkdir()
    pool.disks = [*pool.disks, new]
    pool.write_config()
    mount.replace()
    assert [finding["disk"] for finding in pool.status()["findings"] if "no identity" in finding["message"]] == [
        str(new)
    ]
    for index in range(3):
        os.close(grow(pool, index))
    assert os.listdir(new) == []
    assert os.listxattr(new) == []
