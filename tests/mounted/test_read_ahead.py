"""Reading ahead where the daemon serves a file: few large requests instead of many small ones."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount, segment_bytes

from commitlogfs.mount.linux import mountinfo, read_ahead

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def read_requests(pool: PoolMount) -> int:
    text = pool.metrics()
    lines = [
        line for line in text.splitlines() if line.startswith("commitlogfs_fuse_ops_total{") and 'op="read"' in line
    ]
    return round(sum(float(line.split()[-1]) for line in lines))


def test_a_segment_is_read_in_large_requests(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2, segment_size=16 * MIB, settings={"passthrough": '"off"'})
    pool.start()
    pool.make_segments([0])
    fd = os.open(pool.path(0), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    before = read_requests(pool)
    content = b"".join(os.pread(fd, 64 << 10, offset) for offset in range(0, 16 * MIB, 64 << 10))
    requests = read_requests(pool) - before
    os.close(fd)
    assert content[:4096] == segment_bytes(0, 4096)
    assert len(content) == 16 * MIB
    assert requests <= 40  # 16 of 1 MiB, some to get going, and the metrics' own; 128 with the kernel's 128 KiB


def test_where_it_cannot_be_set_the_mount_works_all_the_same(mounted: PoolMount, tmp_path: Path) -> None:
    read_ahead.widen(str(mounted.mountpoint), tmp_path / "absent")
    entry = mountinfo.find_mount(mounted.mountpoint)
    assert entry is not None
    directory = tmp_path / f"{entry.major}:{entry.minor}"
    directory.mkdir()
    read_ahead.widen(str(mounted.mountpoint), tmp_path)
    assert (directory / "read_ahead_kb").read_text() == "1024\n"
