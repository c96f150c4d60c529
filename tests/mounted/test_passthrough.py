"""Data goes past the daemon: the kernel reads and writes the disks' files. Where it cannot, the daemon does."""

import ctypes
import mmap
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

DATA_OPS = ("read", "write")


def answered(pool: PoolMount) -> dict[str, int]:
    """Requests that the daemon has answered, by kind. Not asked through the mount, which would add some."""
    text = pool.metrics()
    found: dict[str, int] = {}
    for op, count in re.findall(
        r'^commitlogfs_fuse_ops_total\{errno="[^"]*",op="(\w+)",pool="test"\} ([0-9.]+)', text, re.M
    ):
        found[op] = found.get(op, 0) + int(float(count))
    return found


def data_requests(pool: PoolMount) -> int:
    return sum(answered(pool).get(op, 0) for op in DATA_OPS)


def grow(pool: PoolMount, index: int) -> int:
    fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, MIB)
    return fd


def use_in_every_way(pool: PoolMount, index: int) -> None:
    """Mapped and plain writes, reads and syncs by two openers of one segment; each sees what the other did."""
    first = grow(pool, index)
    second = os.open(pool.path(index), os.O_RDWR)
    with mmap.mmap(first, MIB) as mapped:
        mapped[100:105] = b"store"
        mapped.flush()
        assert os.pread(second, 5, 100) == b"store"
        os.pwrite(second, b"pwrite", 5000)
        os.fsync(second)
        assert mapped[5000:5006] == b"pwrite"
    with pool.path(index).open("rb") as reader:
        assert reader.read()[5000:5006] == b"pwrite"
    bare = Path(pool.disks[pool.disk_of(index)]) / pool.path(index).name
    assert bare.read_bytes()[100:105] == b"store"
    os.close(first)
    os.close(second)


def passthrough_of(pool: PoolMount) -> tuple[str, int, int]:
    daemon = pool.status()["daemon"]
    return daemon["passthrough"], daemon["passthrough_files"], daemon["plain_files"]


def test_no_byte_of_a_segment_reaches_the_daemon(mounted: PoolMount) -> None:
    before = data_requests(mounted)
    use_in_every_way(mounted, 0)
    subprocess.run(["sha256sum", str(mounted.path(0))], check=True, stdout=subprocess.DEVNULL)
    assert data_requests(mounted) == before
    assert passthrough_of(mounted) == ("on", 1, 0)


def test_who_only_writes_is_told_where_a_segment_ends(mounted: PoolMount) -> None:
    """cp, dd and a shell's >> beside a broker's mapping: one and the same bytes."""
    fd = grow(mounted, 0)
    with mmap.mmap(fd, MIB) as mapped:
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND):
            writer = os.open(mounted.path(0), flags)
            with pytest.raises(OSError, match="File too large"):
                os.pwrite(writer, b"x", MIB)
            os.close(writer)
        writer = os.open(mounted.path(0), os.O_WRONLY)
        os.pwrite(writer, b"written", 8000)
        os.close(writer)
        assert mapped[8000:8007] == b"written"
        mapped[8000:8007] = b"stored!"
    os.close(fd)
    assert mounted.path(0).read_bytes()[8000:8007] == b"stored!"
    assert passthrough_of(mounted) == ("on", 1, 0)


@pytest.mark.parametrize("position", [MIB - 4, MIB, 3 * MIB])
def test_what_is_written_past_the_end_is_cut_off(mounted: PoolMount, position: int) -> None:
    """One who also reads writes without anybody being asked; a broker must never meet a segment of another size."""
    fd = grow(mounted, 0)
    os.pwrite(fd, b"abcdefgh", position)
    os.close(fd)
    bare = Path(mounted.disks[mounted.disk_of(0)]) / mounted.path(0).name
    eventually(lambda: bare.stat().st_size == MIB)
    assert mounted.path(0).stat().st_size == MIB
    assert os.listdir(mounted.mountpoint) == [mounted.path(0).name]
    assert mounted.path(0).read_bytes()[-4:] == (b"abcd" if position < MIB else bytes(4))
    mounted.require_logged("event=cut_to_size")


def test_off_serves_everything_through_the_daemon(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2, settings={"passthrough": '"off"'})
    pool.start()
    before = data_requests(pool)
    use_in_every_way(pool, 0)
    assert data_requests(pool) - before >= 3
    assert passthrough_of(pool) == ("off", 0, 1)
    assert pool.status()["daemon"]["passthrough_reason"] == "off in the configuration"
    assert "passthrough off (off in the configuration)" in pool.cli("status").out


def test_one_backing_id_per_file_and_none_after_its_removal(mounted: PoolMount) -> None:
    descriptors = [grow(mounted, index) for index in range(4)]
    descriptors += [os.open(mounted.path(index), os.O_RDONLY) for index in range(4) for _ in range(5)]
    assert passthrough_of(mounted) == ("on", 4, 0)
    for fd in descriptors:
        os.close(fd)
    for index in range(4):
        os.close(os.open(mounted.path(index), os.O_RDWR))
        mounted.path(index).unlink()
    eventually(lambda: passthrough_of(mounted) == ("on", 0, 0))


def test_a_removed_segment_gives_its_space_back_at_the_last_close(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    disk = disk_farm.add("ext4")
    pool = make_pool(disks=[disk.path / "cl"], segment_size=16 * MIB, born=False)
    (disk.path / "cl").mkdir()
    pool.init()
    pool.start()
    free = os.statvfs(disk.path).f_bfree
    fd = os.open(pool.path(0), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 16 * MIB)
    with mmap.mmap(fd, 16 * MIB) as mapped:
        os.close(fd)
        mapped[:4] = b"kept"
        pool.path(0).unlink()
        mapped[4:8] = b"here"
        assert mapped[:8] == b"kepthere"
        assert os.statvfs(disk.path).f_bfree < free
    eventually(lambda: os.statvfs(disk.path).f_bfree >= free)
    assert passthrough_of(pool) == ("on", 0, 0)


def test_a_mapping_without_a_descriptor_holds_a_removed_segment(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    """Nobody asks us to release it: the kernel itself holds the disk's file. Its space is promised, not free."""
    disk = disk_farm.add("ext4")
    (disk.path / "cl").mkdir()
    pool = make_pool(disks=[disk.path / "cl"], segment_size=16 * MIB)
    pool.start()
    fd = os.open(pool.path(0), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 16 * MIB)
    os.pwrite(fd, b"kept", 0)
    libc = ctypes.CDLL(None, use_errno=True)  # Python's own mapping keeps a descriptor
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, 16 * MIB, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    os.close(fd)
    eventually(lambda: not pool.has_open(disk.path / "cl" / pool.path(0).name))
    pool.path(0).unlink()
    time.sleep(1.5)  # longer than the interval between two checks of retired files
    assert pool.status()["segments"]["retired"] == 1
    assert ctypes.string_at(address, 4) == b"kept"
    libc.munmap(address, 16 * MIB)
    eventually(lambda: pool.status()["segments"]["retired"] == 0)
    assert passthrough_of(pool) == ("on", 0, 0)


def test_status_says_off_where_no_disk_can(stacked: Path, make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(disks=[stacked])
    pool.start()
    assert passthrough_of(pool) == ("off", 0, 0)
    assert "passthrough off (stacked filesystem)" in pool.cli("status").out
    pool.stop()


@pytest.fixture
def stacked(workdir: Path) -> Iterator[Path]:
    """A directory on overlayfs, which the kernel passes nothing through to."""
    parts = [workdir / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir()
    lower, upper, work, merged = parts
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "test", "-o", options, str(merged)], check=True)
    (merged / "disk").mkdir()
    yield merged / "disk"
    subprocess.run(["umount", str(merged)], check=True)


def test_a_disk_on_overlayfs_is_served_plain_beside_others(
    stacked: Path, workdir: Path, make_pool: Callable[..., PoolMount]
) -> None:
    other = workdir / "other"
    other.mkdir()
    pool = make_pool(disks=[other, stacked])
    pool.start()
    for index in range(2):
        use_in_every_way(pool, index)
    assert passthrough_of(pool) == ("on", 1, 1)
    pool.require_logged(f"event=passthrough_off disk={stacked}")
    assert (
        'commitlogfs_passthrough_fallbacks_total{pool="test",reason="stacked filesystem"} 1.0'
        in (pool.mountpoint / ".commitlogfs/metrics").read_text()
    )
    pool.stop()


def test_required_refuses_to_mount_where_a_disk_cannot(
    stacked: Path, workdir: Path, make_pool: Callable[..., PoolMount]
) -> None:
    other = workdir / "other"
    other.mkdir()
    pool = make_pool(disks=[other, stacked], settings={"passthrough": '"required"'})
    ran = pool.cli("mount", pool.config)
    assert ran.status == 4
    assert ran.err.splitlines()[-1].startswith("commitlogfs: ")
    assert f'passthrough = "required", but {stacked}: stacked filesystem' in ran.err
    assert not os.path.ismount(pool.mountpoint)


def test_required_is_content_with_real_disks(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2, settings={"passthrough": '"required"'})
    pool.start()
    use_in_every_way(pool, 0)
    assert passthrough_of(pool) == ("on", 1, 0)


def test_many_segments_keep_their_content(mounted: PoolMount) -> None:
    mounted.make_segments(range(30))
    for index in range(30):
        assert mounted.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
