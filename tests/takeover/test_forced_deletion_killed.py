"""The daemon dies between any two steps of forced removal: the next one takes over, no wrong segment is removed, no
gap is left, and the space is free in the end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import faults
from support.faults import FaultPlan
from support.filling import FOREIGN, fill_to, used_percent
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, segment_bytes
from support.reader import a_reader
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built"),
]

AT_ONCE = {"interval": '"1s"', "force_after": '"0s"', "grace": '"0s"'}
STEPS = 9
"""From the decision over the removal to its record on both disks, and some more."""
PUNCH_STEPS = 6
"""Steps of a first removal, and of two punches."""


class Pressed:
    """A kept mount of two small disks that is filled again and again."""

    def __init__(self, kept: KeptMount, plan: FaultPlan) -> None:
        self.kept = kept
        self.pool = kept.pool
        self.plan = plan
        self.end = 0

    def level(self) -> float:
        return min(used_percent(Path(disk).parent) for disk in self.pool.disks)

    def listed(self) -> list[int]:
        """Whole segments without a hole, each on one disk, with their own content."""
        found = sorted(int(name) // MIB for name in os.listdir(self.pool.mountpoint))
        assert found == list(range(found[0], self.end))
        for index in found:
            assert sum((Path(disk) / self.pool.path(index).name).exists() for disk in self.pool.disks) == 1
            assert self.pool.path(index).stat().st_size == MIB
            assert self.pool.path(index).read_bytes()[:64] == segment_bytes(index, 64)
        return found

    def settle(self) -> None:
        """Until nothing more is to go."""
        eventually(lambda: self.pool.status()["retention"]["force_in_seconds"] is None)

    def await_freed(self) -> None:
        """Until no removed segment is left on any disk."""
        eventually(lambda: not any((Path(disk) / ".commitlogfs").exists() for disk in self.pool.disks))

    def add(self) -> int:
        self.pool.make_segments([self.end])
        self.end += 1
        return self.end - 1


@pytest.fixture
def pressed(disk_farm: DiskFarm, keep: Callable[..., KeptMount], workdir: Path) -> Pressed:
    plan = FaultPlan(workdir)
    directories = []
    for _ in range(2):
        directory = disk_farm.add("ext4").path / "commitlog"
        directory.mkdir(mode=0o700)
        directories.append(directory)
    return Pressed(keep(disks=directories, retention=AT_ONCE, variables=plan.variables), plan)


def test_between_two_steps_of_a_removal(pressed: Pressed) -> None:
    while pressed.level() < 84:
        pressed.add()
    for step in range(1, STEPS + 1):
        former = pressed.kept.newest_daemon()
        while pressed.level() < 85:
            pressed.add()
        pressed.plan.die_at(former, step)
        eventually(lambda step=step: pressed.plan.steps >= step or pressed.level() < 83)
        died = pressed.plan.disarm() >= step
        if died:
            pressed.kept.await_successor()
        eventually(lambda: pressed.level() < 85)  # the next daemon begins only at `force`
        pressed.settle()
        pressed.listed()
    pressed.await_freed()
    assert len(pressed.listed()) > 70  # of some 100 that fit: no more has gone than had to


@pytest.mark.soak
def test_between_two_steps_of_a_removal_while_somebody_has_it_mapped(pressed: Pressed) -> None:
    """The file is moved aside, counted as free, and freed when its opener ends."""
    with a_reader() as reader:
        while pressed.level() < 84:
            reader.hold(pressed.pool.path(pressed.add()))
        gone = 0
        for step in range(1, STEPS + 1):
            former = pressed.kept.newest_daemon()
            first = pressed.listed()[0]
            assert first - gone <= 8, "a cascade"
            gone = first
            for _ in range(4):
                reader.hold(pressed.pool.path(pressed.add()))
            pressed.plan.die_at(former, step)
            oldest = pressed.pool.path(first)
            eventually(lambda oldest=oldest: not oldest.exists())
            if pressed.plan.disarm() >= step:
                pressed.kept.await_successor()
            pressed.settle()
            if pressed.level() > 89:
                break
    eventually(lambda: pressed.level() < 84)
    pressed.listed()
    pressed.await_freed()


def test_between_two_steps_of_a_punch(pressed: Pressed) -> None:
    """A mapping shows the old content or zeros, the next daemon takes over, and no other segment is touched."""
    with a_reader() as reader:
        while pressed.level() < 84:
            reader.hold(pressed.pool.path(pressed.add()))
        punched = 0
        for step in range(1, PUNCH_STEPS + 1):
            former = pressed.kept.newest_daemon()
            pressed.plan.die_at(former, step)
            for disk in pressed.pool.disks:
                fill_to(Path(disk).parent, 92)
            eventually(lambda step=step: pressed.plan.steps >= step)
            pressed.plan.disarm()
            pressed.kept.await_successor()
            eventually(lambda: pressed.level() < 90)
            seen = reader.look()
            assert all(bytes_seen in (segment_bytes(index, 64), bytes(64)) for index, bytes_seen in enumerate(seen))
            assert seen.count(bytes(64)) >= punched
            punched = seen.count(bytes(64))
            assert seen.index(segment_bytes(pressed.listed()[0], 64)) >= punched
        assert punched > 0
        for disk in pressed.pool.disks:
            (Path(disk).parent / FOREIGN).unlink()
    pressed.await_freed()
    pressed.listed()
