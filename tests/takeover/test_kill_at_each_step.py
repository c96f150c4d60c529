"""The daemon dies before each single step of an operation, its reply included: the caller sees one success, and no
incomplete file is ever listed."""

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import faults
from support.faults import FaultPlan
from support.kept import KeptMount
from support.pools import MIB, segment_bytes
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built"),
]

MOST_STEPS = 60
"""More than any operation has: a loop that does not end is a bug in the test."""


class DyingMount:
    """A kept mount whose daemon dies at a chosen step."""

    def __init__(self, kept: KeptMount, plan: FaultPlan) -> None:
        self.kept = kept
        self.pool = kept.pool
        self._plan = plan

    def at_each_step(self) -> Iterator[int]:
        """The number of the step that is deadly to whatever the body does; ends when one has not been reached."""
        for step in range(1, MOST_STEPS):
            self._plan.die_at(self.kept.newest_daemon(), step)
            yield step
            if self._plan.disarm() < step:
                assert step > 2, "the body has to do something"
                return
            self.kept.await_successor()
        raise AssertionError(f"more than {MOST_STEPS} steps")

    def listed(self) -> list[int]:
        """The indexes of the listed segments, each of them whole and on one disk only; nothing else is there."""
        names = sorted(os.listdir(self.pool.mountpoint))
        for name in names:
            assert (self.pool.mountpoint / name).stat().st_size == MIB, name
            assert sum((Path(disk) / name).exists() for disk in self.pool.disks) == 1, name
        return [int(name) // MIB for name in names]

    def on_disks(self) -> list[str]:
        """Every file on the disks. A directory that is removed meanwhile, as one for retired files is, has none."""
        return sorted(
            str(Path(directory, name).relative_to(disk))
            for disk in self.pool.disks
            for directory, _, names in os.walk(disk)
            for name in names
        )


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.soak)], ids=["passed", "plain"])
def dying(keep: Callable[..., KeptMount], request: pytest.FixtureRequest, workdir: Path) -> DyingMount:
    plan = FaultPlan(workdir)
    return DyingMount(keep(2, settings={"passthrough": f'"{request.param}"'}, variables=plan.variables), plan)


def test_create_and_grow(dying: DyingMount) -> None:
    made = []
    for index in dying.at_each_step():
        path = dying.pool.path(index)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        os.ftruncate(fd, MIB)
        os.pwrite(fd, segment_bytes(index, 64), 0)
        os.fsync(fd)
        os.close(fd)
        made.append(index)
        assert dying.listed() == made
    for index in made:
        assert dying.pool.path(index).read_bytes()[:64] == segment_bytes(index, 64)
        assert dying.pool.path(index).stat().st_mode & 0o777 == 0o640
    assert dying.on_disks() == sorted(dying.pool.path(index).name for index in made)


def test_remove(dying: DyingMount) -> None:
    dying.pool.make_segments(range(1, 31))
    left = list(range(1, 31))
    for index in dying.at_each_step():
        dying.pool.path(index).unlink()
        left.remove(index)
        assert dying.listed() == left
        with pytest.raises(FileNotFoundError):
            dying.pool.path(index).unlink()
    eventually(lambda: len(dying.on_disks()) == len(left))


def test_remove_while_it_is_mapped(dying: DyingMount) -> None:
    """The file is moved aside, still readable, and freed at the last close, whichever daemon runs then."""
    for index in dying.at_each_step():
        fd = os.open(dying.pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.ftruncate(fd, MIB)
        with mmap.mmap(fd, MIB) as mapped:
            mapped[:64] = segment_bytes(index, 64)
            dying.pool.path(index).unlink()
            assert dying.listed() == []
            assert os.pread(fd, 64, 0) == mapped[:64] == segment_bytes(index, 64)
            assert os.fstat(fd).st_nlink == 0
        os.close(fd)
    eventually(lambda: dying.on_disks() == [])


def test_rename_of_a_finished_copy(dying: DyingMount) -> None:
    published = []
    for index in dying.at_each_step():
        path = dying.pool.path(index)
        copy = path.with_name(f".{path.name}.aB3xYz")
        copy.write_bytes(segment_bytes(index, MIB))
        copy.rename(path)
        published.append(index)
        assert dying.listed() == published
        assert path.read_bytes() == segment_bytes(index, MIB)
    eventually(lambda: dying.on_disks() == sorted(dying.pool.path(index).name for index in published))


def test_attributes(dying: DyingMount) -> None:
    path = dying.pool.path(0)
    dying.pool.make_segments([0])
    for step in dying.at_each_step():
        path.chmod(0o600 + step % 8)
        os.utime(path, ns=(step * 10**9, step * 10**9))
        dying.pool.mountpoint.chmod(0o750 + step % 2)
        assert path.stat().st_mode & 0o777 == 0o600 + step % 8
        assert path.stat().st_mtime_ns == step * 10**9
        assert dying.pool.mountpoint.stat().st_mode & 0o777 == 0o750 + step % 2


def test_the_same_name_again(dying: DyingMount) -> None:
    """Removed while it is open and made again: two files, whichever daemon answers."""
    with contextlib.ExitStack() as stack:
        held: list[tuple[int, bytes]] = []
        for step in dying.at_each_step():
            content = segment_bytes(step, 64)
            fd = os.open(dying.pool.path(0), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            stack.callback(os.close, fd)
            os.ftruncate(fd, MIB)
            os.pwrite(fd, content, 0)
            held.append((fd, content))
            assert dying.pool.path(0).read_bytes()[:64] == content
            dying.pool.path(0).unlink()
        for fd, content in held:
            assert os.pread(fd, 64, 0) == content
        assert len({os.fstat(fd).st_ino for fd, _ in held}) == len(held)
    eventually(lambda: dying.on_disks() == [])
