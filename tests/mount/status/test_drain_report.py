"""The report on a drain that waits: for which disk, which segment, and why. Without a kernel."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support.pooled import SIZE, Parts, let_go, make, open_parts, place, segment

from commitlogfs.console.formatting import local_minute
from commitlogfs.mount.status.moves import drain_report, held_until
from commitlogfs.mount.status.rebalance import plan_report
from commitlogfs.mount.views.status_text import describe_drain
from commitlogfs.store.disks.membership import Cordon, DiskNumber, Drain, DrainMode, RebalanceMode
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves.mark import source_of, write_mark
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.scrub.verdict import Kind, whole_verdict

COUNT = 8
DRAINED = DiskNumber(1)
FAST = 10**9
"""Bytes per second: without a rate, a busy machine lets a drain wait."""


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    """Segments 0, 3 and 6 are on the first of three disks, and 5, 6 and 7 are the newest."""
    with open_parts(workdir) as made:
        for index in range(COUNT):
            trio.run(make, made, index)
        for file in made.commitlog.catalog:
            trio.run(made.attributes.refresh, file)
        yield made


def begin(parts: Parts, disk: DiskNumber = DRAINED, mode: DrainMode = DrainMode.COPY) -> None:
    parts.commitlog.record_membership(parts.commitlog.membership.draining(disk, Drain(1, mode, FAST)))


def end(parts: Parts, disk: DiskNumber) -> None:
    parts.commitlog.record_membership(parts.commitlog.membership.draining(disk, None))


def report_on(parts: Parts, disk: DiskNumber = DRAINED) -> dict[str, Any]:
    found = drain_report(parts.commitlog.disks[disk], parts, 0.0)
    assert found is not None
    return found


def move_what_can_be_moved(parts: Parts) -> None:
    async def move() -> None:
        while await parts.drains._move_next():
            await parts.sources.finish()

    trio.run(move)


def test_segments_that_can_be_moved_have_an_estimate(parts: Parts) -> None:
    begin(parts)
    report = report_on(parts)
    assert (report["waits_for"], report["eta_seconds"]) == (None, 2 * 4096 / (FAST / 2))


def test_what_is_still_open_is_freed_when_the_broker_has_deleted_it(parts: Parts) -> None:
    """Segments live for three days: a moved one until three days after its last change."""
    log, disk = parts.commitlog, parts.commitlog.disks[DRAINED]
    now_s = log.clock.wall()
    assert held_until(disk, parts) is None
    begin(parts)
    assert trio.run(parts.drains._move_next)
    (moved,) = log.others.moved(DRAINED)
    assert held_until(disk, parts) is None  # no segment has expired yet, so nobody knows for how long they live
    log.removals.record(now_s - 3 * 86_400, now_s, SIZE)
    copy = log.catalog.find(moved.base_offset)
    assert copy is not None
    until = held_until(disk, parts)
    assert until == pytest.approx(unpack(copy.attributes).mtime_ns / 1e9 + 3 * 86_400, abs=1)
    drained = {**report_on(parts), "segments_left": 0}
    said = describe_drain({"drain": drained, "held_segments": 1, "held_until": until})
    end = f"until the broker restarts or deletes it, about {local_minute(until)}"
    assert said == f"drained, held: 1 moved segment still open, {end}"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("is_read_only", "the disk is read-only; make it writable, or give it up"),
        ("is_failing", "the disk cannot be written; repair it, or give it up"),
    ],
)
def test_copies_wait_for_the_disk_of_their_former_files(parts: Parts, spoil: str, reason: str) -> None:
    """The disk was drained as a failing one, and still has the files, so the disk of the copies does not drain."""
    log = parts.commitlog
    setattr(log.disks[DRAINED], spoil, True)
    begin(parts, mode=DrainMode.FAILING)
    assert report_on(parts)["waits_for"] is None
    move_what_can_be_moved(parts)
    copies = [log.catalog.at(0), log.catalog.at(3)]
    assert DRAINED not in {copy.disk for copy in copies}
    for disk in {copy.disk for copy in copies}:
        begin(parts, disk)
        move_what_can_be_moved(parts)
        report = report_on(parts, disk)
        waiting = max((copy for copy in copies if copy.disk == disk), key=lambda copy: copy.base_offset)
        path = log.disks[DRAINED].path
        assert report["waits_for"] == {
            "disk": path,
            "segment": waiting.name.decode(),
            "reason": f"its former file is still there: {reason}",
        }
        assert report["eta_seconds"] is None
        said = describe_drain({"drain": report, "held_segments": 0})
        named = f"{waiting.name.decode()}: its former file is still there: {reason}"
        assert said.endswith(f"waits for {path} ({named})")
        end(parts, disk)
    setattr(log.disks[DRAINED], spoil, False)
    end(parts, DRAINED)
    trio.run(let_go, parts)
    begin(parts, copies[0].disk)
    assert report_on(parts, copies[0].disk)["waits_for"] is None


def test_a_disk_that_cannot_be_written_keeps_all(parts: Parts) -> None:
    begin(parts)
    parts.commitlog.disks[DRAINED].is_read_only = True
    move_what_can_be_moved(parts)
    report = report_on(parts)
    path = parts.commitlog.disks[DRAINED].path
    reason = "nothing can be removed there; repair it, or save what can be read (`disk drain --failing`)"
    assert (report["waits_for"], report["eta_seconds"]) == ({"disk": path, "segment": None, "reason": reason}, None)
    said = describe_drain({"drain": report, "held_segments": 0})
    assert said == f"draining: 3 segments left, 1 of them among the newest of the log; waits for {path} ({reason})"


def lack_writes(parts: Parts, file: Segment) -> None:
    parts.verdicts.record(file, whole_verdict(Kind.WRITE_LOST, file.size, 1))


def be_uncertain(parts: Parts, file: Segment) -> None:
    parts.commitlog.names.record_uncertain(file.name, DiskNumber(2))


def be_written_to(parts: Parts, file: Segment) -> None:
    parts.sources._written_to[file.disk, file.ino] = file


def be_in_flight(parts: Parts, file: Segment) -> None:
    in_flight: dict[bytes, Any] = parts.changes._in_flight
    in_flight[file.name] = None


def come_from_a_missing_disk(parts: Parts, file: Segment) -> None:
    fd = os.open(place(parts, file.base_offset // file.size), os.O_RDWR)
    write_mark(fd, source_of(DiskNumber(4), unpack(file.attributes)))
    os.close(fd)
    trio.run(parts.attributes.refresh, file)


@pytest.mark.parametrize(
    ("spoil", "disk", "reason"),
    [
        (lack_writes, 0, "the disk may lack what was written to it; save it, and use `commitlogfs scrub clear`"),
        (be_uncertain, 1, "the disk has not shown yet whether it has a file of this name"),
        (be_in_flight, 0, "an earlier change of its name is under way"),
        (be_written_to, 0, "a process that has it open may write to it"),
        (
            come_from_a_missing_disk,
            3,
            f"{3 * 4096:020d}: /pulled-out is missing, and may have a former file of this segment; bring the disk "
            "back, or give it up",
        ),
    ],
)
def test_each_reason_is_named_once_no_segment_can_be_moved(
    parts: Parts, spoil: Callable[[Parts, Segment], None], disk: int, reason: str
) -> None:
    log = parts.commitlog
    log.record_membership(log.membership.joined_by("an id", "/pulled-out"))
    begin(parts)
    newer, older = parts.drains.waiting(log.disks[DRAINED])
    spoil(parts, newer)
    assert report_on(parts)["waits_for"] is None
    spoil(parts, older)
    trio.run(parts.drains._move_next)
    trio.run(parts.drains._move_next)
    report = report_on(parts)
    path = [*(str(directory) for directory in parts.directories), "/pulled-out"][disk]
    assert report["waits_for"] == {"disk": path, "segment": newer.name.decode(), "reason": reason}
    assert report["eta_seconds"] is None


def test_without_room_there_is_no_estimate(parts: Parts) -> None:
    begin(parts)
    for number in (2, 3):
        parts.commitlog.disks[DiskNumber(number)].cordon = Cordon(1)
    move_what_can_be_moved(parts)
    report = report_on(parts)
    assert (report["no_room"], report["waits_for"], report["eta_seconds"]) == (True, None, None)


def test_a_drain_by_expiry_waits_for_no_disk(parts: Parts) -> None:
    begin(parts, mode=DrainMode.EXPIRY)
    parts.commitlog.disks[DRAINED].is_read_only = True
    assert report_on(parts)["waits_for"] is None


def test_a_rebalance_waits_for_drains_that_copy_only(parts: Parts) -> None:
    begin(parts, mode=DrainMode.EXPIRY)
    assert plan_report(parts, RebalanceMode.COPY, 0, 0.0)["waits_for_drains"] == []
    begin(parts, DiskNumber(3))
    assert plan_report(parts, RebalanceMode.COPY, 0, 0.0)["waits_for_drains"] == [str(parts.directories[2])]


def change(parts: Parts, index: int, age_s: float) -> None:
    """The last change of a segment was so long ago."""
    changed_s = parts.commitlog.clock.wall() - age_s
    os.utime(place(parts, index), (changed_s, changed_s))
    trio.run(parts.attributes.refresh, segment(parts, index))


@pytest.mark.parametrize(
    ("age_s", "mode", "is_moved"),
    [
        (700, DrainMode.COPY, False),
        (1100, DrainMode.COPY, True),
        (100, DrainMode.COPY, True),
        (700, DrainMode.FAILING, True),
    ],
    ids=["soon", "overdue", "later", "failing"],
)
def test_what_is_about_to_expire_is_not_copied(parts: Parts, age_s: float, mode: DrainMode, is_moved: bool) -> None:
    log = parts.commitlog
    change(parts, 0, age_s)
    change(parts, 3, 0)
    log.removals.record(log.clock.wall() - 1000, log.clock.wall(), 0)  # at that age
    begin(parts, mode=mode)
    move_what_can_be_moved(parts)
    assert segment(parts, 3).disk != DRAINED
    assert (segment(parts, 0).disk != DRAINED) == is_moved
    waits = report_on(parts)["waits_for"]
    assert is_moved or "is about to expire" in waits["reason"]


def test_the_end_of_a_drain_by_expiry_is_that_of_its_newest_segment(parts: Parts) -> None:
    log = parts.commitlog
    for file in log.catalog:
        change(parts, file.base_offset // SIZE, 100)
    change(parts, 6, 50)
    log.removals.record(log.clock.wall() - 1000, log.clock.wall(), 0)
    begin(parts, mode=DrainMode.EXPIRY)
    assert report_on(parts)["eta_seconds"] == pytest.approx(950, abs=100)
