"""The control verbs that change disks, without a kernel."""

import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.pooled import PATIENT, SIZE, Parts, make, open_parts, place
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.disks.disk_checks import DiskChecks
from commitlogfs.fusefs.moves.mover import Progress
from commitlogfs.mount.daemon.disk_changes import DiskChanges
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.hand_over import HandOver
from commitlogfs.mount.daemon.rebalance_changes import RebalanceChanges
from commitlogfs.mount.location.control_socket import Reply
from commitlogfs.mount.status.document import StatusReport
from commitlogfs.store.disks.membership import Cordon, DiskNumber, Drain, DrainMode, Rebalance, RebalanceMode
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.moves.copy import SegmentCopy
from commitlogfs.store.timing import ChecksumTiming, DaemonTiming, Pace, ScrubTiming

COUNT = 12
LEAVING = DiskNumber(1)
FAST = 10**9
"""Bytes per second: without a rate, a busy machine lets a drain wait."""
NEVER_S = 1e6
RESTING = replace(
    PATIENT,
    pace=Pace(idle_share=1e-9, smallest_share=1e-9, look_s=NEVER_S),
    checksums=ChecksumTiming(start_s=0.0, look_s=0.01, at_rest_s=0.0),
    scrub=ScrubTiming(start_s=0.0, look_s=0.01),
    daemon=DaemonTiming(free_s=NEVER_S),
)
"""After a first piece, background work rests with the next file open, and does not look whether it is to end."""


async def _computes_checksums(parts: Parts) -> Callable[[], bool]:
    return lambda: parts.checksums.counts().computing == len(parts.commitlog.disks)


async def _scrubs(parts: Parts) -> Callable[[], bool]:
    await parts.scrub.begin(0, follows_chains=False)
    return lambda: all(figures.segment for figures in parts.scrub.figures().values())


Begin = Callable[[Parts], Awaitable[Callable[[], bool]]]
"""Begins some work; the result returns whether each disk has a file open for it."""


async def _answer_after_drain(parts: Parts, begin: Begin | None = None) -> dict[str, Any]:
    """The answer to `disk-leave`, as soon as the disk has no segment of the log any more."""
    log = parts.commitlog
    for file in log.catalog:
        await parts.attributes.refresh(file)
    async with trio.open_nursery() as nursery:
        parts.start(nursery, is_successor=False)
        if begin is not None:
            await until(await begin(parts))
        await _drain(parts)
        answer = await DiskChanges(parts, FormerDaemons()).verbs()["disk-leave"]({"disk": str(LEAVING)})
        nursery.cancel_scope.cancel()
    assert isinstance(answer, dict)
    return answer


async def _drain(parts: Parts) -> None:
    log = parts.commitlog
    log.record_membership(log.membership.draining(LEAVING, Drain(1, DrainMode.COPY, FAST)))
    for index in range(COUNT, COUNT + 3):  # the newest are not moved
        await make(parts, index)
    await until(lambda: not log.catalog.count_on_disk(LEAVING))


@pytest.mark.parametrize("begin", [_computes_checksums, _scrubs])
def test_a_disk_leaves_although_background_work_reads_a_moved_file(workdir: Path, begin: Begin) -> None:
    """It is no user whose process `disk safe-to-remove` could name."""
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            for index in range(COUNT):
                await make(parts, index)
            return await _answer_after_drain(parts, begin)

        assert "refused" not in trio.run(task)
        assert not [file for file in parts.commitlog.others if file.disk == LEAVING]


class CheckUnderWay(DiskChecks):
    """Its child process has a segment open."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)

    async def run(self, delay_s: float = 0.0) -> None:
        await trio.sleep_forever()

    async def finish(self, disk: DiskNumber) -> None:
        assert disk == LEAVING
        os.close(self._fd)


def test_a_disk_leaves_although_a_check_has_just_read_a_moved_file(workdir: Path) -> None:
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            for index in range(COUNT):
                await make(parts, index)
            parts.disk_checks = CheckUnderWay(place(parts, 0))
            return await _answer_after_drain(parts)

        assert "refused" not in trio.run(task)


def test_a_disk_whose_file_is_open_in_the_mount_is_refused_at_once(workdir: Path) -> None:
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            await make(parts, 0, close=False)
            os.truncate(place(parts, 0), SIZE)
            for index in range(1, COUNT):
                await make(parts, index)
            return await _answer_after_drain(parts)

        assert "1 moved segment still open" in trio.run(task)["refused"]


def test_a_disk_reports_the_segment_that_is_copied_to_it(workdir: Path) -> None:
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            parts.mover.progress = Progress(b"%020d" % 0, SIZE, DiskNumber(2), LEAVING)
            answer = await DiskChanges(parts, FormerDaemons()).verbs()["disk-content"]({"disk": str(LEAVING)})
            assert isinstance(answer, dict)
            return answer

        answer = trio.run(task)
        assert (answer["arriving"], answer["takes_segments"]) == (f"{0:020d}", True)


def test_a_drain_is_cancelled_when_no_segment_moves_any_more(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the disk has just been asked to give a copy its name."""
    publish, asked, go_on = SegmentCopy.publish, threading.Event(), threading.Event()

    def waiting(copy: SegmentCopy, name: bytes) -> Published:
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return publish(copy, name)

    monkeypatch.setattr(SegmentCopy, "publish", waiting)
    with open_parts(workdir, timing=RESTING) as parts:
        log = parts.commitlog
        answers: list[int] = []

        async def cancel() -> None:
            answer = await DiskChanges(parts, FormerDaemons()).verbs()["disk-cancel"]({"disk": str(LEAVING)})
            assert isinstance(answer, dict)
            answers.append(answer["segments"])

        async def task() -> None:
            for index in range(COUNT):
                await make(parts, index)
            for file in log.catalog:
                await parts.attributes.refresh(file)
            log.record_membership(log.membership.draining(LEAVING, Drain(1, DrainMode.COPY, FAST)))
            async with trio.open_nursery() as running:
                running.start_soon(parts.member_records.run)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(parts.drains._move_next)
                    await until(asked.is_set)
                    nursery.start_soon(cancel)
                    await until(lambda: not log.lagging())
                    await trio.testing.wait_all_tasks_blocked()
                    assert not answers
                    go_on.set()
                running.cancel_scope.cancel()

        trio.run(task)
        assert answers == [log.catalog.count_on_disk(LEAVING)]


def _cancel_drain(parts: Parts) -> Awaitable[Any]:
    parts.commitlog.record_membership(parts.commitlog.membership.draining(LEAVING, Drain(1, DrainMode.COPY)))
    return DiskChanges(parts, FormerDaemons()).verbs()["disk-cancel"]({"disk": str(LEAVING)})


def _cancel_rebalance(parts: Parts) -> Awaitable[Any]:
    commitlog = parts.commitlog
    commitlog.record_membership(commitlog.membership.rebalancing(Rebalance(1, RebalanceMode.COPY, FAST)))
    report = StatusReport.__new__(StatusReport)  # a cancellation asks for none
    return RebalanceChanges(parts, report).verbs()["rebalance-cancel"]({})


@pytest.mark.parametrize(
    ("cancel", "event"), [(_cancel_drain, "drain_ended"), (_cancel_rebalance, "rebalance_cancelled")]
)
def test_a_cancellation_is_logged_although_a_disk_delays_its_answer(
    workdir: Path, caplog: pytest.LogCaptureFixture, cancel: Callable[[Parts], Awaitable[Any]], event: str
) -> None:
    """The order has taken effect, and its peer may wait no longer."""

    def is_logged() -> bool:
        return event in {record.__dict__.get("event") for record in caplog.records}

    async def task(parts: Parts) -> None:
        answers: list[dict[str, Any]] = []

        async def answer() -> None:
            answers.append(await cancel(parts))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.member_records.run)
            async with trio.open_nursery() as asking, parts.changes.lock:
                asking.start_soon(answer)
                await until(is_logged)
                assert not answers
            assert [one["changed"] for one in answers] == [True]
            nursery.cancel_scope.cancel()

    with open_parts(workdir) as parts, caplog.at_level("INFO"):
        trio.run(task, parts)


def test_no_change_begins_without_time_for_its_record(workdir: Path) -> None:
    """Its peer would give up, and report an error for what has been recorded."""
    late_s = PATIENT.members.record_s / 2
    with open_parts(workdir) as parts:

        async def task() -> dict[str, Any]:
            await parts.usage.refresh(0.0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(parts.member_records.run)
                with trio.fail_after(late_s):
                    answer = await _ask(parts, "disk-cordon", disk=str(LEAVING))
                nursery.cancel_scope.cancel()
            return answer

        before = parts.commitlog.membership
        answer = trio.run(task, clock=trio.testing.MockClock())
        assert answer.get("refused", "").endswith("nothing has changed; repeat the command")
        assert parts.commitlog.membership == before


# --- beside a disk that hangs ----------------------------------------------------------------------------

HUNG = DiskNumber(2)


async def _ask(parts: Parts, verb: str, **request: Any) -> dict[str, Any]:
    answer = await DiskChanges(parts, FormerDaemons()).verbs()[verb](request)
    assert isinstance(answer, dict)
    return answer


def _hang(parts: Parts) -> None:
    """A check of the disk has no answer."""
    parts.commitlog.disks[HUNG].is_unresponsive = True


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("verb", "disk"),
    [
        ("disk-prepare", ""),
        ("disk-leave", "1"),
        ("disk-offline", "1"),
        ("disk-offline", "2"),
        ("disk-give-up", "1"),
        ("disk-give-up", "2"),
    ],
)
def test_nothing_that_needs_a_hand_over_is_recorded_beside_a_disk_that_hangs(
    workdir: Path, verb: str, disk: str, dry_run: bool
) -> None:
    new = workdir / "new"
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            for index in range(COUNT):
                await make(parts, index)
            parts.commitlog.disks[LEAVING].is_failing = verb == "disk-give-up"
            _hang(parts)
            return await _ask(parts, verb, disk=disk, directory=str(new), dry_run=dry_run)

        before = parts.commitlog.membership
        assert trio.run(task)["refused"].startswith(f"{parts.directories[HUNG - 1]}: does not answer this daemon")
        assert parts.commitlog.membership == before
        assert not new.exists()


@pytest.mark.parametrize(("cordon", "remedy"), [(None, "cordon it, and"), (Cordon(1), "`disk drain` it, and")])
def test_a_disk_that_works_is_not_lost(workdir: Path, cordon: Cordon | None, remedy: str) -> None:
    with open_parts(workdir, timing=RESTING) as parts:

        async def task() -> dict[str, Any]:
            await parts.usage.refresh(0.0)
            parts.commitlog.record_membership(parts.commitlog.membership.cordoned(LEAVING, cordon))
            return await _ask(parts, "disk-give-up", disk=str(LEAVING), dry_run=True)

        assert f"not lost; {remedy} remove it when it is empty" in trio.run(task)["refused"]


@pytest.mark.parametrize("force", [False, True])
def test_the_daemon_does_not_hand_over_beside_a_disk_that_hangs(workdir: Path, force: bool) -> None:
    """Unless it is forced: requests wait then, as the command says."""
    with open_parts(workdir, timing=RESTING) as parts:
        hand_over = HandOver(
            "/mnt", lambda: "", parts.disk_places.why_not_handed_over, lambda: None, DaemonTiming()
        )

        async def task() -> tuple[bool, str, str]:
            _hang(parts)
            planned = await hand_over.plan({"force": force})
            answer = await hand_over.answer({"force": force})
            reason = await hand_over.begin() if not force else ""
            return isinstance(answer, Reply), reason, planned.get("refused", "")

        begins, reason, planned_reason = trio.run(task)
        assert (begins, "does not answer this daemon" in reason) == (force, not force)
        assert planned_reason == reason
