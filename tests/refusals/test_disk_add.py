"""Refusals of `disk add`: one line, exit status 4 (2 for the configuration), and nothing has changed."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import Ran
from support.loop_disks import MIB, DiskFarm
from support.pools import PoolMount, pool_in
from support.timings import BRISK
from support.waiting import PATIENCE_S

from commitlogfs.mount.config import edit
from commitlogfs.store.timing import ScrubTiming

pytestmark = [pytest.mark.mounted, pytest.mark.root]

NEVER_S = 1e9
DISK_VERBS = (
    *("add", "cordon", "uncordon", "drain", "cancel", "offline", "online", "remove"),
    "safe-to-remove",
)
"""The verbs with one disk or directory."""


def refused(pool: PoolMount, path: Path | str, status: int = 4) -> str:
    """The one line of a refusal, for the same reason in a dry run."""
    before = (pool.config.read_bytes(), pool.ask("status")["members"], _attributes(path))
    dry = pool.cli("disk", "add", path, pool.name, "--dry-run")
    ran = pool.cli("disk", "add", path, pool.name)
    assert (ran.status, ran.out, ran.err) == (status, "", dry.err)
    assert ran.err.count("\n") == 1
    assert (pool.config.read_bytes(), pool.ask("status")["members"], _attributes(path)) == before
    return ran.err.removeprefix("commitlogfs: ").rstrip("\n")


def _attributes(path: Path | str) -> list[str] | None:
    return sorted(os.listxattr(path)) if os.path.isdir(path) else None


@pytest.fixture(scope="module")
def pool(module_directory: Path) -> Iterator[PoolMount]:
    """Two disks, mounted, for tests after which the pool is as it was. No scrub gives the disks an attribute."""
    with pool_in(module_directory, 2, times=replace(BRISK, scrub=ScrubTiming(start_s=NEVER_S))) as pool:
        pool.start("--watchdog", "0")
        yield pool


def test_a_directory_that_is_not_empty(pool: PoolMount, workdir: Path):
    directory = workdir / "new"
    directory.mkdir()
    (directory / "photo.jpg").touch()
    assert refused(pool, directory) == (
        f"test: {directory}: not empty (it holds 'photo.jpg'); give an empty directory"
    )


def test_a_disk_of_the_pool_itself(pool: PoolMount):
    assert refused(pool, pool.disks[0]) == (
        f"test: {pool.disks[0]}: is disk 1 of this pool already; see `commitlogfs disk list`"
    )


def test_a_disk_of_another_pool(pool: PoolMount, workdir: Path):
    other = workdir / "other"
    assert pool.cli("init", "--disks", other).status == 0
    text = refused(pool, other)
    assert text.startswith(f"test: {other}: is a disk of pool ")
    assert text.endswith(f"`commitlogfs destroy --degraded --disks {other}`")


def test_a_file_and_a_directory_whose_parent_is_absent(pool: PoolMount, workdir: Path):
    (workdir / "file").touch()
    assert "file: not a directory" in refused(pool, workdir / "file")
    absent = workdir / "absent" / "commitlog"
    assert refused(pool, absent) == f"test: {absent}: neither it nor {absent.parent} exists; mount the disk first"


def test_a_directory_inside_a_disk_or_the_mount(pool: PoolMount):
    remedy = "give a directory outside the disks of the pool"
    below = pool.disks[0] / "below"
    assert refused(pool, below) == f"{below}: is inside the disk {pool.disks[0]}; {remedy}"
    assert "mountpoint" in refused(pool, pool.mountpoint / "below", 2)


def test_a_directory_that_contains_a_disk(make_pool: Callable[..., PoolMount], workdir: Path):
    disks = [workdir / "data1" / "commitlog", workdir / "data2"]
    for disk in disks:
        disk.mkdir(parents=True)
    pool = make_pool(disks=disks)
    pool.start("--watchdog", "0")
    assert refused(pool, workdir / "data1") == (
        f"{workdir}/data1: contains the disk {pool.disks[0]}; give a directory outside the disks of the pool"
    )


def test_a_path_that_is_not_utf_8(pool: PoolMount, workdir: Path):
    """The configuration could not name the disk. Nothing is made or prepared."""
    path = f"{workdir}/\udcff"
    before = (pool.config.read_bytes(), pool.ask("status")["members"])
    verbs: list[tuple[object, ...]] = [("disk", verb, path) for verb in DISK_VERBS]
    verbs += [("disk", "replace", 1, path), ("disk", "remove", "--lost", path), ("restore", "--from", path)]
    for arguments in verbs:
        for option in ((), ("--dry-run",)):
            if arguments[1] == "safe-to-remove" and option:
                continue
            ran = pool.cli(*map(str, arguments), pool.name, *option)
            assert (ran.status, ran.out) == (2, ""), arguments
            assert ran.err == (
                f"commitlogfs: '{workdir}/\\udcff' is not UTF-8, so no configuration file can name it; rename it\n"
            )
    assert not os.path.lexists(path)
    assert (pool.config.read_bytes(), pool.ask("status")["members"]) == before


def test_an_empty_path(pool: PoolMount):
    for arguments in (("add", ""), ("replace", 1, ""), ("remove", ""), ("drain", "")):
        ran = pool.cli("disk", *arguments, pool.name)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err == "commitlogfs: a path is empty; write the path, or . for the current directory\n"


def test_a_mount_without_keeper(make_pool: Callable[..., PoolMount], workdir: Path):
    pool = make_pool(2)
    pool.start()
    assert refused(pool, workdir / "new") == (
        "test: another daemon has to take the mount over to serve other disks, and none could "
        "(no keeper and no service manager keeps the descriptors of the mount); correct that first"
    )


def test_a_configuration_that_a_running_mount_cannot_follow(pool: PoolMount, workdir: Path):
    usual = pool.config.read_text()
    pool.config.write_text(usual.replace("segment_size = 1048576", "segment_size = 2097152"))
    try:
        text = refused(pool, workdir / "new")
    finally:
        pool.config.write_text(usual)
    assert text.startswith(
        f"test: the disk is not added: {pool.config} changes segment_size from 1048576 to 2097152"
    )


def test_two_commands_at_once(pool: PoolMount, workdir: Path):
    with edit.only_editor(str(pool.config)):
        text = refused(pool, workdir / "new")
    assert text == f"{pool.workdir}: another `commitlogfs disk` command is at work; wait for its end"


def test_filesystems(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], workdir: Path):
    """Shared with a member, the root filesystem, unsuitable, read-only, too small for a segment."""
    first, second, third = (disk_farm.add("ext4", 64 * MIB) for _ in range(3))
    for disk in (first, second):
        (disk.path / "commitlog").mkdir()
    pool = make_pool(disks=[first.path / "commitlog", second.path / "commitlog"], segment_size=32 * MIB)
    pool.start("--watchdog", "0")
    same = refused(pool, first.path / "another")
    assert same.startswith(
        f"test: {first.path}/another: on the same filesystem as {first.path}/commitlog, so it adds"
    )
    bare = workdir / "data4" / "commitlog"  # as on the disk that is to be mounted at data4
    bare.parent.mkdir()
    if os.stat(workdir).st_dev == os.stat("/").st_dev:
        assert refused(pool, bare) == f"test: {bare}: on the root filesystem; mount the new disk there first"
    assert "use ext4 or xfs [filesystem-unsuitable]" in refused(pool, "/proc/sys")
    small = disk_farm.add("ext4", 16 * MIB)
    assert "and segments have 33,554,432 (segment_size)" in refused(pool, small.path)
    third.remount_ro()
    assert "its filesystem is read-only" in refused(pool, third.path / "commitlog")
    third.remount_rw()
    ran = pool.cli("disk", "add", third.path / "commitlog", pool.name)
    assert ran.status == 0, ran.err


@pytest.mark.root
def test_min_free(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]):
    """The report does not say that the new disk takes segments. A long name of this test would be too long for the
    list of members on a small disk."""
    first, second, small = (disk_farm.add("ext4", size * MIB) for size in (128, 128, 32))
    pool = make_pool(disks=[one.path / "commitlog" for one in (first, second)], thresholds={"min_free": '"40MiB"'})
    pool.start("--watchdog", "0")
    ran = pool.cli("disk", "add", small.path / "commitlog", pool.name)
    assert (ran.status, "it takes no segments now" in ran.out) == (0, True), ran


def test_what_the_next_mount_would_refuse(make_pool: Callable[..., PoolMount], workdir: Path):
    """A reason that has nothing to do with the new disk."""
    pool = make_pool(2)
    pool.start("--watchdog", "0")
    pool.make_segments(range(4))
    name = pool.path(1).name
    os.rename(pool.disks[1] / name, workdir / "away")
    before = pool.config.read_bytes()
    (workdir / "new").mkdir()
    both: list[Ran] = [pool.cli("disk", "add", workdir / "new", pool.name, *dry) for dry in ([], ["--dry-run"])]
    os.rename(workdir / "away", pool.disks[1] / name)
    for ran in both:
        assert ran.status == 4
        refused = "commitlogfs: test: the disk is not added: the next mount would be refused, or lack segments: "
        assert ran.err.startswith(refused)
        assert "[gap]" in ran.err
    assert pool.config.read_bytes() == before
    assert os.listxattr(workdir / "new") == []


def test_the_bare_directory_of_a_disk_that_fstab_names(make_pool: Callable[..., PoolMount], workdir: Path):
    """Each file would lie on the filesystem below, which is not the disk that the operator means."""
    fstab, bare = workdir / "fstab", workdir / "data9"
    fstab.write_text(f"UUID=0 {bare} ext4 defaults 0 2\n")
    bare.mkdir()
    pool = make_pool(2)
    pool.launcher = (
        *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
        f'mount --bind "{fstab}" /etc/fstab && exec "$@"',
        "sh",
    )
    pool.start("--watchdog", "0")
    assert pool.daemon is not None
    try:
        for path in (bare, bare / "commitlog"):
            assert refused(pool, path) == (
                f"test: {path}: /etc/fstab names {bare}, but nothing is mounted there; mount it first"
            )
        assert os.listdir(bare) == []
    finally:
        pool.daemon.terminate()  # its mount is not visible from here
    assert pool.daemon.wait(PATIENCE_S) == 0
    pool.daemon = None


def test_a_pool_that_cannot_record_a_new_member(make_pool: Callable[..., PoolMount], workdir: Path):
    pool = make_pool(2)
    pool.disk_settings = {0: {"readonly": "true"}, 1: {"readonly": "true"}}
    pool.start("--watchdog", "0")
    assert "no disk of the pool can record the new member; make one writable" in refused(pool, workdir / "new")
