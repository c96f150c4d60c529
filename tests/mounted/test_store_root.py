"""The broker's user must be able to write the store root, the directory around the mountpoint."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Ran
from support.loop_disks import DiskFarm
from support.other_users import as_user
from support.pools import PoolMount

from commitlogfs.mount.location.store_root import examine_store_root
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.files.usage import measure_usage

pytestmark = [pytest.mark.mounted, pytest.mark.root]

BROKER, OTHER = 12_345, 23_456


@pytest.fixture
def owned(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """A pool of the broker's user, not yet mounted, whose store root does not exist."""
    pool = make_pool(2, born=False)
    pool.init("--owner", f"{BROKER}:{BROKER}")
    return pool


def lock_store(root: Path) -> Callable[[], None]:
    """First steps of a starting broker."""
    return lambda: os.close(os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644))


def made_by_root(pool: PoolMount) -> Path:
    root = pool.mountpoint.parent
    root.mkdir()
    return root


def ready(pool: PoolMount) -> Ran:
    return pool.cli("ready", pool.mountpoint)


def doctor_level(pool: PoolMount) -> str:
    checks = pool.cli("doctor", pool.config, "--json").json()["checks"]
    return next(str(check["level"]) for check in checks if check["name"] == "store-root-writable")


def test_the_owner_writes_a_store_root_that_mount_has_made(owned: PoolMount) -> None:
    owned.start()
    root = owned.mountpoint.parent
    assert as_user(BROKER, lock_store(root)) == ""
    assert (root.stat().st_uid, root.stat().st_gid) == (BROKER, BROKER)
    assert root.parent.stat().st_uid == 0  # it was there before
    assert ready(owned).status == 0
    assert doctor_level(owned) == "ok"


def test_ready_refuses_a_first_start_without_write_access(owned: PoolMount) -> None:
    root = made_by_root(owned)
    owned.start()
    ran = ready(owned)
    assert ran.status == 4
    assert re.fullmatch(
        rf"commitlogfs: store root {root}: user {BROKER} cannot write .*; .*chown {BROKER} {root}.*\n", ran.err
    )
    assert owned.cli("ready", "--any-store-root", owned.mountpoint).status == 0
    assert doctor_level(owned) == "problem"
    assert root.stat().st_uid == 0  # nothing that was there before changes hands
    os.chown(root, BROKER, BROKER)
    assert ready(owned).status == 0
    assert doctor_level(owned) == "ok"


def test_a_parent_that_cannot_be_entered_is_named(owned: PoolMount) -> None:
    root = made_by_root(owned)
    os.chown(root, BROKER, BROKER)
    owned.start()
    owned.workdir.chmod(0o700)
    ran = ready(owned)
    owned.workdir.chmod(0o755)
    assert ran.status == 4
    assert f"user {BROKER} cannot enter {owned.workdir}; chmod o+x {owned.workdir}" in ran.err


def test_a_barred_parent_behind_a_link_is_named(owned: PoolMount) -> None:
    barred = owned.workdir / "barred"
    barred.mkdir(mode=0o700)
    (barred / "store").mkdir()
    os.chown(barred / "store", BROKER, BROKER)
    owned.mountpoint.parent.symlink_to(barred / "store")
    owner = RootAttributes(0o750, BROKER, BROKER)
    found = examine_store_root(str(owned.mountpoint), owner, has_segments=False)
    assert found.obstacle == f"user {BROKER} cannot enter {barred}"
    assert doctor_level(owned) == "problem"
    barred.chmod(0o711)
    assert doctor_level(owned) == "ok"


def test_no_chown_is_advised_for_a_shared_directory(owned: PoolMount) -> None:
    """It would give `/`, or `/mnt`, to the broker's user."""
    root = made_by_root(owned)
    (root / "home").mkdir()
    found = examine_store_root(str(owned.mountpoint), RootAttributes(0o750, BROKER, BROKER), has_segments=False)
    assert found.obstacle.startswith(f"user {BROKER} cannot write there")
    assert "chown " not in found.remedy
    assert "mountpoint" in found.remedy


def test_a_read_only_store_root_is_to_be_remounted(workdir: Path, disk_farm: DiskFarm) -> None:
    disk = disk_farm.add()
    os.chown(disk.path, BROKER, BROKER)
    disk.unmount()
    disk.mount("ro")
    owner = RootAttributes(0o750, BROKER, BROKER)
    found = examine_store_root(f"{disk.path}/commitlog", owner, has_segments=False)
    assert found.obstacle == "its filesystem is read-only"
    assert found.remedy == f"mount -o remount,rw {disk.path}"


def test_a_store_root_elsewhere_is_no_hindrance(owned: PoolMount) -> None:
    """A log with segments, and no trace of a store around the mountpoint: the broker's store root is elsewhere."""
    made_by_root(owned)
    owned.start()
    owned.make_segments([0])
    assert ready(owned).status == 0
    assert doctor_level(owned) == "ok"


def test_a_consumequeue_on_a_fuller_disk_counts(owned: PoolMount, disk_farm: DiskFarm) -> None:
    """The broker deletes segments to free space there."""
    disk = disk_farm.add()
    usage = measure_usage(str(disk.path))
    with (disk.path / "queues").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, usage.available_bytes * 95 // 100)
    root = made_by_root(owned)
    queues = root / "consumequeue"
    queues.symlink_to(disk.path)
    owned.start()
    document = owned.status()
    assert document["store_root"]["path"] == str(queues)
    used_percent = measure_usage(str(disk.path)).used_percent
    assert document["store_root"]["used_percent"] == pytest.approx(used_percent, abs=1)
    assert "deletes its oldest segments for it" in owned.cli("status", owned.name).out
    checks = owned.cli("doctor", owned.config, "--json").json()["checks"]
    (check,) = [check for check in checks if check["name"] == "store-root"]
    assert check["level"] == "warning"
    assert str(queues) in check["message"]


def test_a_store_of_a_broker_of_another_user_still_starts(owned: PoolMount) -> None:
    root = made_by_root(owned)
    lock_store(root)()
    owned.start()
    assert ready(owned).status == 0
    assert doctor_level(owned) == "warning"


def test_the_owner_itself_finds_the_same(workdir: Path) -> None:
    owner = RootAttributes(0o750, BROKER, BROKER)

    def examine() -> None:
        root = examine_store_root(f"{workdir}/commitlog", owner, has_segments=False)
        if root.obstacle:
            raise PermissionError(errno.EACCES, root.obstacle)

    assert as_user(BROKER, examine) == "EACCES"
    assert as_user(OTHER, examine) == ""  # cannot find out
    os.chown(workdir, BROKER, BROKER)
    assert as_user(BROKER, examine) == ""
