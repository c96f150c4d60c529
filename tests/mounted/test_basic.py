"""Basic operations on a mounted pool."""

import os

import pytest
from support.pools import PoolMount, segment_bytes

pytestmark = pytest.mark.mounted


def test_segments_are_plain_files_striped_over_the_disks(mounted: PoolMount) -> None:
    mounted.make_segments(range(12))
    assert [mounted.disk_of(index) for index in range(12)] == [0, 1, 2] * 4
    assert sorted(os.listdir(mounted.mountpoint)) == [mounted.path(index).name for index in range(12)]
    for index in range(12):
        plain = mounted.disks[mounted.disk_of(index)] / mounted.path(index).name
        assert plain.read_bytes() == mounted.path(index).read_bytes()
        assert plain.read_bytes().startswith(segment_bytes(index, 4096))


def test_remount_serves_the_same(mounted: PoolMount) -> None:
    mounted.make_segments(range(5))
    before = {name: (mounted.mountpoint / name).stat() for name in os.listdir(mounted.mountpoint)}
    mounted.restart()
    after = {name: (mounted.mountpoint / name).stat() for name in os.listdir(mounted.mountpoint)}
    assert before.keys() == after.keys()
    for name, st in before.items():
        assert (st.st_ino, st.st_size, st.st_mtime_ns) == (
            after[name].st_ino,
            after[name].st_size,
            after[name].st_mtime_ns,
        )
