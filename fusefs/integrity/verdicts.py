"""Verdicts on damaged segments: the files record them (store/scrub/recorded.py), here they are known.

Those of former daemons are found by fusefs/integrity/recorded.py.

A verdict stays until it is cleared, or its file has left the log. It is known at once, and each disk has a task
that records it. While that cannot be done, because the disk is full or read-only, only this daemon knows it: so
the scrub records no position past such a segment, and the next daemon finds it again. The damaged file of a
repaired segment keeps its own, in case it becomes the segment again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.lost_writes import LostWrite
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.recorded import remove_verdict, write_verdict
from commitlogfs.store.scrub.verdict import Kind, Verdict, combine, whole_verdict
from commitlogfs.store.segment import BaseOffset

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    verdict: Verdict
    files: tuple[Segment, ...]
    """The file, or all that the segment had since, because it was moved: a move can be undone."""
    recorded: list[Segment]
    """Those of the files that record the present verdict."""
    reported: str = ""
    """The last reason for which it could not be recorded."""


class Verdicts:
    """All calls come from the event loop."""

    def __init__(self, commitlog: CommitLog, threads: DiskThreads, is_in_flight: Callable[[bytes], bool]) -> None:
        """`is_in_flight` returns whether the name of a segment is changed now: its copy may get it."""
        self._is_in_flight = is_in_flight
        self._commitlog = commitlog
        self._timing = commitlog.timing.verdicts
        self._threads = threads
        self._known: dict[BaseOffset, _Known] = {}
        self._replaced: dict[tuple[DiskNumber, int], tuple[Segment, Verdict]] = {}
        """Damaged files of repaired segments, and sources of moves of former daemons, by disk and inode."""
        self._to_find = {number: trio.Event() for number in commitlog.disks}
        self._changed = {number: trio.Event() for number in commitlog.disks}
        self._locks = {number: trio.Lock() for number in commitlog.disks}
        """Held while a disk writes or removes a verdict."""

    async def run(self) -> None:
        """Record what is new, until cancelled. Each disk has its own task, so one that hangs delays only itself."""
        async with trio.open_nursery() as nursery:
            for number in self._locks:
                nursery.start_soon(self._run_on, number)

    async def _run_on(self, disk: DiskNumber) -> None:
        while True:
            changed = self._changed[disk]
            await self._record_all(disk)
            with trio.move_on_after(self._timing.retry_s):
                await changed.wait()

    async def _record_all(self, disk: DiskNumber) -> None:
        for segment in self.unrecorded_on(disk):
            await self.record_on_disk(segment)

    async def finish(self) -> None:
        """At the end of the daemon: returns when each disk has recorded what is new, or cannot."""
        async with trio.open_nursery() as nursery:
            for number, disk in self._commitlog.disks.items():
                if not disk.is_unresponsive:  # its lock may be held as long as it hangs
                    nursery.start_soon(self._record_all, number)

    def _wake(self, disk: DiskNumber) -> None:
        self._changed[disk].set()
        self._changed[disk] = trio.Event()

    async def await_loaded(self) -> None:
        """Wait until the verdicts of former daemons are known, but not for long."""
        with trio.move_on_after(self._timing.load_s):
            for found in self._to_find.values():
                await found.wait()

    def record_loaded(self, disk: DiskNumber) -> None:
        """The records of all files of a disk have been read."""
        self._to_find[disk].set()

    def not_loaded(self) -> list[DiskNumber]:
        """The disks of which not all records could be read yet."""
        return [number for number, found in self._to_find.items() if not found.is_set()]

    def present(self) -> list[tuple[Segment, Verdict]]:
        """The damaged segments of the log, in ascending order."""
        self._take_back()
        found = []
        for base_offset, known in sorted(self._known.items()):
            segment = self._commitlog.catalog.get(base_offset)
            if segment is None or segment not in known.files:
                del self._known[base_offset]
            else:
                found.append((segment, known.verdict))
        return found

    def verdict_on(self, segment: Segment) -> Verdict | None:
        """The verdict on a segment of the log; None without one, as far as is known."""
        known = self._known.get(segment.base_offset)
        return known.verdict if known is not None and segment in known.files else None

    def is_recorded(self, segment: Segment) -> bool:
        """Whether the file of a damaged segment of the log records its verdict: another daemon will know it."""
        known = self._known.get(segment.base_offset)
        return known is not None and segment in known.recorded

    def unrecorded_on(self, disk: DiskNumber) -> list[Segment]:
        """The damaged segments on a disk whose verdicts only this daemon knows, in ascending order."""
        damaged = [segment for segment, _ in self.present()]
        return [segment for segment in damaged if segment.disk == disk and not self.is_recorded(segment)]

    def kind_of(self, segment: Segment) -> Kind | None:
        """How a segment of the log is damaged; None if it is not, as far as is known."""
        verdict = self.verdict_on(segment)
        return None if verdict is None else verdict.kind

    def replaced(self) -> list[tuple[Segment, Verdict | None]]:
        """The damaged files of repaired segments that are kept; None if the verdict is not known any more."""
        files = self._commitlog.others.set_aside()
        known = {key: verdict for key, (file, verdict) in self._replaced.items() if file in files}
        return [(file, known.get((file.disk, file.ino))) for file in files]

    def lost_writes(self) -> dict[DiskNumber, tuple[LostWrite, ...]]:
        """The writes that disks have lost, of the disks that have lost some. No move takes such a segment from its
        disk."""
        found: dict[DiskNumber, tuple[LostWrite, ...]] = {}
        for segment, verdict in self.present():
            if verdict.kind is Kind.WRITE_LOST:
                ranges = verdict.ranges if verdict.is_located else ()
                lost = LostWrite(segment.base_offset, verdict.since_s, ranges)
                found[segment.disk] = (*found.get(segment.disk, ()), lost)
        return found

    def record(self, segment: Segment, verdict: Verdict) -> bool:
        """A segment of the log is damaged. Returns whether that says more than what is known."""
        before = self._known.get(segment.base_offset)
        if before is not None and segment not in before.files:
            before = None
        combined = combine(None if before is None else before.verdict, verdict)
        if before is not None and combined == before.verdict:
            return False
        files = (segment,) if before is None else before.files
        self._known[segment.base_offset] = _Known(combined, files, [])
        self._wake(segment.disk)
        if before is None or before.verdict.kind is not combined.kind:
            self._commitlog.counters.damaged[combined.kind.value] += 1
        log_event(
            log,
            logging.ERROR,
            "segment_damaged",
            segment=segment.name,
            disk=self._commitlog.disk_of(segment).path,
            kind=combined.kind.value,
            begin=segment.base_offset + combined.ranges[0].begin,
            end=segment.base_offset + combined.ranges[-1].end,
            messages=combined.message_count or None,
        )
        return True

    def record_rotten(self, segment: Segment) -> None:
        """The content of a segment of the log differs from its checksum."""
        self._commitlog.counters.checksum_mismatches += 1
        now_s = round(self._commitlog.clock.wall())
        self.record(segment, whole_verdict(Kind.ROTTED, segment.size, now_s))

    async def record_on_disk(self, segment: Segment) -> None:
        """Record the verdict on a segment with its file now, if there is one that is not recorded. It is tried
        again later if that fails."""
        disk = self._commitlog.disk_of(segment)
        async with self._locks[disk.number]:
            known = self._known.get(segment.base_offset)
            if known is None or segment in known.recorded or disk.forbids_writes or disk.is_unresponsive:
                return
            verdict = known.verdict
            write = partial(write_verdict, disk.dirfd, segment.name, segment.ino, verdict)
            try:
                recorded = await self._threads.run_within(disk.number, self._timing.record_s, write)
            except (OSError, TimeoutError) as error:
                self._report_unrecorded(segment, known, str(error))
                return
            if known.verdict is verdict:  # otherwise more is known by now, and is recorded next
                known.recorded = [segment, *known.recorded] if recorded == verdict else [segment]
                known.verdict = recorded

    def record_found(self, segment: Segment, verdict: Verdict, *, is_recorded: bool = True) -> None:
        """A former daemon has found this on a segment. `is_recorded`: the file records it."""
        known = self._known.get(segment.base_offset)
        if known is None or segment not in known.files:
            self._known[segment.base_offset] = _Known(verdict, (segment,), [segment] if is_recorded else [])
        else:  # this daemon has found the damage again
            known.verdict, known.recorded = combine(verdict, known.verdict), []
        self._wake(segment.disk)

    def record_replaced(self, file: Segment, verdict: Verdict) -> None:
        """A former daemon has found this on a file in whose place a segment is, and which may become it again."""
        self._replaced[file.disk, file.ino] = file, verdict

    def record_moved(self, file: Segment, copy: Segment) -> None:
        """The copy is the segment from now on."""
        known = self._known.get(file.base_offset)
        if known is not None and file in known.files:
            known.files = (*known.files, copy)
            self._wake(copy.disk)

    def record_repaired(self, file: Segment) -> None:
        """A right copy has taken the place of a damaged file."""
        known = self._known.pop(file.base_offset, None)
        if known is not None and file in known.files:
            self.record_replaced(file, known.verdict)

    def _take_back(self) -> None:
        """Damaged files that have become segments again (fusefs/moves/sources.py) have their verdicts as such."""
        for key, (file, verdict) in tuple(self._replaced.items()):
            if self._is_present(file):
                known = self._known.get(file.base_offset)
                if known is not None and file in known.files:
                    verdict = combine(verdict, known.verdict)
                self._known[file.base_offset] = _Known(verdict, (file,), [])
                self._wake(file.disk)
            elif self._commitlog.others.get(*key) is file:
                continue
            del self._replaced[key]

    async def clear(self, segment: Segment) -> bool:
        """Remove the verdict on a segment. What was sealed is still asked of it: the next scrub finds it again if
        it differs from its checksum. Returns False if it could not be removed, or if the segment moves
        meanwhile: its copy has the verdict. A caller that is cancelled leaves the removal running."""
        return await AbandonableWork(partial(self._clear, segment)).wait()

    async def _clear(self, segment: Segment) -> bool:
        disk = self._commitlog.disk_of(segment)
        async with self._locks[disk.number]:
            reason = await self._remove(disk, segment)
            if not reason:
                self._known.pop(segment.base_offset, None)
        if reason:
            log_event(log, logging.WARNING, "verdict_kept", segment=segment.name, disk=disk.path, reason=reason)
            return False
        log_event(log, logging.WARNING, "verdict_cleared", segment=segment.name, disk=disk.path)
        return True

    async def _remove(self, disk: Disk, segment: Segment) -> str:
        """Why the segment keeps its verdict; empty if it has none any more."""
        if not self._is_settled(segment):
            return "it has moved, or left the log, or does so now"
        if disk.is_unresponsive:  # a thread would hold this daemon while it hangs
            return "its disk does not answer"
        kind = self.kind_of(segment)
        binds = kind is not None and kind.is_mismatch
        remove = partial(remove_verdict, disk.dirfd, segment.name, segment.ino, binds_checksum=binds)
        try:
            await self._threads.run_within(disk.number, self._timing.record_s, remove)
        except TimeoutError as error:
            self._forget_record(segment)  # the removal may still come
            return str(error)
        except OSError as error:
            return str(error)
        if self._is_settled(segment):
            return ""
        self._forget_record(segment)
        return "it moves, or has moved or left the log meanwhile"

    def _is_settled(self, segment: Segment) -> bool:
        """Whether no other file is the segment, or becomes it now."""
        return self._is_present(segment) and not self._is_in_flight(segment.name)

    def _is_present(self, segment: Segment) -> bool:
        return self._commitlog.catalog.holds(segment)

    def _forget_record(self, file: Segment) -> None:
        """It is not known any more whether a file records the verdict on its segment."""
        known = self._known.get(file.base_offset)
        if known is not None and file in known.recorded:
            known.recorded.remove(file)
            self._wake(file.disk)

    def _report_unrecorded(self, segment: Segment, known: _Known, reason: str) -> None:
        if reason != known.reported:
            known.reported = reason
            disk = self._commitlog.disk_of(segment).path
            log_event(log, logging.WARNING, "verdict_not_recorded", segment=segment.name, disk=disk, reason=reason)
