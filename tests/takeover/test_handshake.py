"""The limits that the kernel gets at the mount hold for its whole life. They are not kept for later daemons."""

import contextlib
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kept import KeptMount

from commitlogfs.fusefs.kernel import extension, handshake
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root]

MAX_BACKGROUND, CONGESTION_THRESHOLD = 512, 384
PARALLEL_DIROPS = 1 << 18
LIMITS = struct.Struct("=16xHH")
"""max_background and congestion_threshold in struct fuse_init_out of Linux."""


@contextlib.contextmanager
def fuse_control(directory: Path) -> Iterator[Path]:
    """The kernel's own filesystem about FUSE connections."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "fusectl", "none", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


def kept_by(pid: int) -> Handshake:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if "commitlogfs-handshake" in os.readlink(fd):
            opened = os.open(fd, os.O_RDONLY)
            try:
                return handshake.read(opened)
            finally:
                os.close(opened)
    raise AssertionError("no handshake")


def test_the_kernel_alone_gets_its_limits(kept: KeptMount, tmp_path: Path) -> None:
    """A version that compares what was kept with its own reply takes the mount over, too."""
    entry = mountinfo.find_mount(kept.pool.mountpoint)
    assert entry is not None
    assert extension.module is not None
    with fuse_control(tmp_path / "connections") as connections:
        for _ in range(2):
            limits = connections / str(entry.minor)
            assert int((limits / "max_background").read_text()) == MAX_BACKGROUND
            assert int((limits / "congestion_threshold").read_text()) == CONGESTION_THRESHOLD
            reply = kept_by(kept.daemon).init_reply
            assert LIMITS.unpack_from(reply) == (0, 0)
            assert not extension.module.init_reply_flags(reply) & PARALLEL_DIROPS
            kept.replace()
