"""A write over a segment's end, seen by everybody who looks: what it says it has written, and nothing else."""

import mmap
import os
import subprocess
from collections.abc import Callable

import pytest
from support.pools import MIB, PoolMount, segment_bytes

pytestmark = pytest.mark.mounted


@pytest.fixture
def plain(make_pool: Callable[..., PoolMount]) -> PoolMount:
    pool = make_pool(1, settings={"passthrough": '"off"'})
    pool.start()
    return pool


@pytest.mark.parametrize("inside", [10, 4096, 5000])
def test_mappings_the_cache_and_the_disk_agree_on_it(plain: PoolMount, inside: int) -> None:
    """Refused as a whole, it would leave its bytes in the kernel's pages, for all to see."""
    plain.make_segments([0], fill=False)
    fd = os.open(plain.path(0), os.O_RDWR)
    with mmap.mmap(fd, MIB) as mapped:
        mapped[MIB - 4096 : MIB - 4090] = b"stored"
        assert os.pwrite(fd, b"x" * (inside + 100), MIB - inside) == inside
        expected = (bytes(4096) + b"stored" + bytes(4090))[: 8192 - inside] + b"x" * inside
        assert mapped[MIB - 8192 :] == expected
        assert os.pread(fd, 10_000, MIB - 8192) == expected
        mapped.flush()
        assert (plain.disks[0] / plain.path(0).name).read_bytes()[MIB - 8192 :] == expected
        with pytest.raises(OSError, match="File too large"):
            os.pwrite(fd, b"x", MIB)
        assert os.fstat(fd).st_size == MIB
    os.close(fd)


@pytest.mark.root
def test_a_segment_written_past_its_end_stays_in_the_listing(mounted: PoolMount) -> None:
    """Cut off by the listing itself: to a broker, what is not listed is lost."""
    mounted.make_segments([0], fill=False)
    fd = os.open(mounted.path(0), os.O_RDWR)
    assert os.pwrite(fd, b"x" * 100, MIB - 50) == 100
    with os.scandir(mounted.mountpoint) as entries:
        assert [(entry.name, entry.stat().st_size) for entry in entries] == [(mounted.path(0).name, MIB)]
    os.close(fd)


@pytest.mark.root
def test_the_size_is_right_while_a_close_looks_at_it_too(mounted: PoolMount) -> None:
    """With passthrough, a release and an fstat both find the file too long, at the same time."""
    mounted.make_segments([0], fill=False)
    fd = os.open(mounted.path(0), os.O_RDWR)
    for _ in range(300):
        os.close(os.open(mounted.path(0), os.O_RDWR))  # returns before the daemon has heard of the release
        assert os.pwrite(fd, b"x" * 100, MIB - 50) == 100
        assert os.fstat(fd).st_size == MIB
    os.close(fd)


@pytest.mark.root
def test_what_a_crash_leaves_past_the_end_is_cut_by_the_named_command(mounted: PoolMount) -> None:
    mounted.make_segments([0])
    fd = os.open(mounted.path(0), os.O_RDWR)
    os.pwrite(fd, b"x" * 100, MIB)
    backing = mounted.disks[mounted.disk_of(0)] / mounted.path(0).name
    assert backing.stat().st_size == MIB + 100
    ran = mounted.cli("check", mounted.config)
    assert "wrong-size" not in ran.out, "the daemon cuts it"
    os.pwrite(fd, b"x" * 100, MIB)
    mounted.kill()
    with pytest.raises(OSError, match="not connected"):
        os.close(fd)
    mounted.cli("umount", mounted.mountpoint)
    ran = mounted.cli("check", mounted.config)
    command = f"truncate -s {MIB} FILE"
    assert f"{backing}: size {MIB + 100} instead of {MIB}" in ran.out
    assert f"cut off what was written past its end: `{command}` [wrong-size]" in ran.out
    subprocess.run(command.replace("FILE", str(backing)).split(), check=True)
    mounted.start()
    assert mounted.path(0).read_bytes()[:4096] == segment_bytes(0, 4096)
