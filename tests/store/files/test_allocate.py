"""Reserve first, name last - on real filesystems, full ones among them."""

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.files import names_in, open_disk

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.files import allocate
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import unpack

SIZE = 1 << 20
NAME = b"%020d" % 0
OURS = Owner(os.geteuid(), os.getegid(), 0o644)


@pytest.fixture
def disk(workdir):
    with open_disk(workdir) as disk:
        yield disk


@pytest.fixture
def small_tmpfs(workdir):
    directory = workdir / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2560k", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def available(directory: object) -> int:
    now = os.statvfs(str(directory))
    return now.f_bavail * now.f_frsize


def make(disk: Disk, name: bytes = NAME, owner: Owner = OURS) -> os.stat_result:
    fd = allocate.reserve(disk.dirfd, SIZE, owner)
    try:
        allocate.publish(disk.dirfd, fd, name)
        return os.fstat(fd)
    finally:
        os.close(fd)


def test_nothing_is_visible_before_publish(disk):
    fd = allocate.reserve(disk.dirfd, SIZE, OURS)
    try:
        assert names_in(disk.path) == []
        assert os.fstat(fd).st_size == 0
        assert os.fstat(fd).st_blocks * 512 >= SIZE, "every block is reserved already"
        published = allocate.publish(disk.dirfd, fd, NAME)
        assert names_in(disk.path) == [NAME.decode()]
        known = unpack(published.attributes)
        named = (Path(disk.path) / NAME.decode()).stat()
        assert (known.ino, known.size, known.nlink) == (named.st_ino, 0, 1)
        assert known.blocks * 512 >= SIZE
        assert published.usage.total_bytes > 0
    finally:
        os.close(fd)


def test_giving_up_before_publish_leaves_nothing(disk):
    os.close(allocate.reserve(disk.dirfd, SIZE, OURS))
    assert names_in(disk.path) == []


def test_the_grow_that_follows_needs_no_new_block(disk):
    fd = allocate.reserve(disk.dirfd, SIZE, OURS)
    try:
        allocate.publish(disk.dirfd, fd, NAME)
        before = os.fstat(fd).st_blocks
        os.ftruncate(fd, SIZE)
        assert os.fstat(fd).st_blocks == before
        assert os.pread(fd, SIZE, 0) == bytes(SIZE)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("asked", "kept"), [(0o644, 0o644), (0o600, 0o600), (0o7777, 0o777), (0, 0)])
def test_mode_is_the_callers_whatever_the_umask(disk, asked, kept):
    former = os.umask(0o077)
    try:
        made = make(disk, owner=Owner(os.geteuid(), os.getegid(), asked))
    finally:
        os.umask(former)
    assert stat.S_IMODE(made.st_mode) == kept


@pytest.mark.root
def test_the_file_belongs_to_the_caller(disk):
    made = make(disk, owner=Owner(65534, 12, 0o640))
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (65534, 12, 0o640)


def test_a_taken_name_is_refused_and_its_file_untouched(disk):
    path = Path(disk.path) / NAME.decode()
    path.write_text("first")
    fd = allocate.reserve(disk.dirfd, SIZE, OURS)
    try:
        with pytest.raises(FileExistsError):
            allocate.publish(disk.dirfd, fd, NAME)
    finally:
        os.close(fd)
    assert path.read_text() == "first"
    assert names_in(disk.path) == [NAME.decode()]


def test_even_a_dangling_symlink_takes_the_name(disk):
    (Path(disk.path) / NAME.decode()).symlink_to("/nowhere/at/all")
    fd = allocate.reserve(disk.dirfd, SIZE, OURS)
    try:
        with pytest.raises(FileExistsError):
            allocate.publish(disk.dirfd, fd, NAME)
    finally:
        os.close(fd)


@pytest.mark.root
def test_a_full_disk_refuses_at_reserve_and_keeps_nothing(small_tmpfs):
    with open_disk(small_tmpfs) as disk:
        make(disk, b"%020d" % 0)
        make(disk, b"%020d" % SIZE)
        left = available(small_tmpfs)
        assert left < SIZE
        fds = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is asserted
                allocate.reserve(disk.dirfd, SIZE, OURS)
            assert caught.value.errno == errno.ENOSPC
        assert available(small_tmpfs) == left, "half a reservation is given back"
        assert len(os.listdir("/proc/self/fd")) == fds, "no descriptor is left"
        assert len(names_in(small_tmpfs)) == 2


@pytest.mark.root
def test_stores_into_a_reserved_segment_never_meet_a_full_disk(small_tmpfs):
    with open_disk(small_tmpfs) as disk:
        make(disk)
        path = small_tmpfs / NAME.decode()
        os.truncate(path, SIZE)
        (small_tmpfs / "filler").write_bytes(bytes(available(small_tmpfs)))
        assert available(small_tmpfs) == 0
        path.write_bytes(b"x" * SIZE)  # without the reservation: ENOSPC


@pytest.mark.root
def test_a_read_only_filesystem_refuses_at_reserve(small_tmpfs):
    subprocess.run(["mount", "-o", "remount,ro", str(small_tmpfs)], check=True)
    with open_disk(small_tmpfs) as disk:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is asserted
            allocate.reserve(disk.dirfd, SIZE, OURS)
        assert caught.value.errno == errno.EROFS


@pytest.mark.root
def test_whether_a_name_is_there_is_only_denied_by_a_disk_that_answers(disk_farm):
    lost = disk_farm.add("xfs")
    with open_disk(lost.path) as disk:
        assert allocate.is_certainly_absent(disk.dirfd, NAME)
        make(disk)
        assert not allocate.is_certainly_absent(disk.dirfd, NAME)
        other = b"%020d" % SIZE
        lost.vanish()
        assert not allocate.is_certainly_absent(disk.dirfd, other)
