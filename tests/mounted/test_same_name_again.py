"""A segment that is removed while somebody has it, and made again under the same name: the two never mix."""

import contextlib
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

ROUNDS = 30


@pytest.fixture
def single(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> PoolMount:
    """A pool of one ext4 disk, which gives a freed inode number to the next file."""
    directory = disk_farm.add("ext4").path / "commitlog"
    directory.mkdir()
    pool = make_pool(disks=[directory])
    pool.start()
    return pool


def write_segment(pool: PoolMount, index: int, byte: int) -> None:
    with opened(pool, index, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        os.ftruncate(fd, MIB)
        os.pwrite(fd, bytes([byte]) * MIB, 0)


@contextlib.contextmanager
def opened(pool: PoolMount, index: int, flags: int = os.O_RDWR) -> Iterator[int]:
    fd = os.open(pool.path(index), flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def bare(pool: PoolMount, index: int) -> Path:
    return Path(pool.disks[0]) / pool.path(index).name


def retired_directory(pool: PoolMount) -> Path:
    return Path(pool.disks[0]) / ".commitlogfs"


def free_blocks(pool: PoolMount) -> int:
    os.sync()
    return os.statvfs(pool.disks[0]).f_bfree


def test_an_open_or_mapped_segment_and_its_successor_never_mix(single: PoolMount) -> None:
    write_segment(single, 0, 0)
    holders: list[tuple[int, mmap.mmap]] = []
    try:
        for generation in range(1, 9):
            fd = os.open(single.path(0), os.O_RDWR)
            holders.append((fd, mmap.mmap(fd, MIB, mmap.MAP_SHARED)))
            single.path(0).unlink()
            assert not single.path(0).exists()
            write_segment(single, 0, generation)
        inodes = {os.fstat(fd).st_ino for fd, _ in holders} | {single.path(0).stat().st_ino}
        assert len(inodes) == len(holders) + 1
        for generation, (fd, mapped) in enumerate(holders):
            assert mapped[:] == os.pread(fd, MIB, 0) == bytes([generation]) * MIB
            # Written through the old file, in both ways, it stays in the old file.
            os.pwrite(fd, b"old", 100)
            mapped[200:203] = b"old"
            mapped.flush()
            assert os.pread(fd, 3, 200) == b"old"
        assert single.path(0).read_bytes() == bare(single, 0).read_bytes() == bytes([len(holders)]) * MIB
        assert len(list(retired_directory(single).iterdir())) == len(holders)
        assert os.listdir(single.mountpoint) == [single.path(0).name]
    finally:
        for fd, mapped in holders:
            mapped.close()
            os.close(fd)
    eventually(lambda: not retired_directory(single).exists())
    assert single.path(0).read_bytes() == bytes([len(holders)]) * MIB


def test_a_bare_reference_never_leads_to_the_successor(single: PoolMount) -> None:
    """O_PATH opens nothing, so the old file may be freed at once, and its inode number given to the new one."""
    write_segment(single, 0, 0)
    reused = 0
    for generation in range(1, ROUNDS):
        with opened(single, 0, os.O_PATH) as reference:
            eventually(lambda: not single.has_open(bare(single, 0)))
            old = bare(single, 0).stat().st_ino
            single.path(0).unlink()
            write_segment(single, 0, generation)
            reused += bare(single, 0).stat().st_ino == old
            with pytest.raises(OSError):  # noqa: PT011 - ENOENT, ESTALE or EIO: by what the kernel knows already
                os.close(os.open(f"/proc/self/fd/{reference}", os.O_RDONLY))
            with pytest.raises(OSError):  # noqa: PT011
                os.truncate(f"/proc/self/fd/{reference}", MIB)
            assert single.path(0).read_bytes() == bytes([generation]) * MIB
    assert reused > ROUNDS // 2, "the disk hardly ever reused the inode: nothing was provoked"


def test_an_inode_number_reused_behind_cached_pages(single: PoolMount) -> None:
    """Nobody holds the old file, but the kernel still has its pages when the same number comes again."""
    reused, last = 0, -1
    for generation in range(ROUNDS):
        write_segment(single, 0, generation)
        with opened(single, 0) as fd, mmap.mmap(fd, MIB, mmap.MAP_SHARED) as mapped:
            assert mapped[:] == bytes([generation]) * MIB
        eventually(lambda: not single.has_open(bare(single, 0)))
        reused += (now := bare(single, 0).stat().st_ino) == last
        last = now
        single.path(0).unlink()
    assert reused > ROUNDS // 2


@pytest.mark.alone
def test_space_and_the_retired_file_go_with_the_last_close(single: PoolMount) -> None:
    write_segment(single, 0, 1)
    write_segment(single, 1, 2)
    eventually(lambda: not single.has_open(bare(single, 1)))
    before = free_blocks(single)
    with opened(single, 0) as first, opened(single, 0, os.O_RDONLY) as second:
        single.path(0).unlink()
        (retired,) = retired_directory(single).iterdir()
        assert retired.stat().st_size == MIB
        assert os.fstat(first).st_nlink == 0
        assert free_blocks(single) <= before
        assert os.pread(second, 10, 0) == b"\1" * 10
    eventually(lambda: not retired_directory(single).exists())
    freed = (free_blocks(single) - before) * os.statvfs(single.disks[0]).f_frsize
    assert freed >= MIB


def test_removed_but_open_counts_as_free_for_the_broker(single: PoolMount) -> None:
    for index in range(8):
        write_segment(single, index, index)
    eventually(lambda: not single.has_open(bare(single, 7)))
    with contextlib.ExitStack() as stack:
        for index in range(4):
            stack.enter_context(opened(single, index))
            single.path(index).unlink()
        st = os.statvfs(single.disks[0])
        really = (st.f_blocks - st.f_bfree) / (st.f_blocks - st.f_bfree + st.f_bavail)

        def shown() -> float:
            st = os.statvfs(single.mountpoint)
            return (st.f_blocks - st.f_bfree) / (st.f_blocks - st.f_bfree + st.f_bavail)

        eventually(lambda: shown() < really - 3 * MIB / (st.f_blocks * st.f_frsize))


def test_a_temporary_that_is_removed_while_open(single: PoolMount) -> None:
    path = single.mountpoint / f".{single.path(0).name}.part"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"a" * 5000)
        path.unlink()
        assert not path.exists()
        os.write(fd, b"b" * 5000)
        assert os.pread(fd, 10_000, 0) == b"a" * 5000 + b"b" * 5000
    finally:
        os.close(fd)
    eventually(lambda: not retired_directory(single).exists())


def test_what_a_dead_daemon_left_retired_is_swept(single: PoolMount) -> None:
    write_segment(single, 0, 1)
    fd = os.open(single.path(0), os.O_RDONLY)
    single.path(0).unlink()
    single.kill()
    with contextlib.suppress(OSError):  # ENOTCONN, but it is closed
        os.close(fd)
    assert len(list(retired_directory(single).iterdir())) == 1
    single.start()
    single.require_logged("event=swept")
    assert not retired_directory(single).exists()
    assert os.listdir(single.mountpoint) == []


def test_a_mount_in_use_is_not_given_up(single: PoolMount) -> None:
    write_segment(single, 0, 1)
    with opened(single, 0) as fd:
        single.path(0).unlink()
        ran = single.cli("umount", single.mountpoint)
        assert ran.status == 4, ran.err
        assert str(os.getpid()) in ran.err
        assert single.daemon is not None
        single.daemon.send_signal(signal.SIGTERM)
        eventually(lambda: "event=stop_refused" in single.log_since_start())
        assert os.pread(fd, 4, 0) == b"\1" * 4
        write_segment(single, 0, 2)
        assert os.pread(fd, 4, 0) == b"\1" * 4
    eventually(lambda: not retired_directory(single).exists())
    single.stop()
