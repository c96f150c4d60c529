"""The system calls of the C extension that no other test calls directly."""

import errno
import os
from pathlib import Path

import pytest
from support import bare_mounts

from commitlogfs.store import _syscalls

TMPFS_MAGIC, PROC_MAGIC = 0x01021994, 0x9FA0


def type_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return _syscalls.fstatfs_type(fd)
    finally:
        os.close(fd)


def test_the_type_of_a_filesystem_is_its_magic_number() -> None:
    assert type_of(Path("/proc")) == PROC_MAGIC
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        _syscalls.fstatfs_type(-1)


def test_a_refused_unmount_names_the_path(workdir: Path) -> None:
    with pytest.raises(OSError, match="workdir-without-mount") as raised:
        _syscalls.umount2(os.fsencode(workdir / "workdir-without-mount"), _syscalls.UMOUNT_NOFOLLOW)
    assert raised.value.errno in (errno.ENOENT, errno.EPERM)


@pytest.mark.mounted
@pytest.mark.root
def test_a_mount_in_use_is_detached_only_on_request(workdir: Path) -> None:
    bare_mounts.cover(workdir)
    assert type_of(workdir) == TMPFS_MAGIC
    with (workdir / "file").open("w"):
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            _syscalls.umount2(os.fsencode(workdir), 0)
        _syscalls.umount2(os.fsencode(workdir), _syscalls.MNT_DETACH | _syscalls.UMOUNT_NOFOLLOW)
    assert type_of(workdir) != TMPFS_MAGIC or not (workdir / "file").exists()
