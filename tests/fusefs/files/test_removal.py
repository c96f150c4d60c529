"""Removals beside disks that fail or hang: what one disk does is paid by its own segments."""

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from support.pooled import PATIENT, SIZE, Parts, make, name_of, open_parts
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files import remove
from commitlogfs.store.files.remove import FreeWait
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.pool.commitlog import Removal


class SlowUnlink:
    """Unlinks wait for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        unlink = remove.remove_file

        def waiting(dirfd: int, name: bytes, ino: int, wait: FreeWait) -> DiskUsage:
            self.started.set()
            assert self.go_on.wait(PATIENCE_S)
            return unlink(dirfd, name, ino, wait)

        monkeypatch.setattr(remove, "remove_file", waiting)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowUnlink]:
    made = SlowUnlink(monkeypatch)
    yield made
    made.go_on.set()


@pytest.fixture
def hasty(workdir: Path) -> Iterator[Parts]:
    """Removals are given up soon."""
    timing = replace(PATIENT, requests=replace(PATIENT.requests, remove_s=0.05))
    with open_parts(workdir, timing=timing) as parts:
        yield parts


def test_the_kernel_forgets_a_name_whose_removal_took_too_long(hasty: Parts, slow: SlowUnlink) -> None:
    """The kernel got an error for the removal, and would keep the file for good."""
    forgotten = hasty.kernel.invalidated

    async def main() -> None:
        await make(hasty, 0)
        with pytest.raises(DiskFailedError):
            await hasty.removals.unlink(name_of(0))
        assert forgotten == []
        slow.go_on.set()
        await until(lambda: bool(forgotten))
        assert forgotten == [name_of(0)]
        assert hasty.commitlog.find_name(name_of(0)) is None

    trio.run(main)


@pytest.mark.parametrize("fails", [False, True])
def test_a_removal_by_rule_that_is_cut_short_leaves_the_log_in_order(
    parts: Parts, slow: SlowUnlink, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    forgotten = parts.kernel.invalidated

    async def main() -> None:
        await make(parts, 0)
        await make(parts, 1)
        file = parts.commitlog.catalog.first
        assert file is not None
        with trio.CancelScope() as scope:

            async def cut_short() -> None:
                await until(slow.started.is_set)
                scope.cancel()

            async with trio.open_nursery() as nursery, parts.changes.lock:
                nursery.start_soon(cut_short)
                await parts.removals.carry_out(Removal(file, "full", "for a test"))
        assert scope.cancelled_caught
        assert [segment.base_offset for segment in parts.commitlog.catalog] == [SIZE]
        if fails:
            monkeypatch.setattr(os, "unlink", _refuse)
        slow.go_on.set()
        await until(lambda: not parts.commitlog.is_removing)
        kept = [segment.base_offset for segment in parts.commitlog.catalog]
        assert kept == ([0, SIZE] if fails else [SIZE])
        assert forgotten == ([] if fails else [name_of(0)])

    trio.run(main)


def _refuse(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.EIO, "injected")


def test_a_disk_that_hangs_keeps_nobody_elses_removed_segments(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop, go_on = remove.drop_retired, threading.Event()
    hung = parts.commitlog.disks[DiskNumber(1)].dirfd

    def waiting(dirfd: int, name: bytes, wait: FreeWait) -> DiskUsage:
        assert dirfd != hung or go_on.wait(PATIENCE_S)
        return drop(dirfd, name, wait)

    monkeypatch.setattr(remove, "drop_retired", waiting)

    def is_one_left() -> bool:
        parts.to_free.remind_all()
        return len(parts.commitlog.others.retired()) <= 1

    async def main() -> None:
        for index in range(2):
            assert await make(parts, index, close=False) == index + 1
            await parts.removals.unlink(name_of(index))
        parts.kernel.holds_all = True  # the kernel has them, and lets go of both
        for file in parts.commitlog.others.retired():
            await parts.handles.release(inodes.encode(file))
        assert len(parts.commitlog.others.retired()) == 2
        parts.kernel.holds_all = False
        async with parts.freeing_runs():
            await until(is_one_left)
            assert [file.disk for file in parts.commitlog.others.retired()] == [1]
            go_on.set()
            await until(lambda: not parts.commitlog.others.retired())

    trio.run(main)


def test_a_removed_segment_is_freed_although_its_writes_were_watched(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened under a former daemon, so its removal cannot tell whether a process has it open. This daemon's
    own descriptor looks like one of another process."""

    async def main() -> None:
        await make(parts, 0)
        # One look: the next one would end the watch by itself, or use it while the file is freed.
        await parts.lost_writes._step(parts.commitlog.disks[DiskNumber(1)], lambda _file: True)
        assert len(parts.lost_writes._watches) == 1
        with monkeypatch.context() as inherited:
            inherited.setattr(parts.backing, "is_inherited", lambda _file: True)
            await parts.removals.unlink(name_of(0))
        assert len(parts.commitlog.others.retired()) == 1
        async with parts.freeing_runs():
            await parts.freeing.free_now(DiskNumber(1))
        assert not parts.commitlog.others.retired()

    trio.run(main)


def test_a_removal_beside_a_missing_disk_is_recorded_before_its_answer(workdir: Path) -> None:
    """The missing disk may have older segments: when it is back, they have left the log."""

    async def main() -> None:
        for index in range(3):
            await make(parts, index)
        log = parts.commitlog
        log.missing = (str(workdir / "disk4"),)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.member_records.run)
            for index in range(2):
                await parts.removals.unlink(name_of(index))
                assert log.membership.removed_before == (index + 1) * SIZE
                assert log.membership.generation in log.recorded.values()
            nursery.cancel_scope.cancel()

    timing = replace(PATIENT, members=replace(PATIENT.members, compare_s=1000.0))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main)


def test_a_removal_beside_a_disk_that_hangs_and_a_missing_one_is_recorded_before_its_answer(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segment 1, on the missing disk, precedes the one whose removal hangs: it has left the log for good."""
    unlink, go_on = remove.remove_file, threading.Event()

    def waiting(dirfd: int, name: bytes, ino: int, wait: FreeWait) -> DiskUsage:
        assert name != name_of(2) or go_on.wait(PATIENCE_S)
        return unlink(dirfd, name, ino, wait)

    monkeypatch.setattr(remove, "remove_file", waiting)

    async def main() -> None:
        for index in (0, 2, 3, 4):
            await make(parts, index)
        log = parts.commitlog
        log.missing = (str(workdir / "disk4"),)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.member_records.run)
            await parts.removals.unlink(name_of(0))
            try:
                with monkeypatch.context() as impatient:
                    impatient.setattr(log, "timing", hasty)
                    with pytest.raises(DiskFailedError):
                        await parts.removals.unlink(name_of(2))
                await parts.removals.unlink(name_of(3))
                assert log.membership.removed_before == 2 * SIZE
                assert log.membership.generation in log.recorded.values()
            finally:
                go_on.set()
            await until(lambda: not log.is_removing)
            nursery.cancel_scope.cancel()

    timing = replace(PATIENT, members=replace(PATIENT.members, compare_s=1000.0))
    hasty = replace(timing, requests=replace(timing.requests, remove_s=0.05))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main)
