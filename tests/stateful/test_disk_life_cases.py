"""Sequences in the life of disks that the model found, or that it seldom reaches, one by one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import faults
from support.disk_life import SIZE, DiskLife, read_disk, recorded_identity
from support.faults import FaultPlan
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built"),
]

COUNT = 9


@pytest.fixture
def life(workdir: Path) -> Iterator[DiskLife]:
    life = DiskLife(workdir / "pool", 3, passthrough=True, faults=FaultPlan(workdir))
    life.use([*life.pool.disks], is_degraded_allowed=True)
    life.start()
    life.pool.make_segments(range(COUNT))
    yield life
    life.end()


@dataclass(frozen=True)
class TwoFiles:
    """A segment with two files, as a daemon leaves it that dies during a move. The disk of one is lost."""

    index: int
    lost: Path
    holder: Path


def lose_within_a_move(life: DiskLife, *, of_copy: bool) -> TwoFiles:
    """The first disk drains, and the disk of the copy, or of its source, is lost."""
    index = life.kill_within_a_move(1)
    assert index is not None, life.pool.log_path.read_text()
    source, *others = life.pool.disks
    (copy,) = [disk for disk in others if index in read_disk(disk)]
    lost, holder = (copy, source) if of_copy else (source, copy)
    lost.rename(lost.with_name("away"))
    life.kept.go_on()
    life.await_daemon()
    return TwoFiles(index, lost, holder)


@pytest.fixture
def moved(life: DiskLife) -> TwoFiles:
    return lose_within_a_move(life, of_copy=False)


def listed(life: DiskLife) -> list[int]:
    return [int(name) // SIZE for name in os.listdir(life.pool.mountpoint)]


def bring_back(life: DiskLife, lost: Path) -> None:
    life.stop()
    lost.with_name("away").rename(lost)
    life.start()


def test_a_copy_moves_on_while_the_disk_of_its_source_is_missing(life: DiskLife, moved: TwoFiles) -> None:
    """The next copy has the same mark, so it tells that the file on the missing disk is the same segment."""
    ran = life.disk("drain", moved.holder)
    assert ran.status == 0, ran.err
    eventually(lambda: moved.index not in read_disk(moved.holder))
    bring_back(life, moved.lost)
    assert listed(life) == list(range(COUNT))
    assert "duplicate-segment" not in [finding["code"] for finding in life.status()["findings"]]
    eventually(lambda: sum(moved.index in read_disk(disk) for disk in life.pool.disks) == 1)


def test_a_removed_segment_stays_away_when_the_disk_of_its_source_returns(life: DiskLife, moved: TwoFiles) -> None:
    for index in [index for index in listed(life) if index <= moved.index]:
        life.pool.path(index).unlink()
    end = (moved.index + 1) * SIZE
    eventually(lambda: all(removed_before(disk) == end for disk in life.pool.disks if disk != moved.lost))
    bring_back(life, moved.lost)
    assert moved.index not in listed(life)


def test_a_copy_returns_after_its_segment_was_copied_again(life: DiskLife) -> None:
    """The log still has each segment, and each one has a single file."""
    twice = lose_within_a_move(life, of_copy=True)
    eventually(lambda: twice.index not in read_disk(twice.holder))
    twice.lost.with_name("away").rename(twice.lost)
    life.await_disk(life.pool.disks.index(twice.lost) + 1)
    assert listed(life) == list(range(COUNT))
    eventually(lambda: sum(twice.index in read_disk(disk) for disk in life.pool.disks) == 1)


def removed_before(disk: Path) -> int:
    """Base offset before which all segments were removed, as a disk records it."""
    return int(recorded_identity(disk).get("removed_before", 0))


@pytest.mark.parametrize("passthrough", [True, False], ids=["passed", "plain"])
def test_an_unmount_leaves_nothing_that_was_closed_just_before(workdir: Path, passthrough: bool) -> None:
    """As by a broker that ends: a native one would refuse a directory with anything but segments."""
    plan = FaultPlan(workdir)
    life = DiskLife(workdir / "pool", 2, passthrough=passthrough, faults=plan)
    life.start()
    try:
        life.pool.make_segments(range(2))
        fd = os.open(life.pool.path(0), os.O_RDWR)
        life.pool.path(0).unlink()
        plan.slow_down(life.kept.newest_daemon(), 0.1)  # it cannot free the file before the mount ends
        os.close(fd)
        life.stop()
        assert [name for disk in life.pool.disks for name in os.listdir(disk)] == [life.pool.path(1).name]
    finally:
        life.end()
