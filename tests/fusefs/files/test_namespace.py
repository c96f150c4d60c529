"""Creates and removals beside disks that fail, are full or hang: what one disk does is paid by its own segments."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from support.pooled import Parts, open_parts
from support.waiting import until

from commitlogfs.fusefs.files import namespace
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import DiskFailedError, NoDiskAvailableError
from commitlogfs.store.files import allocate, remove
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.usage import DiskUsage, measure_usage

SIZE = 4096
OURS = Owner(os.geteuid(), os.getegid(), 0o644)


def name_of(index: int) -> bytes:
    return b"%020d" % (index * SIZE)


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    with open_parts(workdir) as parts:
        yield parts


async def make(parts: Parts, index: int, *, close: bool = True) -> int:
    """The disk it got."""
    handle = await parts.namespace.create(name_of(index), OURS)
    if close:
        os.ftruncate(handle.fd, SIZE)
        await parts.namespace.handles.release(inodes.encode(handle.file))
    return handle.file.disk


def failing(monkeypatch: pytest.MonkeyPatch, parts: Parts, *numbers: int) -> None:
    """Nothing can be reserved on these disks."""
    reserve = allocate.reserve
    dirfds = {parts.commitlog.disks[DiskNumber(number)].dirfd for number in numbers}

    def fail(dirfd: int, segment_size: int, owner: Owner) -> int:
        if dirfd in dirfds:
            raise OSError(errno.EIO, "injected")
        return reserve(dirfd, segment_size, owner)

    monkeypatch.setattr(allocate, "reserve", fail)


def fill(monkeypatch: pytest.MonkeyPatch, parts: Parts, percents: dict[int, float]) -> None:
    """These disks are measured as so full; `percents` may change later."""

    def measured(dirfd: int) -> DiskUsage:
        usage = measure_usage(dirfd)
        for number, disk in parts.commitlog.disks.items():
            if disk.dirfd == dirfd and number in percents:
                free = int(usage.total_bytes * (100 - percents[number]) / 100)
                return DiskUsage(usage.total_bytes, free, free)
        return usage

    monkeypatch.setattr("commitlogfs.fusefs.disks.usage_monitor.measure_usage", measured)


# --- creating --------------------------------------------------------------------------------------------


def test_a_disk_above_force_takes_what_all_others_have_refused(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one create: nobody has to try again."""
    fill(monkeypatch, parts, {3: 87})
    failing(monkeypatch, parts, 1, 2)

    async def main() -> None:
        assert await make(parts, 0) == 3

    trio.run(main)


def test_it_comes_before_one_that_failed_a_moment_ago(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.commitlog.disks[DiskNumber(1)].retry_at_s = float("inf")
    fill(monkeypatch, parts, {3: 87})
    failing(monkeypatch, parts, 2)

    async def main() -> None:
        assert await make(parts, 0) == 3

    trio.run(main)


def test_room_is_made_although_a_disk_that_fails_is_still_to_be_tried(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    percents: dict[int, float] = {2: 95, 3: 95}
    fill(monkeypatch, parts, percents)
    failing(monkeypatch, parts, 1)
    asked = 0

    async def make_room() -> bool:
        nonlocal asked
        asked += 1
        percents[2] = 50
        parts.commitlog._no_space = None  # as a removal does
        for number, disk in parts.commitlog.disks.items():
            if number == 2:
                parts.commitlog.record_usage(number, measure_usage(disk.dirfd))
        return True

    parts.namespace.make_room = make_room

    async def main() -> None:
        assert await make(parts, 0) == 2
        assert asked == 1

    trio.run(main)


def test_nobody_is_asked_for_room_again_and_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker tries again every millisecond."""
    monkeypatch.setattr("commitlogfs.store.pool.commitlog.NO_SPACE_CACHE_S", 60.0)
    fill(monkeypatch, parts, {2: 95, 3: 95})
    failing(monkeypatch, parts, 1)
    asked = 0

    async def make_room() -> bool:
        nonlocal asked
        asked += 1
        return False

    parts.namespace.make_room = make_room

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(NoDiskAvailableError):
                await make(parts, 0)
        assert asked == 1

    trio.run(main)


def test_waiting_for_another_change_counts(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker gives up after 5 s, whatever the time was spent on."""
    monkeypatch.setattr(namespace, "CREATE_DEADLINE_S", 0.3)
    monkeypatch.setattr(namespace, "PUBLISH_DEADLINE_S", 0.1)

    async def change_for(seconds: float, task_status: "trio.TaskStatus[None]") -> None:
        async with parts.namespace._lock:
            task_status.started()
            await trio.sleep(seconds)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: change_for(0.3, task_status))
            with pytest.raises(NoDiskAvailableError, match="in time") as caught:
                await make(parts, 0)
        assert (caught.value.no_space, caught.value.failing) == (False, True)

    trio.run(main)


# --- removing --------------------------------------------------------------------------------------------


class SlowUnlink:
    """Unlinks wait for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        unlink = remove.remove_file

        def waiting(dirfd: int, name: bytes) -> DiskUsage:
            assert self.go_on.wait(30)
            return unlink(dirfd, name)

        monkeypatch.setattr(remove, "remove_file", waiting)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowUnlink]:
    made = SlowUnlink(monkeypatch)
    yield made
    made.go_on.set()


def test_the_kernel_forgets_a_name_whose_removal_took_too_long(
    parts: Parts, slow: SlowUnlink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told that the removal failed, and would keep the file for good."""
    monkeypatch.setattr(namespace, "REMOVE_DEADLINE_S", 0.05)
    forgotten: list[bytes] = []
    parts.namespace._invalidate_entry = lambda name, _inode: forgotten.append(name)

    async def main() -> None:
        await make(parts, 0)
        with pytest.raises(DiskFailedError):
            await parts.namespace.remove(name_of(0))
        assert forgotten == []
        slow.go_on.set()
        await until(lambda: bool(forgotten))
        assert forgotten == [name_of(0)]
        assert parts.commitlog.find_name(name_of(0)) is None

    trio.run(main)


@pytest.mark.parametrize("fails", [False, True])
def test_a_removal_by_rule_that_is_cut_short_leaves_the_log_in_order(
    parts: Parts, slow: SlowUnlink, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    forgotten: list[bytes] = []
    parts.namespace._invalidate_entry = lambda name, _inode: forgotten.append(name)

    async def main() -> None:
        await make(parts, 0)
        await make(parts, 1)
        file = parts.commitlog.catalog.first
        assert file is not None
        with trio.move_on_after(0.05) as scope:
            await parts.namespace.remove_by_rule(lambda: namespace.Chosen(file, "full", "for a test"))
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

    def waiting(dirfd: int, name: bytes) -> DiskUsage:
        assert dirfd != hung or go_on.wait(30)
        return drop(dirfd, name)

    monkeypatch.setattr(remove, "drop_retired", waiting)
    held = [False]
    parts.namespace._kernel_holds = lambda _inode: held[0]

    async def main() -> None:
        for index in range(2):
            assert await make(parts, index, close=False) == index + 1
            await parts.namespace.remove(name_of(index))
        held[0] = True  # the kernel has them, and lets go of both
        for file in parts.commitlog.retired():
            await parts.namespace.handles.release(inodes.encode(file))
        assert len(parts.commitlog.retired()) == 2
        held[0] = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.namespace.free_retired_files)
            with trio.fail_after(10):
                while len(parts.commitlog.retired()) > 1:
                    parts.namespace.look_at_retired_soon()
                    await trio.sleep(0.01)
            assert [file.disk for file in parts.commitlog.retired()] == [1]
            go_on.set()
            await until(lambda: not parts.commitlog.retired())
            nursery.cancel_scope.cancel()

    trio.run(main)
