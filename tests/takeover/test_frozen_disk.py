"""A disk that answers no write holds up no takeover: the others are served."""

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import segment_bytes
from support.timings import WITHOUT_WRITES
from support.waiting import PATIENCE_S, eventually

from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.alone]

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
FROZEN_S = 2 * PATIENCE_S


@contextlib.contextmanager
def frozen(directory: Path) -> Iterator[threading.Event]:
    """Until the end, or for FROZEN_S: then the event is set. Without a child, which would ask the mount."""
    in_vain = threading.Event()
    fd = os.open(directory, os.O_RDONLY)

    def thaw() -> None:
        in_vain.set()
        fcntl.ioctl(fd, FITHAW, 0)

    fcntl.ioctl(fd, FIFREEZE, 0)
    timer = threading.Timer(FROZEN_S, thaw)
    timer.start()
    try:
        yield in_vain
    finally:
        timer.cancel()
        timer.join()
        if not in_vain.is_set():
            fcntl.ioctl(fd, FITHAW, 0)
        os.close(fd)


@pytest.mark.parametrize("left", ["nothing", "the directory of a removed segment"])
def test_the_others_are_served(disk_farm: DiskFarm, keep: Callable[..., KeptMount], left: str) -> None:
    disks = [disk_farm.add("ext4") for _ in range(3)]
    for disk in disks:
        (disk.path / "cl").mkdir()
    kept = keep(disks=[disk.path / "cl" for disk in disks], variables=WITHOUT_WRITES)
    pool = kept.pool
    pool.make_segments(range(6))
    directory = Path(pool.disks[pool.disk_of(0)]) / ".commitlogfs"
    if left != "nothing":
        directory.mkdir(mode=0o700)
    # The disks record the newest segment after the reply to its create.
    newest = int(pool.path(5).name)
    eventually(lambda: all(int(os.getxattr(disk, layout.XATTR_NEWEST) or -1) == newest for disk in pool.disks))
    with frozen(disks[pool.disk_of(0)].path) as in_vain:
        os.kill(kept.daemon, signal.SIGKILL)
        assert len(os.listdir(pool.mountpoint)) == 6
        for index in range(6):
            assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
        kept.await_successor()
        pool.make_segments([6])
        assert not in_vain.is_set()
    assert pool.path(6).read_bytes()[:4096] == segment_bytes(6, 4096)
    eventually(lambda: not directory.exists())
