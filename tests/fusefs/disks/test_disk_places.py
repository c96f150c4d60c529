"""Which disks are back at their paths."""

import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from support.kernel_waits import process_in_kernel, wait_in_kernel
from support.pooled import PATIENT, Parts, open_parts
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.disks.check_child import Asked, CheckChild
from commitlogfs.fusefs.disks.disk_places import DiskPlaces
from commitlogfs.fusefs.disks.disk_threads import OUTSIDE, DiskThreads
from commitlogfs.fusefs.disks.kernel_waits import read_wait
from commitlogfs.store.checks.check import Stage
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber

SOON_HUNG = replace(PATIENT, checks=replace(PATIENT.checks, hung_s=0.2, hung_look_s=0.02))


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


Work = Callable[[Parts, Callable[[], None]], Awaitable[object]]
"""Calls a function in a thread."""


async def on_a_disk(parts: Parts, function: Callable[[], None]) -> None:
    await parts.threads.run(DiskNumber(2), function)


async def on_the_source_of_a_restore(parts: Parts, function: Callable[[], None]) -> None:
    await parts.mover._outside.run(OUTSIDE, function)


async def elsewhere(parts: Parts, function: Callable[[], None]) -> None:
    await parts.threads.aside(function)


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (on_a_disk, "disk2"),
        (on_the_source_of_a_restore, "the source of a restore"),
        (elsewhere, "a filesystem outside of the pool"),
    ],
)
def test_a_thread_that_waits_prevents_a_hand_over(workdir: Path, work: Work, named: str) -> None:
    """Its process would not end. Nothing else has found that yet."""
    threads: list[int] = []

    async def main() -> None:
        with open_parts(workdir, timing=SOON_HUNG) as parts:
            async with trio.open_nursery() as nursery:
                with wait_in_kernel(workdir) as wait:

                    def wait_there() -> None:
                        threads.append(threading.get_native_id())
                        wait()

                    nursery.start_soon(work, parts, wait_there)
                    await until(lambda: bool(threads) and read_wait(os.getpid(), threads[0]) is not None)
                    reason = await parts.disk_places.why_not_handed_over()
                    assert reason.partition(":")[0].endswith(named)
            assert not await parts.disk_places.why_not_handed_over()

    trio.run(main)


def test_a_check_that_waits_prevents_a_hand_over(workdir: Path) -> None:
    """Long before its disk counts as unresponsive: the next daemon would wait there, too. Unless its path leads
    elsewhere."""

    async def main() -> None:
        with open_parts(workdir, timing=SOON_HUNG) as parts, process_in_kernel(workdir) as process:
            await until(lambda: read_wait(process, process) is not None)
            disk = parts.commitlog.disks[DiskNumber(2)]
            places = DiskPlaces(parts.commitlog, Checking(disk.number, process), parts.threads)
            assert (await places.why_not_handed_over()).startswith(f"{disk.path}: does not answer this daemon")
            places._away[disk.number] = 1
            assert not await places.why_not_handed_over()

    trio.run(main)


class Checking(CheckChild):
    """Its only thread checks a disk."""

    def __init__(self, disk: DiskNumber, process: int) -> None:
        super().__init__([], SOON_HUNG.checks)
        self._descriptors[disk] = 0
        self._asked[0] = Asked(process, stage=Stage.READING, thread=process)


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
