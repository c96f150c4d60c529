"""Which segments get a checksum in the background, without a kernel."""

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import xxhash
from support.checksums import LONG_AGO_NS, is_valid, recorded
from support.clocks import SetClock
from support.pooled import PATIENT, Parts, make, name_of, open_parts, place, segment
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.integrity import checksums
from commitlogfs.fusefs.integrity.checksums import Checksums, _Worker
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store import layout
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files.hashing import SegmentHash
from commitlogfs.store.pool.catalog import NEWEST_KEPT
from commitlogfs.store.scrub.verdict import Kind, format_verdict, whole_verdict
from commitlogfs.store.timing import ChecksumTiming

COUNT = 9
SEALED = COUNT - NEWEST_KEPT
FIRST, SECOND = DiskNumber(1), DiskNumber(2)
EAGER = ChecksumTiming(start_s=0.0, look_s=0.02)


@contextmanager
def nine_segments(workdir: Path, times: ChecksumTiming) -> Iterator[Parts]:
    """In turn on three disks."""
    with open_parts(workdir, clock=SetClock(), timing=replace(PATIENT, checksums=times)) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
            place(parts, index).write_bytes(bytes([index]) * 4096)
            os.utime(place(parts, index), ns=(LONG_AGO_NS, LONG_AGO_NS + index))
            trio.run(parts.attributes.refresh, segment(parts, index))
        yield parts


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    with nine_segments(workdir, EAGER) as parts:
        yield parts


class WatchedChecksums(Checksums):
    """Records the disks on which nothing is left to do for the moment."""

    idle: set[DiskNumber]

    async def _step(self, worker: _Worker) -> float:
        pause_s = await super()._step(worker)
        if pause_s == EAGER.look_s:
            self.idle.add(worker.disk.number)
        return pause_s


class Background:
    """The computation, as while a daemon serves."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.busy: set[DiskNumber] = set()
        self.written_to: set[bytes] = set()
        self.lacking: set[bytes] = set()
        self.checksums = WatchedChecksums(
            parts.commitlog,
            parts.threads,
            SilentObserver(),
            parts.verdicts,
            lambda number: number in self.busy,
            lambda file: file.name in self.written_to,
            lambda file: file.name in self.lacking,
            parts.attributes.refresh,
        )

    def require(
        self,
        expected: set[int],
        has_worked: Callable[[], bool] = lambda: True,
        meanwhile: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        """Serve until exactly these segments have a checksum of their content, no disk has anything to do, and
        `has_worked`; then a little longer."""
        self.checksums.idle = set()

        def is_done() -> bool:
            is_idle = self.checksums.idle == set(self.parts.commitlog.disks)
            counts = self.checksums.counts()
            is_counted = counts.present == len(expected) and not counts.unread
            return self._having() == expected and is_counted and is_idle and has_worked()

        async def serve() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.checksums.run)
                nursery.start_soon(meanwhile)
                await until(is_done)
                await trio.sleep(0.1)  # an opportunity to compute one too many
                nursery.cancel_scope.cancel()

        trio.run(serve)
        assert self._having() == expected
        for index in expected:
            found = recorded(place(self.parts, index))
            assert found is not None
            assert found.digest == xxhash.xxh3_128(bytes([index]) * 4096).digest()
        assert self.checksums.counts().present == len(expected)

    def _having(self) -> set[int]:
        return {index for index in range(COUNT) if is_valid(place(self.parts, index))}


def on_disk(parts: Parts, number: DiskNumber) -> set[int]:
    return {index for index in range(SEALED) if segment(parts, index).disk == number}


def test_all_but_the_newest(parts: Parts) -> None:
    background = Background(parts)
    assert background.checksums.counts() == checksums.ChecksumCounts(0, 0, SEALED, 0)
    background.require(set(range(SEALED)))
    assert background.checksums.counts() == checksums.ChecksumCounts(SEALED, 0, 0, 0)
    assert parts.commitlog.counters.checksums == SEALED


def test_those_of_a_former_daemon_are_found(parts: Parts) -> None:
    Background(parts).require(set(range(SEALED)))
    for index in range(SEALED):
        parts.commitlog.catalog.record_checksum(segment(parts, index), is_valid=False)
    Background(parts).require(set(range(SEALED)))
    assert parts.commitlog.counters.checksums == SEALED


def test_a_move_comes_first(parts: Parts) -> None:
    background = Background(parts)
    background.busy = {FIRST}
    background.require(set(range(SEALED)) - on_disk(parts, FIRST))
    assert background.checksums.counts().absent == len(on_disk(parts, FIRST))
    background.busy = set()
    background.require(set(range(SEALED)))


def test_a_segment_that_is_appended_to_gets_none(parts: Parts) -> None:
    background = Background(parts)
    background.written_to = {name_of(2)}
    background.require(set(range(SEALED)) - {2})


def test_one_whose_disk_lacks_writes_gets_none_before_its_verdict_is_cleared(parts: Parts) -> None:
    """Memory has them, so the checksum would be that of another content."""
    background = Background(parts)
    background.lacking = {name_of(2)}
    background.require(set(range(SEALED)) - {2})
    background.lacking = set()
    background.require(set(range(SEALED)))


def test_read_only_suspected_and_failing_disks_are_left_alone(parts: Parts) -> None:
    disks = parts.commitlog.disks
    disks[FIRST].state = DiskState.RO
    parts.commitlog.admission.record_trouble(SECOND, DiskFailedError("disk2", "test"), time.monotonic())
    assert disks[SECOND].is_troubled
    Background(parts).require(on_disk(parts, DiskNumber(3)))


def test_a_segment_with_an_unreadable_part_gets_none(parts: Parts) -> None:
    os.setxattr(place(parts, 3), layout.XATTR_UNREADABLE, b"[[0,4096]]")
    Background(parts).require(set(range(SEALED)) - {3})


def touch(parts: Parts, index: int) -> None:
    """Change its mtime, which makes its checksum one of a former state."""
    os.utime(place(parts, index), ns=(LONG_AGO_NS, LONG_AGO_NS - 5))
    trio.run(parts.attributes.refresh, segment(parts, index))


def digest_of(parts: Parts, index: int) -> bytes:
    found = recorded(place(parts, index))
    assert found is not None
    return found.digest


def damage(parts: Parts, index: int) -> bytes:
    """Change the content and the mtime of a segment. Returns its checksum, which is the one from before."""
    place(parts, index).write_bytes(b"\xff" * 4096)
    touch(parts, index)
    return digest_of(parts, index)


NOT_AS_SEALED = [kind for kind in Kind if kind is not Kind.WRITTEN_BROKEN]


@pytest.mark.parametrize("kind", NOT_AS_SEALED)
@pytest.mark.parametrize("knows", ["daemon", "file"])
def test_a_damaged_segment_keeps_the_one_from_before(parts: Parts, kind: Kind, knows: str) -> None:
    """The daemon may not have read the record of the verdict yet, or may have a disk that cannot record it."""
    background = Background(parts)
    background.require(set(range(SEALED)))
    before, verdict = damage(parts, 2), whole_verdict(kind, 4096, 1)
    if knows == "daemon":
        parts.verdicts.record(segment(parts, 2), verdict)
    else:
        os.setxattr(place(parts, 2), layout.XATTR_VERDICT, format_verdict(verdict))
    # It counts for the present state if it was valid when the damage was found.
    background.require(set(range(SEALED)) - (set() if kind.is_mismatch else {2}))
    assert digest_of(parts, 2) == before


@pytest.mark.parametrize("kind", NOT_AS_SEALED)
@pytest.mark.parametrize("more", ["daemon", "file"])
def test_daemon_and_file_may_each_know_more(parts: Parts, kind: Kind, more: str) -> None:
    """The other one has found only that a message is damaged."""
    background = Background(parts)
    background.require(set(range(SEALED)))
    before, verdict = damage(parts, 2), whole_verdict(kind, 4096, 1)
    broken = whole_verdict(Kind.WRITTEN_BROKEN, 4096, 2)
    known, recorded = (verdict, broken) if more == "daemon" else (broken, verdict)
    parts.verdicts.record(segment(parts, 2), known)
    os.setxattr(place(parts, 2), layout.XATTR_VERDICT, format_verdict(recorded))
    background.require(set(range(SEALED)) - (set() if kind.is_mismatch else {2}))
    assert digest_of(parts, 2) == before


def test_a_damaged_segment_that_never_had_one_gets_none(parts: Parts) -> None:
    parts.verdicts.record(segment(parts, 2), whole_verdict(Kind.ROTTED, 4096, 1))
    Background(parts).require(set(range(SEALED)) - {2})
    assert recorded(place(parts, 2)) is None


@pytest.mark.parametrize("kind", [Kind.UNREADABLE, Kind.ROTTED])
def test_damaged_segments_that_lack_one_are_not_tried_again_and_again(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Each attempt would keep the older segments of its disk from theirs."""
    tried, compute = list[bytes](), _Worker.compute

    def count(worker: _Worker, job: checksums._Job) -> Any:
        tried.append(job.segment.name)
        return compute(worker, job)

    monkeypatch.setattr(_Worker, "compute", count)
    damaged = [name_of(index) for index in (3, 4)]
    with nine_segments(workdir, replace(EAGER, changed_retry_s=0.02)) as parts:
        for index in (3, 4):
            parts.verdicts.record(segment(parts, index), whole_verdict(kind, 4096, 1))
        Background(parts).require(set(range(SEALED)) - {3, 4})
    assert sorted(name for name in tried if name in damaged) == (damaged if kind.is_mismatch else [])


@pytest.mark.parametrize("kind", [Kind.UNREADABLE, Kind.ROTTED])
def test_one_without_gets_one_as_soon_as_its_verdict_is_cleared(parts: Parts, kind: Kind) -> None:
    background = Background(parts)
    parts.verdicts.record(segment(parts, 2), whole_verdict(kind, 4096, 1))
    background.require(set(range(SEALED)) - {2})
    assert trio.run(parts.verdicts.clear, segment(parts, 2))
    background.require(set(range(SEALED)))


@pytest.mark.parametrize("verdict", [b"\xff", b""])
def test_one_with_a_verdict_that_cannot_be_read_keeps_it_too(parts: Parts, verdict: bytes) -> None:
    background = Background(parts)
    background.require(set(range(SEALED)))
    before = damage(parts, 2)
    os.setxattr(place(parts, 2), layout.XATTR_VERDICT, verdict)
    background.require(set(range(SEALED)) - {2})
    assert digest_of(parts, 2) == before


def test_a_segment_that_was_written_broken_gets_one(parts: Parts) -> None:
    background = Background(parts)
    background.require(set(range(SEALED)))
    touch(parts, 2)
    verdict = whole_verdict(Kind.WRITTEN_BROKEN, 4096, 1)
    parts.verdicts.record(segment(parts, 2), verdict)
    os.setxattr(place(parts, 2), layout.XATTR_VERDICT, format_verdict(verdict))
    background.require(set(range(SEALED)))


@pytest.mark.parametrize("knows", ["daemon", "file"])
def test_a_verdict_while_it_is_computed_counts(parts: Parts, monkeypatch: pytest.MonkeyPatch, knows: str) -> None:
    background = Background(parts)
    background.require(set(range(SEALED)))
    before, verdict = damage(parts, 2), whole_verdict(Kind.ROTTED, 4096, 1)
    read_chunk, has_begun, may_continue = SegmentHash.read_chunk, threading.Event(), threading.Event()

    def read_late(hashing: SegmentHash) -> int:
        has_begun.set()
        assert may_continue.wait(PATIENCE_S)
        return read_chunk(hashing)

    async def find_damage() -> None:
        await until(has_begun.is_set)
        if knows == "daemon":
            job = background.checksums._workers[segment(parts, 2).disk].job
            assert job is not None
            parts.verdicts.record(segment(parts, 2), verdict)
            await until(job.stopped.is_set)
        else:
            os.setxattr(place(parts, 2), layout.XATTR_VERDICT, format_verdict(verdict))
        may_continue.set()

    monkeypatch.setattr(SegmentHash, "read_chunk", read_late)
    if knows == "daemon":  # which binds the one from before; after a change of the file, it waits first
        background.require(set(range(SEALED)), lambda: is_valid(place(parts, 2)), find_damage)
    else:
        background.require(set(range(SEALED)) - {2}, may_continue.is_set, find_damage)
    assert digest_of(parts, 2) == before


@pytest.mark.parametrize("size", [2048, 5000])
def test_a_file_of_another_size_gets_none(parts: Parts, size: int) -> None:
    """The one from before shows which copy is right. What was appended is cut off, and then it gets another one."""
    background = Background(parts)
    background.require(set(range(SEALED)))
    before = digest_of(parts, 2)
    parts.commitlog.catalog.record_checksum(segment(parts, 2), is_valid=False)
    os.truncate(place(parts, 2), size)
    background.require(
        set(range(SEALED)) - {2},
        lambda: place(parts, 2).stat().st_size == segment(parts, 2).size == min(size, 4096),
    )
    assert digest_of(parts, 2) == before


@pytest.mark.parametrize("size", [2048, 5000])
def test_a_sweep_finds_files_of_another_size(parts: Parts, size: int) -> None:
    """And cuts off what was appended."""
    background = Background(parts)
    background.require(set(range(SEALED)))
    os.truncate(place(parts, 2), size)
    clock = parts.commitlog.clock
    assert isinstance(clock, SetClock)
    clock.ahead_s += EAGER.sweep_s
    background.require(
        set(range(SEALED)) - {2},
        lambda: place(parts, 2).stat().st_size == segment(parts, 2).size == min(size, 4096),
    )


def test_a_segment_that_is_about_to_expire_gets_none(parts: Parts) -> None:
    removed_s = LONG_AGO_NS / 1e9 - 1000
    parts.commitlog.removals.record(removed_s, time.time() - 1000, 0)
    Background(parts).require(set())


def test_a_recently_changed_segment_waits(workdir: Path) -> None:
    with nine_segments(workdir, replace(EAGER, at_rest_s=3600.0)) as parts:
        place(parts, 4).touch()
        Background(parts).require(set(range(SEALED)) - {4})


def test_a_refused_attribute_is_not_tried_all_the_time(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def refuse(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "setxattr", refuse)
        Background(parts).require(set(), lambda: attempts > 0)
    assert 0 < attempts <= SEALED


def test_a_sweep_finds_changed_segments(parts: Parts) -> None:
    background = Background(parts)
    background.require(set(range(SEALED)))
    os.utime(place(parts, 1), ns=(LONG_AGO_NS, LONG_AGO_NS - 5))
    assert not is_valid(place(parts, 1))
    clock = parts.commitlog.clock
    assert isinstance(clock, SetClock)
    clock.ahead_s += EAGER.sweep_s
    background.require(set(range(SEALED)))
