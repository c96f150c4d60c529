"""One move: a segment gets a copy on another disk, and the copy becomes the segment (store/moves/copy.py). A
segment that is restored comes from outside the pool in the same way."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import trio

from commitlogfs.fusefs.disks.disk_threads import OUTSIDE, DiskThreads
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.integrity.scrub import Scrub
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.decisions import SILENT, Decisions
from commitlogfs.fusefs.moves.salvaged import Salvaged
from commitlogfs.fusefs.moves.sources import Sources
from commitlogfs.store.disks.disk import DiskState, translate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    DiskError,
    DiskFailedError,
    RottenSegmentError,
    SegmentChangedError,
    StoreError,
    UncertainPublishError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.moves import repair
from commitlogfs.store.moves.copy import CHUNK_BYTES, Restored, SegmentCopy, open_restored, open_source
from commitlogfs.store.moves.former import read_record
from commitlogfs.store.moves.mark import Source, read_mark, source_of
from commitlogfs.store.moves.throttle import Throttle, chunk_bytes
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.scrub.recorded import verdict_of_copy
from commitlogfs.store.scrub.verdict import kinds_of, parse_recorded, unreadable_verdict
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.slowness.load import THIS_MACHINE, Machine, MachineLoad

log = logging.getLogger(__name__)

T = TypeVar("T")


class MoveStoppedError(StoreError):
    """The drain has ended, or the segment has left the log. Nothing is left of the copy."""


class FormerFileError(StoreError):
    """A missing disk may have the file that this one was copied from."""

    def __init__(self, segment: bytes, disk: str) -> None:
        super().__init__(
            f"{segment.decode()}: {disk} is missing, and may have a former file of this segment; "
            "bring the disk back, or give it up"
        )
        self.disk = disk


class Cause(Enum):
    """Why a segment, or each segment of a disk, is not moved now (in words: mount/status/moves.py)."""

    DISK_KEEPS_ALL = auto()
    """Nothing can be removed there."""
    NAME_CHANGES = auto()
    FORMER_FILE = auto()
    MAY_LACK_WRITES = auto()
    IS_WRITTEN_TO = auto()
    NAME_UNCERTAIN = auto()
    EXPIRES_FIRST = auto()
    FAILED = auto()
    """The last attempt has failed, and it is not yet time for the next one."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    cause: Cause
    disk: str
    """Path of the disk on which its end depends."""
    segment: bytes | None = None
    """Name of the segment; None if it is the same for all segments there."""
    detail: str = ""
    """Why the former file is still there, or the error of the last attempt."""


@dataclass(slots=True)
class Progress:
    """A move under way."""

    name: bytes
    size: int
    source: DiskNumber
    """OUTSIDE for a restored segment."""
    target: DiskNumber
    phase: str = "copying"
    """Or "verifying"."""
    done_bytes: int = 0
    """In this phase."""
    ended: trio.Event = field(default_factory=trio.Event)
    """The files of this move are closed."""


class Mover:
    """Carries out one move at a time; another one waits."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        threads: DiskThreads,
        changes: NameChanges,
        handles: Handles,
        sources: Sources,
        salvaged: Salvaged,
        verdicts: Verdicts,
        may_lack_writes: Callable[[Segment], bool],
        invalidate_entry: Callable[[bytes, int], None],
        scrub: Callable[[], Scrub],
        decisions: Decisions = SILENT,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """`may_lack_writes` returns whether memory may have more of a segment than its disk. `invalidate_entry`: as
        for fusefs.files.removal. `scrub` returns the scrub, which gives way to the mover, and so is made later."""
        self._commitlog = commitlog
        self._timing = commitlog.timing.moves
        self._disks = disks
        self._threads = threads
        self._changes = changes
        self._handles = handles
        self._sources = sources
        self._salvaged = salvaged
        self._verdicts = verdicts
        self._may_lack_writes = may_lack_writes
        self._invalidate_entry = invalidate_entry
        self._scrub = scrub
        self._decisions = decisions
        self._one_at_a_time = trio.Lock()
        self._outside = DiskThreads([OUTSIDE])
        self._throttle = Throttle(commitlog.timing.pace)
        self._rate = 0
        self._load = MachineLoad(commitlog.timing.pace.load_s, machine)
        self._strays: dict[bytes, Source] = {}
        """Sources of copies that may have got their names on disks that failed then, by name."""
        self.progress: Progress | None = None

    async def move(
        self,
        file: Segment,
        target: DiskNumber,
        rate: Callable[[], int],
        is_wanted: Callable[[], bool],
        *,
        salvages: bool = False,
    ) -> None:
        """Move a sealed segment. `rate` returns the bytes per second that are allowed now, 0 for the default; once
        `is_wanted` returns False, the move ends within a second. It is called before each step, and under the lock
        of all names before the copy gets its name. `salvages`: as for SegmentCopy.

        Raises MoveStoppedError, FormerFileError, SegmentChangedError, SegmentUnreadableError, RottenSegmentError,
        VerificationError, DiskError, OSError; the segment stays where it is then.
        """

        def require_wanted() -> None:
            if not is_wanted() or not self.may_move(file) or not self._takes_segments(target):
                raise MoveStoppedError(f"{file.name.decode()}: its move was stopped")

        async with self._one_at_a_time:
            require_wanted()
            progress = Progress(file.name, file.size, file.disk, target)
            with self._counted(progress):
                common = await self._mark_to_hand_on(file, salvages=salvages)
                copy = await self._open_source(file, common, salvages=salvages)
                try:
                    copy.require_size(self._commitlog.segment_size)
                    await self._copy(copy, progress, rate, require_wanted)
                    await self._publish(copy, file, target, require_wanted)
                finally:
                    await self._close(copy.close, target)

    async def restore(
        self,
        base_offset: BaseOffset,
        source: int,
        restored: Restored,
        target: DiskNumber,
        rate: Callable[[], int],
        require_wanted: Callable[[], None],
        turn: trio.CancelScope,
    ) -> None:
        """Make a segment that is missing in the log from an open file, whose descriptor stays the caller's. `rate`
        as for `move`. `require_wanted` raises if the segment is not to be restored any more: it is called before
        each step, and under the lock of all names before the segment gets its name. Cancelling `turn` ends the wait
        for another move.

        Raises MoveStoppedError, SegmentChangedError, VerificationError, SegmentExistsError, DiskError, OSError, and
        as `require_wanted`; nothing has changed then.
        """
        name = format_segment_name(base_offset)

        def require_possible() -> None:
            require_wanted()
            self._require_takes_segments(name, target)

        async with self._turn(name, turn):
            require_possible()
            async with self._copied(name, source, restored, target, rate, require_possible) as copy:
                await self._publish_restored(copy, base_offset, target, require_possible)

    async def repair(
        self,
        file: Segment,
        source: int,
        digest: bytes,
        target: DiskNumber,
        rate: Callable[[], int],
        require_wanted: Callable[[], None],
        turn: trio.CancelScope,
    ) -> None:
        """Replace a damaged segment by an open file with this xxh3_128. The copy gets owner, mode and mtime of the
        damaged file, which is kept (store/moves/repair.py). The other parameters as for `restore`.

        Raises as `restore`, and FormerFileError; the segment stays as it is then.
        """

        def require_possible() -> None:
            require_wanted()
            self._require_takes_segments(file.name, target)
            if not self.may_replace(file):
                name = file.name.decode()
                raise MoveStoppedError(f"{name}: is moved or changed at this moment, or may be written to")

        async with self._turn(file.name, turn):
            require_possible()
            await self.require_only_file(file)
            dirfd = self._commitlog.disk_of(file).dirfd
            damaged = await self._step(partial(repair.examine, dirfd, file.name, file.ino), file.disk)
            found = damaged.attributes
            restored = Restored(
                Owner(found.uid, found.gid, found.mode),
                found.mtime_ns,
                digest,
                source_of(file.disk, found),
                is_unknown=damaged.is_restored,
            )
            async with self._copied(file.name, source, restored, target, rate, require_possible) as copy:
                await self._publish_repaired(copy, file, restored, target, require_possible)

    def _require_takes_segments(self, name: bytes, target: DiskNumber) -> None:
        if not self._takes_segments(target):
            raise MoveStoppedError(f"{name.decode()}: the disk that it was copied to takes no more segments")

    @contextlib.asynccontextmanager
    async def _turn(self, name: bytes, turn: trio.CancelScope) -> AsyncIterator[None]:
        """The turn of a restore or repair among the moves. Raises MoveStoppedError if `turn` is cancelled."""
        with turn:
            await self._one_at_a_time.acquire()
        if turn.cancelled_caught:
            raise MoveStoppedError(f"{name.decode()}: its restore was stopped")
        try:
            yield
        finally:
            self._one_at_a_time.release()

    @contextlib.asynccontextmanager
    async def _copied(
        self,
        name: bytes,
        source: int,
        restored: Restored,
        target: DiskNumber,
        rate: Callable[[], int],
        require_possible: Callable[[], None],
    ) -> AsyncIterator[SegmentCopy]:
        """A verified copy of an open file from outside the pool, without a name."""
        size = self._commitlog.segment_size
        progress = Progress(name, size, OUTSIDE, target)
        with self._counted(progress):
            copy = await self._step(partial(open_restored, source, size, restored), OUTSIDE, SegmentCopy.close)
            try:
                await self._copy(copy, progress, rate, require_possible)
                yield copy
            finally:
                await self._close(copy.close, target)

    async def close_outside(self, source: int) -> None:
        """Close a file from outside the pool. A filesystem that hangs does not stop the caller for good."""
        await self._close(partial(os.close, source), OUTSIDE)

    async def _close(self, close: Callable[[], None], disk: DiskNumber) -> None:
        """In a thread: a close may write something, or free the blocks of an unfinished copy."""
        threads = self._outside if disk == OUTSIDE else self._threads
        with trio.CancelScope(shield=True), contextlib.suppress(TimeoutError, OSError):
            await threads.run_within(disk, self._timing.close_s, close)

    @contextlib.contextmanager
    def _counted(self, progress: Progress) -> Iterator[None]:
        self.progress = progress
        try:
            yield
        except MoveStoppedError:
            raise
        except Exception as error:
            self._commitlog.counters.move_failures += 1
            disks = self._commitlog.disks
            source = "" if progress.source == OUTSIDE else disks[progress.source].path
            self._decisions.copy_failed(progress.name, source, disks[progress.target].path, str(error))
            raise
        finally:
            self.progress = None
            progress.ended.set()

    def may_move(self, file: Segment) -> bool:
        """Whether a segment is sealed, and nothing speaks against its move.

        A broker may write to the newest ones, and to those that were put back.
        """
        return self._commitlog.catalog.is_settled(file) and self.may_replace(file)

    def may_replace(self, file: Segment) -> bool:
        """The same for a segment whose file may have become too short."""
        return self._commitlog.catalog.is_sealed(file) and self.hindrance(file) is None

    def hindrance(self, file: Segment) -> Hindrance | None:
        """The reason why a sealed segment is neither moved nor replaced now; None if it may be."""
        name, path = file.name, self._commitlog.disk_of(file).path
        if self._changes.is_in_flight(name):
            return Hindrance(Cause.NAME_CHANGES, path, name)
        for source in self._commitlog.others.sources(file.base_offset):
            if source.role is Role.MOVED:  # only the mark of this file tells that the two are one segment
                disk, why_kept = self._commitlog.disk_of(source).path, self._sources.why_named(source)
                return Hindrance(Cause.FORMER_FILE, disk, name, why_kept)
        if self._may_lack_writes(file):  # the copy would have only what the disk has
            return Hindrance(Cause.MAY_LACK_WRITES, path, name)
        if self._sources.is_written_to(file):
            return Hindrance(Cause.IS_WRITTEN_TO, path, name)
        uncertain = self._commitlog.names.uncertain(name)
        if uncertain is not None:
            return Hindrance(Cause.NAME_UNCERTAIN, self._commitlog.disks[uncertain].path, name)
        return None

    def _takes_segments(self, target: DiskNumber) -> bool:
        """Whether a disk still may get segments: it may have been cordoned, or be about to leave the pool. No copy
        gets its name there then."""
        return self._commitlog.disks[target].intended_state is DiskState.RW

    def is_working_on(self, disk: DiskNumber) -> bool:
        """Whether a move reads from or writes to a disk now."""
        return self.progress is not None and disk in (self.progress.source, self.progress.target)

    async def finish_moves_from(self, disk: DiskNumber) -> None:
        """Return once no move from a disk is under way, which holds its source open until its end."""
        while self.progress is not None and self.progress.source == disk:
            await self.progress.ended.wait()

    async def remove_stray_copies(self) -> None:
        """Undo what a disk that failed has left half done, so that the segments concerned can be moved again."""
        for name, source in tuple(self._strays.items()):
            target = self._commitlog.names.uncertain(name)
            try:
                is_free = target is None or await self._disks[target].remove_stray_copy(name, source)
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "stray_copy", segment=name, reason=str(error))
                continue
            del self._strays[name]
            if is_free and target is not None:
                self._commitlog.names.record_denied(name)

    async def _mark_to_hand_on(self, file: Segment, *, salvages: bool) -> Source | None:
        """The mark of a file, if its copy gets the same one, because a missing disk may have the file from which
        this one was copied, or another copy of that. This one was not written to then, and its copy will be
        certainly equal. With `salvages`, another segment gets a copy with a mark of its own: a disk that is not
        taken back is better than a lost segment. Raises as `require_only_file`."""
        try:
            await self.require_only_file(file)
        except FormerFileError:
            dirfd = self._commitlog.disk_of(file).dirfd
            try:
                record = await self._step(partial(read_record, dirfd, file.name), file.disk)
            except DiskError:
                if salvages:
                    return None
                raise
            if record.is_as_marked and record.is_certain:
                return record.mark
            if not salvages:
                raise
        return None

    async def require_only_file(self, file: Segment) -> None:
        """A missing disk may have the file from which this one was copied, or another copy of that file. When the
        disk is back, only the mark of this file tells that the two are one segment. Raises FormerFileError, and
        OSError or DiskError if the mark cannot be read."""
        dirfd = self._commitlog.disk_of(file).dirfd
        mark = await self._step(partial(read_mark, dirfd, file.name, file.ino), file.disk)
        unserved = self._commitlog.unserved()
        if mark is None or not unserved:
            return
        of_source = [member for member in unserved if member.number == mark.disk]
        raise FormerFileError(file.name, (of_source or unserved)[0].path)

    async def _open_source(self, file: Segment, common: Source | None, *, salvages: bool) -> SegmentCopy:
        dirfd = self._commitlog.disk_of(file).dirfd
        known = self._verdicts.kind_of(file)

        def keeps_checksum(recorded: bytes) -> bool:
            return any(kind.keeps_checksum for kind in kinds_of(known, recorded))

        work = partial(
            open_source,
            dirfd,
            file.name,
            file.ino,
            salvages=salvages,
            keeps_checksum=keeps_checksum,
            common=common,
        )
        return await self._step(work, file.disk, SegmentCopy.close)

    async def _copy(
        self, copy: SegmentCopy, progress: Progress, rate: Callable[[], int], require_wanted: Callable[[], None]
    ) -> None:
        """Each call runs in a thread of the disk that it is for: one that hangs blocks no other."""
        source, target = progress.source, progress.target

        async def copy_chunk(most: int) -> int:
            count = await self._step(partial(copy.read_chunk, most), source)
            if count:
                await self._step(copy.write_chunk, target)
            return count

        async def verify_chunk(most: int) -> int:
            return await self._step(partial(copy.verify_chunk, most), target)

        await self._step(partial(copy.reserve, self._commitlog.disks[target].dirfd), target)
        devices = [self._commitlog.disks[disk].device for disk in (source, target) if disk != OUTSIDE]
        await self._repeat(copy_chunk, rate, require_wanted, devices)
        try:
            await self._step(copy.require_unchanged, source)
        except RottenSegmentError as error:
            path = self._commitlog.disks[source].path
            log_event(log, logging.ERROR, "checksum_mismatch", segment=progress.name, disk=path)
            self._record_rotten(progress.name)
            raise RottenSegmentError(f"{progress.name.decode()}: {error}") from error
        size = self._commitlog.segment_size
        now_s = self._commitlog.clock.wall()
        add_to_verdict = partial(verdict_of_copy, size=size, now_s=now_s, is_rotten=copy.is_rotten)
        await self._step(partial(copy.seal, None if source == OUTSIDE else source, add_to_verdict), target)
        progress.phase, progress.done_bytes = "verifying", 0
        await self._repeat(verify_chunk, rate, require_wanted, devices)

    async def _repeat(
        self,
        step: Callable[[int], Awaitable[int]],
        rate: Callable[[], int],
        require_wanted: Callable[[], None],
        devices: list[int],
    ) -> None:
        """`step` until it returns 0. `devices` are those that it keeps busy."""
        while True:
            require_wanted()
            allowed = rate()
            if allowed != self._rate:
                self._rate = allowed
                self._throttle.forget()
            pause_s = self._throttle.pause_s(self._commitlog.clock.monotonic())
            if pause_s:
                await trio.sleep(pause_s)
                continue
            if not allowed:
                await self._measure_load(devices)
            began_s = self._commitlog.clock.monotonic()
            count = await step(chunk_bytes(allowed, CHUNK_BYTES))
            if not count:
                return
            self._throttle.record(allowed, count, began_s, self._commitlog.clock.monotonic(), self._load.latest)
            if self.progress is not None:
                self.progress.done_bytes += count

    async def _measure_load(self, devices: list[int]) -> None:
        now_s = self._commitlog.clock.monotonic()
        if self._load.is_due(now_s):
            await self._threads.aside(partial(self._load.busy, devices, now_s))

    async def _step(self, work: Callable[[], T], disk: DiskNumber, discard: Callable[[T], None] | None = None) -> T:
        """The result of a call for one disk. Raises DiskError for that disk, and whatever `work` raises."""
        is_outside = disk == OUTSIDE
        path = "source of the restore" if is_outside else self._commitlog.disks[disk].path
        threads = self._outside if is_outside else self._threads
        try:
            return await threads.run_within(disk, self._timing.chunk_s, work, discard)
        except TimeoutError as error:
            raise DiskFailedError(path, f"move: {error}") from error
        except OSError as error:
            raise translate(path, error) from error

    async def _publish(
        self, copy: SegmentCopy, file: Segment, target: DiskNumber, require_wanted: Callable[[], None]
    ) -> None:
        name, disk = file.name, self._disks[target]
        is_compared = copy.is_compared and file.is_compared is not False
        await self._scrub().prepare_move(file, target, is_compared=is_compared)

        async def work() -> None:
            await self._end_attribute_changes(file)
            try:
                published = await disk.publish_copy(copy, name)
            except (UncertainPublishError, FileExistsError) as error:
                self._commitlog.names.record_uncertain(name, target)
                mark = copy.mark(file.disk)
                # Another file that already has the name may have a common mark, too.
                if mark != copy.common or not isinstance(error, FileExistsError):
                    self._strays[name] = mark
                raise
            moved = self._commitlog.record_moved(
                file, target, published, has_checksum=copy.has_checksum, is_compared=copy.is_compared
            )
            self._scrub().record_moved(moved)
            self._changes.record(None)
            self._invalidate_entry(name, 0)
            self._sources.remind(file.disk)
            source = self._commitlog.disk_of(file).path
            log_event(log, logging.INFO, "moved", segment=name, disk=source, target=disk.path)
            self._decisions.copied("moved", name, source, disk.path)
            self._record_verdict(copy, file, moved)
            if copy.unreadable.ranges:
                self._salvaged.record(moved, copy.unreadable)
            if copy.newly_unreadable.ranges:
                now_s = round(self._commitlog.clock.wall())
                self._verdicts.record(moved, unreadable_verdict(copy.newly_unreadable.ranges, now_s))
            if copy.is_rotten:
                log_event(log, logging.ERROR, "rotten_segment_copied", segment=name, disk=source, target=disk.path)
                self._record_rotten(name)

        async with self._changes.lock:
            require_wanted()
            await self._changes.finish(disk, "link", (name,), work, self._timing.publish_s)

    def _record_verdict(self, copy: SegmentCopy, file: Segment, moved: Segment) -> None:
        """The copy has the verdict on the file, which this daemon may not have read yet. If the disk could not read
        whether there is one, or the checksum, nothing shows that the content is right."""
        verdict = parse_recorded(copy.verdict, file.size, self._commitlog.clock.wall())
        if copy.verdict and verdict is not None:
            self._verdicts.record_found(file, verdict)
        self._verdicts.record_moved(file, moved)
        if copy.verdict is None and verdict is not None:
            self._verdicts.record(moved, verdict)

    async def _end_attribute_changes(self, file: Segment) -> None:
        """Wait until the changes of a file's attributes that have begun have ended. While its name is in flight,
        none begins."""
        async with self._handles.first_opens_held(file):
            pass

    async def end_of_publishing(self) -> None:
        """Wait until a segment that is about to get its name on its new disk has it."""
        async with self._changes.lock:
            pass

    def _record_rotten(self, name: bytes) -> None:
        segment = self._commitlog.catalog.get(int(name))
        if segment is not None:
            self._verdicts.record_rotten(segment)

    async def _publish_restored(
        self, copy: SegmentCopy, base_offset: BaseOffset, target: DiskNumber, require_possible: Callable[[], None]
    ) -> None:
        name, disk = format_segment_name(base_offset), self._disks[target]

        async def work() -> None:
            try:
                published = await disk.publish_copy(copy, name)
            except (UncertainPublishError, FileExistsError):
                # The disk is asked before the name is used (NameChanges.settle), or by the next daemon.
                self._commitlog.names.record_uncertain(name, target)
                raise
            self._commitlog.record_restored(base_offset, target, published)
            self._changes.record(None)
            self._invalidate_entry(name, 0)
            log_event(log, logging.INFO, "restored", segment=name, disk=disk.path)
            self._decisions.copied("restored", name, "", disk.path)

        async with self._changes.lock:
            await self._changes.settle(name)
            require_possible()
            self._commitlog.names.require_free(name, base_offset)
            self._changes.require_at_rest(disk, name)
            await self._changes.finish(disk, "link", (name,), work, self._timing.publish_s)

    async def _publish_repaired(
        self,
        copy: SegmentCopy,
        file: Segment,
        restored: Restored,
        target: DiskNumber,
        require_possible: Callable[[], None],
    ) -> None:
        name, disk = file.name, self._disks[target]

        async def work() -> None:
            await self._end_attribute_changes(file)
            await self._require_as_examined(file, restored)
            try:
                published = await disk.publish_copy(copy, name)
            except (UncertainPublishError, FileExistsError):
                self._commitlog.names.record_uncertain(name, target)
                if restored.damaged is not None:
                    self._strays[name] = restored.damaged
                raise
            kind = self._verdicts.kind_of(file)
            self._commitlog.record_repaired(file, target, published)
            self._changes.record(None)
            self._invalidate_entry(name, 0)
            self._verdicts.record_repaired(file)
            self._sources.remind(file.disk)
            source = self._commitlog.disk_of(file).path
            kind_name = None if kind is None else kind.value
            log_event(log, logging.WARNING, "repaired", segment=name, disk=source, target=disk.path, kind=kind_name)
            self._decisions.copied("repaired", name, source, disk.path)

        async with self._changes.lock:
            require_possible()
            await self._changes.finish(disk, "link", (name,), work, self._timing.publish_s)

    async def _require_as_examined(self, file: Segment, restored: Restored) -> None:
        """Raises SegmentChangedError if a damaged file has got other content, owner, mode or mtime since the repair
        began."""
        seen = await self._disks[file.disk].stat(file.path)
        found = None if seen is None else unpack(seen)
        if (
            found is None
            or source_of(file.disk, found) != restored.damaged
            or Owner(found.uid, found.gid, found.mode) != restored.owner
        ):
            raise SegmentChangedError(f"{file.name.decode()}: was changed while it was repaired")
