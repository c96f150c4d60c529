"""Sequences that the model test found, or that it cannot reach, one by one."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount, pool_in, segment_name
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.full]

SIZE = 64 * 1024


@pytest.fixture(scope="module")
def served(module_directory: Path) -> Iterator[PoolMount]:
    """One mount for all tests: each leaves an empty directory."""
    with pool_in(module_directory, segment_size=SIZE, settings={"on_missing": '"degraded"'}) as pool:
        pool.start()
        yield pool


@pytest.fixture
def pool(served: PoolMount) -> Iterator[PoolMount]:
    yield served
    for disk in served.disks:
        for name in os.listdir(disk):
            if not name.startswith(".commitlogfs") and (served.mountpoint / name).exists():
                os.unlink(served.mountpoint / name)
    eventually(lambda: left_on_disks(served) == [])


@pytest.fixture
def own_pool(make_pool) -> PoolMount:
    """For tests that mount again."""
    pool = make_pool(3, segment_size=SIZE, settings={"on_missing": '"degraded"'})
    pool.start()
    return pool


def left_on_disks(pool: PoolMount) -> list[str]:
    return sorted(name for disk in pool.disks for name in os.listdir(disk))


def test_a_write_over_the_end_writes_what_fits(pool: PoolMount) -> None:
    pool.make_segments([0], fill=False)
    for start in (SIZE - 1, SIZE - 4096, SIZE - 5000, SIZE // 2):
        fd = os.open(pool.path(0), os.O_RDWR)
        writer = os.open(pool.path(0), os.O_WRONLY)  # with and without passthrough, writes end at the segment's end
        try:
            os.pwrite(fd, bytes(SIZE), 0)
            assert os.pwrite(writer, b"x" * SIZE, start) == SIZE - start
            assert os.pread(fd, 2 * SIZE, 0) == bytes(start) + b"x" * (SIZE - start)
            with pytest.raises(OSError, match="File too large"):
                os.pwrite(writer, b"x", SIZE)
        finally:
            os.close(fd)
            os.close(writer)
    assert pool.path(0).stat().st_size == SIZE


def test_opening_with_truncation_changes_nothing(pool: PoolMount) -> None:
    pool.make_segments([0])
    before = pool.path(0).read_bytes()
    with pytest.raises(OSError, match="Invalid argument"):
        os.open(pool.path(0), os.O_WRONLY | os.O_TRUNC)
    assert pool.path(0).read_bytes() == before
    assert pool.path(0).stat().st_size == SIZE


def test_a_copy_truncated_is_quarantined_by_the_next_mount(own_pool: PoolMount) -> None:
    """Written straight to the segment's name, as plain cp does. It stays on the disk, untouched."""
    own_pool.make_segments([0, 2])
    own_pool.path(1).write_bytes(b"part")
    assert own_pool.path(1).read_bytes() == b"part"
    plain = own_pool.disks[own_pool.disk_of(1)] / segment_name(1, SIZE)
    own_pool.restart()
    assert sorted(os.listdir(own_pool.mountpoint)) == [segment_name(0, SIZE), segment_name(2, SIZE)]
    with pytest.raises(FileNotFoundError):
        own_pool.path(1).stat()
    with pytest.raises(FileExistsError):
        os.open(own_pool.path(1), os.O_RDWR | os.O_CREAT)
    assert plain.read_bytes() == b"part"
    assert {"wrong-size", "gap"} <= {finding["code"] for finding in own_pool.status()["findings"]}


def test_an_unfinished_temporary_survives_a_remount_and_can_be_finished(own_pool: PoolMount) -> None:
    temporary = own_pool.mountpoint / f".{segment_name(0, SIZE)}.abc"
    temporary.write_bytes(b"x" * 1000)
    own_pool.restart()
    assert temporary.read_bytes() == b"x" * 1000
    with temporary.open("ab") as file:
        file.write(b"y" * (SIZE - 1000))
    os.rename(temporary, own_pool.path(0))
    assert own_pool.path(0).read_bytes() == b"x" * 1000 + b"y" * (SIZE - 1000)
    assert os.listdir(own_pool.mountpoint) == [segment_name(0, SIZE)]


def test_many_lives_of_one_name_never_mix(pool: PoolMount) -> None:
    held = []
    for life in range(12):
        fd = os.open(pool.path(0), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(fd, SIZE)
        os.pwrite(fd, bytes([life + 1]) * SIZE, 0)
        held.append(fd)
        os.unlink(pool.path(0))
    for life, fd in enumerate(held):
        assert os.pread(fd, SIZE, 0) == bytes([life + 1]) * SIZE
        os.pwrite(fd, b"again", 5)
        assert os.fstat(fd).st_nlink == 0
    for life, fd in enumerate(held):
        assert os.pread(fd, 10, 0) == bytes([life + 1]) * 5 + b"again"
        os.close(fd)
    eventually(lambda: left_on_disks(pool) == [])


def test_opening_races_with_removal(pool: PoolMount) -> None:
    """An open of a name that is just being removed succeeds or finds no file; it never meets an I/O error."""
    stop = threading.Event()
    outcomes: Counter[str] = Counter()

    def keep_opening() -> None:
        while not stop.is_set():
            try:
                fd = os.open(pool.path(0), os.O_RDWR)
            except OSError as error:
                outcomes[errno.errorcode[error.errno or 0]] += 1
                continue
            try:
                content = os.pread(fd, 4, 0)
                outcomes["open" if content in (b"", bytes(4), b"life") else repr(content)] += 1
            except OSError as error:
                outcomes[f"read {errno.errorcode[error.errno or 0]}"] += 1
            finally:
                os.close(fd)

    threads = [threading.Thread(target=keep_opening) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            pool.make_segments([0], fill=False)
            fd = os.open(pool.path(0), os.O_RDWR)
            os.pwrite(fd, b"life", 0)
            os.close(fd)
            os.unlink(pool.path(0))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(outcomes) <= {"open", "ENOENT"}
    assert outcomes["open"]
    eventually(lambda: left_on_disks(pool) == [])
    assert "unexpected_error" not in Path(pool.log_path).read_text()
