"""A power cut of simulated disks leaves what ext4 and xfs may leave."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from support.simulation.disks import SimulatedClock, SimulatedDisk, SimulatedDisks
from support.simulation.power import SECTOR, WRITTEN_BACK_S
from trio.testing import MockClock

SEEDS = 60
CONTENT = bytes(range(1, 5)) * SECTOR


class Machine:
    def __init__(self, directory: Path, seed: int) -> None:
        self.clock = MockClock()
        self.random = random.Random(seed)  # noqa: S311
        self.disks = SimulatedDisks(SimulatedClock(self.clock), self.random, 4 * SECTOR)
        self.disk: SimulatedDisk = self.disks.add(directory / f"{seed}")

    def write(self, name: str, *, sync: bool) -> None:
        """As the product makes files: without a name first."""
        fd = os.open(self.disk.path, os.O_RDWR | os.O_TMPFILE, 0o600)
        os.ftruncate(fd, len(CONTENT))
        os.pwrite(fd, CONTENT, 0)
        directory = os.open(self.disk.path, os.O_RDONLY)
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory, follow_symlinks=True)
        if sync:
            os.fsync(fd)
        os.close(directory)
        os.close(fd)

    def has_all_of(self, name: str) -> bool:
        return self.disk.medium.has_all_of((self.disk.path / name).stat().st_ino)

    def unlink(self, name: str) -> None:
        directory = os.open(self.disk.path, os.O_RDONLY)
        os.unlink(name, dir_fd=directory)
        os.close(directory)


def cut_power(directory: Path, task: Callable[[Machine], None]) -> list[dict[str, bytes]]:
    """The files that are left when the power fails after the task, for each seed."""
    left = []
    for seed in range(SEEDS):
        machine = Machine(directory, seed)
        with machine.disks.system.simulated():
            task(machine)
        machine.disk.medium.cut_power(machine.random)
        left.append({path.name: path.read_bytes() for path in machine.disk.path.iterdir()})
    return left


def test_what_is_synced_stays(memory_directory: Path) -> None:
    left = cut_power(memory_directory, lambda machine: machine.write("a", sync=True))
    assert left == [{"a": CONTENT}] * SEEDS


def test_what_is_not_synced_may_be_lost_kept_or_torn(memory_directory: Path) -> None:
    left = cut_power(memory_directory, lambda machine: machine.write("a", sync=False))
    contents = {files.get("a") for files in left}
    nothing = bytes(len(CONTENT))
    assert {None, CONTENT, nothing} < contents
    for content in contents - {None, CONTENT, nothing}:
        assert content is not None
        for at in range(0, len(CONTENT), SECTOR):
            assert content[at : at + SECTOR] in (CONTENT[at : at + SECTOR], bytes(SECTOR))


def test_changes_of_names_are_lost_from_the_last_one_on(memory_directory: Path) -> None:
    def task(machine: Machine) -> None:
        machine.write("a", sync=True)
        machine.unlink("a")
        machine.write("b", sync=False)

    left = cut_power(memory_directory, task)
    assert {frozenset(files) for files in left} == {frozenset("a"), frozenset(), frozenset("b")}


def test_a_sync_of_a_later_file_commits_what_was_before(memory_directory: Path) -> None:
    def task(machine: Machine) -> None:
        machine.write("a", sync=True)
        machine.unlink("a")
        machine.write("b", sync=True)

    assert cut_power(memory_directory, task) == [{"b": CONTENT}] * SEEDS


def test_a_file_that_is_back_is_the_same(memory_directory: Path) -> None:
    inodes = {}

    def task(machine: Machine) -> None:
        machine.write("a", sync=True)
        inodes[machine.disk.path] = (machine.disk.path / "a").stat().st_ino
        machine.unlink("a")

    left = cut_power(memory_directory, task)
    assert {"a": CONTENT} in left
    back = [directory for directory in inodes if (directory / "a").exists()]
    assert [(directory / "a").stat().st_ino for directory in back] == [inodes[directory] for directory in back]


def test_the_kernel_writes_back_what_nobody_syncs(memory_directory: Path) -> None:
    def task(machine: Machine) -> None:
        machine.write("a", sync=False)
        assert not machine.has_all_of("a")
        machine.clock.jump(WRITTEN_BACK_S + 1)
        assert machine.has_all_of("a")

    assert cut_power(memory_directory, task) == [{"a": CONTENT}] * SEEDS


def test_attributes_and_times_may_be_lost(memory_directory: Path) -> None:
    changed = []

    def task(machine: Machine) -> None:
        machine.write("a", sync=True)
        changed.append(machine.disk.path / "a")
        assert machine.has_all_of("a")
        fd = os.open(changed[-1], os.O_RDWR)
        os.setxattr(fd, "user.commitlogfs.test", b"x")
        os.utime(fd, ns=(0, 0))
        os.close(fd)
        assert not machine.has_all_of("a")

    cut_power(memory_directory, task)
    left = {(os.listxattr(path) != [], path.stat().st_mtime_ns == 0) for path in changed}
    assert left == {(False, False), (True, False), (True, True)}
