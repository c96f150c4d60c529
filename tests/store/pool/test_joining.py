"""A directory on its way into the pool: what is refused, and what a cut-off attempt leaves."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.cut_off import cut_off_after
from support.member_directories import NAME, SIZE, Directories

from commitlogfs.store import layout
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import read_identity, read_joining, read_root, write_identity
from commitlogfs.store.errors import PoolError
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import joining
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.joining import JoiningPlan
from commitlogfs.store.pool.open import OnMissing, open_pool, require_mountable
from commitlogfs.store.scrub.progress import Command, Progress, Run, format_progress
from commitlogfs.store.segment import BaseOffset


@pytest.fixture
def directories(workdir: Path) -> Directories:
    return Directories(workdir)


@contextmanager
def opened(*specs: DiskSpec) -> Iterator[CommitLog]:
    with closing(CommitLog(open_pool(specs, SIZE), POLICIES["round-robin"])) as log:
        yield log


def plan(directories: Directories, path: str | None = None) -> JoiningPlan:
    with opened(*directories.specs) as log:
        return joining.plan_joining(
            path or directories.new.path, log.pool_id, SIZE, log.membership, list(log.disks.values())
        )


def test_an_empty_directory_is_marked_and_nothing_else_changes(directories):
    before = {spec.path: os.listxattr(spec.path) for spec in directories.specs}
    prepared = plan(directories)
    assert (prepared.number, prepared.is_new) == (4, False)
    assert os.listxattr(directories.new.path) == []
    joining.prepare(prepared, directories.pool_id)
    assert os.listxattr(directories.new.path) == [layout.XATTR_JOINING]
    assert {spec.path: os.listxattr(spec.path) for spec in directories.specs} == before
    joining.forget(directories.new.path, directories.pool_id, directories.first)
    assert os.listxattr(directories.new.path) == []


def test_an_absent_directory_is_made(directories, workdir):
    prepared = plan(directories, str(workdir / "made"))
    assert prepared.is_new
    assert not (workdir / "made").exists()
    joining.prepare(prepared, directories.pool_id)
    assert os.stat(workdir / "made").st_mode & 0o777 == 0o700


def test_a_mark_keeps_its_id_when_it_is_made_again(directories):
    """Some disks may record it already."""
    joining.prepare(plan(directories), directories.pool_id)
    first = os.getxattr(directories.new.path, layout.XATTR_JOINING)
    joining.prepare(plan(directories), directories.pool_id)
    assert os.getxattr(directories.new.path, layout.XATTR_JOINING) == first


def test_the_scrub_of_a_former_pool_is_not_continued(directories):
    run = Run(1_900_000_000, BaseOffset(10**12), command=Command.PAUSE)
    foreign = Progress(run, position=BaseOffset(5 * 10**9))
    os.setxattr(directories.new.path, layout.XATTR_SCRUB, format_progress(foreign))
    joining.prepare(plan(directories), directories.pool_id)
    assert os.listxattr(directories.new.path) == [layout.XATTR_JOINING]


def test_the_mark_of_another_pool_is_left_alone(directories):
    directories.mark(directories.new, "new", pool_id="another")
    with pytest.raises(PoolError, match="disk4: records nothing of this pool"):
        joining.forget(directories.new.path, directories.pool_id, directories.first)
    with pytest.raises(PoolError, match="disk1: is a disk of this pool"):
        joining.forget(directories.specs[0].path, directories.pool_id, directories.first)
    assert os.listxattr(directories.new.path) == [layout.XATTR_JOINING]
    assert layout.XATTR_IDENTITY in os.listxattr(directories.specs[0].path)
    with pytest.raises(PoolError, match="is about to be added to pool another"):
        plan(directories)


def test_what_cannot_become_a_disk_is_refused(directories, workdir):
    Path(directories.new.path, NAME).touch()
    with pytest.raises(PoolError, match=rf"disk4: not empty \(it holds '{NAME}'\); give an empty directory"):
        plan(directories)
    with pytest.raises(PoolError, match=r"neither it nor .*/absent exists; mount the disk first"):
        plan(directories, str(workdir / "absent" / "commitlog"))
    with pytest.raises(PoolError, match="disk2: is disk 2 of this pool already"):
        plan(directories, directories.specs[1].path)
    (workdir / "file").touch()
    with pytest.raises(PoolError, match="file: not a directory"):
        plan(directories, str(workdir / "file"))


def test_a_disk_of_another_pool_is_refused(directories, workdir):
    (workdir / "other").mkdir()
    other = Directories(workdir / "other")
    with pytest.raises(PoolError, match=rf"disk1: is a disk of pool {other.pool_id}; if that pool is given up"):
        plan(directories, other.specs[0].path)


def complete(directories: Directories) -> None:
    """Everything that a daemon writes: the members first, then the new disk."""
    with opened(*directories.specs, directories.new) as log:
        *members, new = log.disks.values()
        for disk in members:
            write_identity(disk.dirfd, log.identity_of(disk))
        joining.complete(new.dirfd, log.identity_of(new), log.root, log.names.newest)


def test_cut_off_at_any_step_the_next_start_completes_it(directories, monkeypatch):
    steps = 0
    while True:
        for spec in directories.specs:
            directories.record(spec, directories.specs.index(spec) + 1, directories.first)
        for name in os.listxattr(directories.new.path):
            os.removexattr(directories.new.path, name)
        joining.prepare(plan(directories), directories.pool_id)
        with cut_off_after(monkeypatch, steps) as was_cut_off:
            complete(directories)
        if not was_cut_off:
            break
        complete(directories)
        require_complete(directories)
        steps += 1
    assert steps == 7  # three members; root, newest, identity and mark of the new disk
    require_complete(directories)


def require_complete(directories: Directories) -> None:
    with opened(*directories.specs, directories.new) as log:
        assert log.lagging() == []
        assert log.membership.generation == 1
        assert [member.number for member in log.membership.members] == [1, 2, 3, 4]
        new = log.disks[log.membership.last_number]
        assert not new.is_joining
        assert read_joining(new.dirfd) is None
        known = read_identity(new.dirfd, new.path)
        assert known is not None
        assert known.membership == log.membership
        assert read_root(new.dirfd, log.root) == log.root
    with closing(open_pool((*directories.specs, directories.new), SIZE)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert FindingCode.DISK_JOINS not in {finding.code for finding in pool.findings}
