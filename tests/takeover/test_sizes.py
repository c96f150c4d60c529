"""Segments that have another size than they should at the moment a daemon dies: those that somebody works on are
continued, and those that no process could open stay hidden."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.pools import MIB
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def bare(kept: KeptMount, index: int) -> Path:
    return Path(kept.pool.disks[kept.pool.disk_of(index)]) / kept.pool.path(index).name


@pytest.mark.parametrize("others", [[], [0], [0, 2]], ids=["the only one", "the newest", "in the middle"])
def test_a_copy_continues(kept: KeptMount, others: list[int]) -> None:
    """Written by cp, one piece after the other: a segment of half its size, when its daemon dies."""
    kept.pool.make_segments(others)
    fd = os.open(kept.pool.path(1), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    assert os.write(fd, b"1" * 5000) == 5000
    kept.replace()
    assert os.fstat(fd).st_size == 5000
    assert kept.pool.path(1).name not in os.listdir(kept.pool.mountpoint)
    assert os.write(fd, b"2" * (MIB - 5000)) == MIB - 5000
    os.close(fd)
    assert kept.pool.path(1).read_bytes() == b"1" * 5000 + b"2" * (MIB - 5000)
    whole = sorted([*others, 1])
    assert sorted(os.listdir(kept.pool.mountpoint)) == [kept.pool.path(index).name for index in whole]


@pytest.mark.parametrize("others", [[], [1]], ids=["the newest", "in the middle"])
def test_what_was_written_past_the_end_is_cut_off_by_the_next_daemon(
    keep: Callable[..., KeptMount], others: list[int]
) -> None:
    """With passthrough, by somebody who also reads: while nobody is there to be asked."""
    kept = keep(3)
    kept.pool.make_segments([0, *others], fill=False)
    fd = os.open(kept.pool.path(0), os.O_RDWR)
    assert os.pwrite(fd, b"-", 0) == 1  # the first write to an inode asks for security.capability
    kept.kill()
    assert os.pwrite(fd, b"abcdefgh", MIB - 4) == 8
    kept.go_on()
    assert len(os.listdir(kept.pool.mountpoint)) == 1 + len(others)
    assert os.fstat(fd).st_size == MIB
    eventually(lambda: bare(kept, 0).stat().st_size == MIB)
    assert os.pread(fd, 100, MIB - 8) == bytes(4) + b"abcd"
    os.close(fd)


@pytest.mark.parametrize("size", [5000, MIB + 5000])
def test_a_file_in_quarantine_stays_there(keep: Callable[..., KeptMount], size: int) -> None:
    """Nobody can have opened it; cut to size, it would have lost what nobody understood."""
    first = keep(1, settings={"on_missing": '"degraded"'})
    first.pool.make_segments([0, 2])
    first.pool.stop()
    alien = Path(first.pool.disks[0]) / first.pool.path(1).name
    alien.write_bytes(b"?" * size)
    first.start()
    first.replace()
    with pytest.raises(FileNotFoundError):
        first.pool.path(1).stat()
    with pytest.raises(FileExistsError):
        os.open(first.pool.path(1), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    assert len(os.listdir(first.pool.mountpoint)) == 2
    assert alien.read_bytes() == b"?" * size
