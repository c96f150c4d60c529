"""Permissions on a mount made by root: mode bits decide, as on any filesystem."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.other_users import as_user
from support.pools import MIB, PoolMount, pool_in

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

BROKER, STRANGER = 12_345, 23_456
NextIndex = Callable[[], int]


@pytest.fixture(scope="module")
def owned(module_directory: Path) -> Iterator[PoolMount]:
    """A pool that belongs to the broker's user, mounted by root."""
    with pool_in(module_directory, 2, born=False) as pool:
        for disk in pool.disks:
            disk.chmod(0o700)
        pool.init("--owner", f"{BROKER}:{BROKER}", "--mode", "0751")
        pool.start()
        yield pool


def create(pool: PoolMount, index: int, mode: int = 0o644) -> Callable[[], None]:
    def work() -> None:
        os.umask(0o022)
        fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        os.ftruncate(fd, MIB)
        os.pwrite(fd, b"mine", 0)
        os.close(fd)

    return work


def bare(pool: PoolMount, index: int) -> Path:
    return Path(pool.disks[pool.disk_of(index)]) / pool.path(index).name


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(1000))


def test_init_decides_owner_and_mode_of_the_directory(owned: PoolMount) -> None:
    st = owned.mountpoint.stat()
    assert (st.st_uid, st.st_gid, oct(stat.S_IMODE(st.st_mode))) == (BROKER, BROKER, "0o751")


def test_the_mount_carries_no_programs_devices_or_privileges(owned: PoolMount) -> None:
    entry = mountinfo.find_mount(owned.mountpoint)
    assert entry is not None
    (line,) = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {owned.mountpoint} " in line
    ]
    own, _, super_block = line.partition(" - ")
    assert {"nosuid", "nodev", "noexec"} <= set(own.split()[5].split(","))
    assert {"default_permissions", "allow_other"} <= set(super_block.split()[2].split(","))
    assert super_block.split()[0] == "fuse.commitlogfs"


def test_what_a_user_makes_is_the_users(owned: PoolMount, numbers: Iterator[int]) -> None:
    index = next(numbers)
    assert as_user(BROKER, create(owned, index, 0o666)) == ""
    for path in (owned.path(index), bare(owned, index)):
        st = path.stat()
        assert (st.st_uid, st.st_gid, oct(st.st_mode)) == (BROKER, BROKER, "0o100644")
    assert as_user(BROKER, lambda: os.chmod(owned.path(index), 0o600)) == ""
    assert as_user(BROKER, lambda: os.utime(owned.path(index), (1, 1))) == ""
    assert as_user(BROKER, lambda: owned.path(index).unlink()) == ""


def test_a_stranger_is_kept_out_by_the_mode_bits(owned: PoolMount, numbers: Iterator[int]) -> None:
    index, other = next(numbers), next(numbers)
    assert as_user(BROKER, create(owned, index, 0o640)) == ""
    path = owned.path(index)
    tries: dict[str, Callable[[], object]] = {
        "read": lambda: os.open(path, os.O_RDONLY),
        "write": lambda: os.open(path, os.O_WRONLY),
        "create": create(owned, other),
        "unlink": path.unlink,
        "list": lambda: os.listdir(owned.mountpoint),
        "truncate": lambda: os.truncate(path, MIB),
        "log": lambda: os.open(owned.mountpoint / ".commitlogfs" / "log", os.O_RDONLY),
        "bare": lambda: os.listdir(owned.disks[0]),
    }
    assert {name: as_user(STRANGER, work) for name, work in tries.items()} == dict.fromkeys(tries, "EACCES")
    assert as_user(STRANGER, lambda: os.chmod(path, 0o666)) == "EPERM"
    assert as_user(STRANGER, lambda: os.chown(path, STRANGER, STRANGER)) == "EPERM"
    assert as_user(STRANGER, lambda: os.utime(path, (1, 1))) == "EPERM"
    assert as_user(BROKER, lambda: os.chown(path, STRANGER, -1)) == "EPERM"
    assert as_user(STRANGER, path.stat) == ""  # the directory may be searched
    assert as_user(BROKER, lambda: os.open(owned.mountpoint / ".commitlogfs" / "log", os.O_RDONLY)) == ""
    os.chmod(path, 0o644)
    assert as_user(STRANGER, lambda: os.open(path, os.O_RDONLY)) == ""


def test_setuid_setgid_and_sticky_are_dropped(owned: PoolMount, numbers: Iterator[int]) -> None:
    index = next(numbers)
    old = os.umask(0)
    try:
        fd = os.open(owned.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o7755)
    finally:
        os.umask(old)
    os.ftruncate(fd, MIB)
    os.close(fd)
    assert oct(bare(owned, index).stat().st_mode) == oct(owned.path(index).stat().st_mode) == "0o100755"
    os.chmod(owned.path(index), 0o6644)
    assert oct(bare(owned, index).stat().st_mode) == oct(owned.path(index).stat().st_mode) == "0o100644"


def test_nothing_on_the_mount_is_executed(owned: PoolMount, numbers: Iterator[int]) -> None:
    index = next(numbers)
    fd = os.open(owned.path(index), os.O_RDWR | os.O_CREAT, 0o755)
    os.ftruncate(fd, MIB)
    os.pwrite(fd, b"#!/bin/sh\nexit 0\n", 0)
    os.close(fd)
    with pytest.raises(PermissionError):
        subprocess.run([owned.path(index)], check=False)


def test_owner_and_mode_of_the_directory_outlive_the_mount(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    os.chown(pool.mountpoint, BROKER, STRANGER)
    os.chmod(pool.mountpoint, 0o2750)
    for _ in range(2):
        st = pool.mountpoint.stat()
        assert (st.st_uid, st.st_gid, oct(stat.S_IMODE(st.st_mode))) == (BROKER, STRANGER, "0o750")
        pool.restart()
    assert as_user(BROKER, create(pool, 0)) == ""


def test_an_owner_that_does_not_exist_is_refused(workdir: Path) -> None:
    disk = workdir / "disk"
    disk.mkdir()
    ran = run_cli("init", "--disks", disk, "--owner", "no-such-user-here")
    assert ran.status == 2
    assert "no-such-user-here" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert os.listxattr(disk) == []


def test_a_new_pool_is_closed_to_other_users(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(1, born=False)
    pool.init("--owner", f"{BROKER}:{BROKER}")
    pool.start()
    assert oct(stat.S_IMODE(pool.mountpoint.stat().st_mode)) == "0o750"
    assert as_user(BROKER, create(pool, 0)) == ""
    hidden = pool.mountpoint / ".commitlogfs"
    looks: list[Callable[[], object]] = [lambda: os.listdir(pool.mountpoint)]
    looks += [
        lambda path=path: os.open(path, os.O_RDONLY)
        for path in (pool.path(0), hidden / "log", hidden / "status.json")
    ]
    assert [as_user(STRANGER, look) for look in looks] == ["EACCES"] * 4
    assert [as_user(STRANGER, look, groups=[BROKER]) for look in looks] == [""] * 4
    assert as_user(STRANGER, create(pool, 1), groups=[BROKER]) == "EACCES"  # the group reads, no more


def test_a_pool_that_is_open_to_all_stays_as_it_is(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(1, born=False)
    pool.init("--mode", "0755")
    pool.start()
    assert as_user(STRANGER, lambda: os.listdir(pool.mountpoint)) == ""
    levels = {check["name"]: check["level"] for check in pool.cli("doctor", pool.config, "--json").json()["checks"]}
    assert levels["mount-open-to-others"] == "note"
