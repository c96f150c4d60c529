"""Creates beside disks that fail, are full or hang: what one disk does is paid by its own segments."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from support.pooled import PATIENT, Parts, make, open_parts

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import NoDiskAvailableError
from commitlogfs.store.files import allocate
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.usage import DiskUsage, measure_usage


def failing(monkeypatch: pytest.MonkeyPatch, parts: Parts, *numbers: int, code: int = errno.EIO) -> None:
    """Nothing can be reserved on these disks."""
    reserve = allocate.reserve
    dirfds = {parts.commitlog.disks[DiskNumber(number)].dirfd for number in numbers}

    def fail(dirfd: int, segment_size: int, owner: Owner) -> int:
        if dirfd in dirfds:
            raise OSError(code, "injected")
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


def test_a_disk_above_force_takes_what_all_others_have_refused(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one create: nobody has to try again."""
    fill(monkeypatch, parts, {3: 87})
    failing(monkeypatch, parts, 1, 2)

    async def main() -> None:
        assert await make(parts, 0) == 3

    trio.run(main)


@pytest.mark.parametrize(
    "code",
    [
        errno.EIO,
        errno.EUCLEAN,
        errno.EBADMSG,
        errno.ENODEV,
        errno.ETIMEDOUT,
        errno.ENOLINK,
        errno.EREMOTEIO,
        errno.EBADE,
    ],
    ids=errno.errorcode.__getitem__,
)
def test_a_disk_that_is_damaged_or_out_of_reach_is_skipped(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, parts, 1, code=code)

    async def main() -> None:
        assert await make(parts, 0) == 2

    trio.run(main)


def test_it_comes_before_one_that_failed_a_moment_ago(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.commitlog.disks[DiskNumber(1)].retry_at_s = float("inf")
    fill(monkeypatch, parts, {3: 87})
    failing(monkeypatch, parts, 2)

    async def main() -> None:
        assert await make(parts, 0) == 3

    trio.run(main)


def test_room_is_made_although_a_disk_that_fails_is_still_to_be_tried(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    percents: dict[int, float] = {2: 95, 3: 95}
    asked = 0

    async def reclaim() -> bool:
        nonlocal asked
        asked += 1
        percents[2] = 50
        opened.commitlog.admission.forget_refusal()  # as a removal does
        for number, disk in opened.commitlog.disks.items():
            if number == 2:
                opened.commitlog.space.record_usage(number, measure_usage(disk.dirfd))
        return True

    async def main() -> None:
        assert await make(opened, 0) == 2
        assert asked == 1

    with open_parts(workdir, reclaim=reclaim) as opened:
        fill(monkeypatch, opened, percents)
        failing(monkeypatch, opened, 1)
        trio.run(main)


def test_nobody_is_asked_for_room_again_and_again(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker tries again every millisecond."""
    timing = replace(PATIENT, requests=replace(PATIENT.requests, no_disk_s=60.0))
    asked = 0

    async def reclaim() -> bool:
        nonlocal asked
        asked += 1
        return False

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(NoDiskAvailableError):
                await make(opened, 0)
        assert asked == 1

    with open_parts(workdir, reclaim=reclaim, timing=timing) as opened:
        fill(monkeypatch, opened, {2: 95, 3: 95})
        failing(monkeypatch, opened, 1)
        trio.run(main)


def test_a_create_that_is_refused_for_now_measures_nothing(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a measurement takes longer than its figures count."""
    times = replace(PATIENT.requests, no_disk_s=60.0, usage_age_s=0.0)
    measured = 0

    def measure(dirfd: int) -> DiskUsage:
        nonlocal measured
        measured += 1
        usage = measure_usage(dirfd)
        return replace(usage, free_bytes=0, available_bytes=0)

    async def main() -> None:
        nonlocal measured
        with pytest.raises(NoDiskAvailableError):
            await make(opened, 0)
        assert measured
        measured = 0
        with pytest.raises(NoDiskAvailableError):
            await make(opened, 0)
        assert measured == 0

    monkeypatch.setattr("commitlogfs.fusefs.disks.usage_monitor.measure_usage", measure)
    with open_parts(workdir, timing=replace(PATIENT, requests=times)) as opened:
        trio.run(main)


def test_a_create_waits_once_for_the_segment_before_it(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often all disks are asked: a hung disk would cost the same time again."""
    waits: list[DiskNumber] = []
    removals = [True, True, False]

    async def reclaim() -> bool:
        opened.commitlog.admission.forget_refusal()  # as a removal does
        return removals.pop(0)

    async def committed(number: DiskNumber) -> None:
        waits.append(number)

    async def main() -> None:
        await make(opened, 0)
        failing(monkeypatch, opened, 1, 2, 3, code=errno.ENOSPC)
        monkeypatch.setattr(opened.background, "committed", committed)
        with pytest.raises(NoDiskAvailableError):
            await make(opened, 1)
        assert removals == []
        assert waits == [1]

    with open_parts(workdir, reclaim=reclaim) as opened:
        trio.run(main)


def test_waiting_for_another_change_counts(workdir: Path) -> None:
    """The broker gives up after 5 s, whatever the time was spent on."""
    times = replace(PATIENT.requests, create_s=0.3, link_s=0.1, reclaim_s=0.1, round_s=0.05)
    timing = replace(PATIENT, requests=times)
    clock = trio.testing.MockClock()

    async def change_for(seconds: float, task_status: "trio.TaskStatus[None]") -> None:
        async with opened.changes.lock:
            task_status.started()
            await trio.testing.wait_all_tasks_blocked()  # until the create waits
            clock.jump(seconds)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: change_for(0.3, task_status))
            with pytest.raises(NoDiskAvailableError, match="in time") as caught:
                await make(opened, 0)
        assert (caught.value.no_space, caught.value.failing) == (False, True)

    with open_parts(workdir, timing=timing) as opened:
        trio.run(main, clock=clock)
