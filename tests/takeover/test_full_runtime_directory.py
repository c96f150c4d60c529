"""The runtime directory is full, as /run may be: daemons follow each other, and the mount works."""

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.pools import PoolMount, segment_bytes

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def limit(pool: PoolMount) -> None:
    """Give a pool a small runtime directory."""
    pool.runtime.mkdir()
    options = "size=1m,nr_inodes=64,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", pool.runtime], check=True)


def fill(directory: Path) -> None:
    """To the last block, and to the last inode."""
    with contextlib.suppress(OSError), (directory / "hog").open("wb", buffering=0) as hog:
        while True:
            hog.write(bytes(4096))
    with contextlib.suppress(OSError):
        for number in range(64):
            (directory / f"{number}").touch()
    with pytest.raises(OSError, match="No space left"):
        (directory / "one-more").touch()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_daemons_change(keep: Callable[..., KeptMount], how: str) -> None:
    kept = keep(3, prepare=limit)
    pool = kept.pool
    try:
        pool.make_segments(range(3))
        fill(pool.runtime)
        for index in (3, 4):
            kept.change(how)
            pool.make_segments([index])
            assert len(os.listdir(pool.mountpoint)) == index + 1
            assert pool.path(0).read_bytes().startswith(segment_bytes(0, 64))
            assert pool.ask("status")["segments"]["count"] == index + 1
        pool.stop()
    finally:
        subprocess.run(["umount", "--lazy", pool.runtime], check=True)
