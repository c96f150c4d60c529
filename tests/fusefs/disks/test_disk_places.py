"""Which disks are back at their paths."""

import os
import shutil
import threading
from pathlib import Path

import pytest
import trio
from support.pooled import open_parts
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.disks.check_child import CheckChild
from commitlogfs.fusefs.disks.disk_places import DiskPlaces
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks.disk import DiskState


@pytest.mark.parametrize(
    ("state", "trouble", "is_back"),
    [
        (DiskState.RW, {}, False),
        (DiskState.RW, {"is_read_only": True}, True),
        (DiskState.RW, {"unreadable_reason": "Input/output error"}, True),
        (DiskState.RO, {"is_read_only": True}, False),
        (DiskState.RO, {"unreadable_reason": "Input/output error"}, True),
    ],
)
def test_a_copy_at_the_path_is_the_disk_only_if_that_fails(workdir: Path, state, trouble, is_back):
    """A filesystem that is read-only by intention works."""

    async def main() -> None:
        with open_parts(workdir) as parts:
            log = parts.commitlog
            disk = next(iter(log.disks.values()))
            replace_by_a_copy(Path(disk.path))
            disk.state = state
            for name, value in trouble.items():
                setattr(disk, name, value)
            child = CheckChild(log.disks.values(), log.timing.checks)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.run)
                checks = await DiskPlaces(log, child, DiskThreads(log.disks)).look([])
                nursery.cancel_scope.cancel()
            assert checks.back == ({disk.path} if is_back else set())
            assert not checks.silent

    trio.run(main)


def test_a_thread_that_rests_prevents_no_hand_over(workdir: Path) -> None:
    """As that of a scrub with a rate: it ends with its process."""
    rests, go_on = threading.Event(), threading.Event()

    def rest() -> None:
        rests.set()
        assert go_on.wait(PATIENCE_S)

    async def main() -> None:
        with open_parts(workdir) as parts:
            disk = next(iter(parts.commitlog.disks.values()))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(parts.threads.run, disk.number, rest)
                await until(rests.is_set)
                assert not await parts.disk_places.why_not_handed_over()
                disk.is_unresponsive = True
                assert disk.path in await parts.disk_places.why_not_handed_over()
                go_on.set()

    trio.run(main)


def test_a_disk_that_hangs_and_is_back_elsewhere_prevents_no_hand_over(workdir: Path) -> None:
    """The next daemon opens the filesystem that is at its path now."""

    async def main() -> None:
        with open_parts(workdir) as parts:
            disk = next(iter(parts.commitlog.disks.values()))
            disk.is_unresponsive, disk.suspected_since_s = True, 0.0
            child = CheckChild(parts.commitlog.disks.values(), parts.commitlog.timing.checks)
            places = DiskPlaces(parts.commitlog, child, parts.threads)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.run)
                await places.look([])
                assert disk.path in await places.why_not_handed_over()
                replace_by_a_copy(Path(disk.path))
                assert disk.path in (await places.look([])).back
                assert not await places.why_not_handed_over()
                nursery.cancel_scope.cancel()

    trio.run(main)


def replace_by_a_copy(directory: Path) -> None:
    moved = directory.with_name("moved")
    directory.rename(moved)
    shutil.copytree(moved, directory)
    for name in os.listxattr(moved):
        os.setxattr(directory, name, os.getxattr(moved, name))
