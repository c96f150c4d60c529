"""One move: a segment gets a copy on another disk, and the copy becomes the segment (store/moves/copy.py)."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.moves.sources import Sources
from commitlogfs.store.disks.disk import translate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, StoreError, UncertainPublishError
from commitlogfs.store.events import log_event
from commitlogfs.store.moves.copy import CHUNK_BYTES, SegmentCopy, open_source
from commitlogfs.store.moves.mark import Source
from commitlogfs.store.moves.throttle import Throttle, chunk_bytes
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog

log = logging.getLogger(__name__)

T = TypeVar("T")

PUBLISH_DEADLINE_S: Final = 3.0
CHUNK_DEADLINE_S: Final = 30.0
"""A disk that takes longer for one step of a copy counts as hung; the move is given up."""
NEWEST_KEPT: Final = 3
"""The newest segments stay where they are: a broker writes to them, or cuts them."""


class MoveStoppedError(StoreError):
    """The drain has ended, or the segment has left the log. Nothing is left of the copy."""


@dataclass(slots=True)
class Progress:
    """A move under way."""

    file: Segment
    target: DiskNumber
    phase: str = "copying"
    """Or "verifying"."""
    done_bytes: int = 0
    """In this phase."""


class Mover:
    """Carries out one move at a time."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        threads: DiskThreads,
        changes: NameChanges,
        sources: Sources,
        invalidate_entry: Callable[[bytes, int], None],
    ) -> None:
        """`invalidate_entry`: as for fusefs.files.removal."""
        self._commitlog = commitlog
        self._disks = disks
        self._threads = threads
        self._changes = changes
        self._sources = sources
        self._invalidate_entry = invalidate_entry
        self._throttle = Throttle()
        self._rate = 0
        self._strays: dict[bytes, Source] = {}
        """Sources of copies that may have got their names on disks that failed then, by name."""
        self.progress: Progress | None = None

    async def move(
        self, file: Segment, target: DiskNumber, rate: Callable[[], int], is_wanted: Callable[[], bool]
    ) -> None:
        """Move a sealed segment. `rate` returns the bytes per second that are allowed now, 0 for the default; once
        `is_wanted` returns False, the move ends within a second.

        Raises MoveStoppedError, SegmentChangedError, VerificationError, DiskError, OSError; the segment stays where
        it is then.
        """
        self.progress = Progress(file, target)

        def require_wanted() -> None:
            if not is_wanted() or not self.may_move(file):
                raise MoveStoppedError(f"{file.name.decode()}: its move was stopped")

        try:
            copy = await self._open_source(file)
            try:
                await self._copy(copy, file, target, rate, require_wanted)
                await self._publish(copy, file, target)
            finally:
                copy.close()
        except MoveStoppedError:
            raise
        except Exception:
            self._commitlog.counters.move_failures += 1
            raise
        finally:
            self.progress = None

    def may_move(self, file: Segment) -> bool:
        """Whether a segment is sealed, and nothing speaks against its move.

        A broker may write to the newest ones, and to those that were put back.
        """
        if self._commitlog.catalog.by_ino(file.disk, file.ino) is not file:
            return False
        if file in self._commitlog.catalog.newest(NEWEST_KEPT) or file.size != self._commitlog.segment_size:
            return False
        return not self._sources.is_written_to(file) and self._commitlog.names.uncertain(file.name) is None

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

    async def _open_source(self, file: Segment) -> SegmentCopy:
        dirfd = self._commitlog.disk_of(file).dirfd
        return await self._step(partial(open_source, dirfd, file.name, file.ino), file.disk, SegmentCopy.close)

    async def _copy(
        self,
        copy: SegmentCopy,
        file: Segment,
        target: DiskNumber,
        rate: Callable[[], int],
        require_wanted: Callable[[], None],
    ) -> None:
        """Each call runs in a thread of the disk that it is for: one that hangs blocks no other."""

        async def copy_chunk(most: int) -> int:
            count = await self._step(partial(copy.read_chunk, most), file.disk)
            if count:
                await self._step(copy.write_chunk, target)
            return count

        async def verify_chunk(most: int) -> int:
            return await self._step(partial(copy.verify_chunk, most), target)

        await self._step(partial(copy.reserve, self._commitlog.disks[target].dirfd), target)
        await self._repeat(copy_chunk, rate, require_wanted)
        await self._step(copy.require_unchanged, file.disk)
        await self._step(partial(copy.seal, file.disk), target)
        self.progress = Progress(file, target, "verifying")
        await self._repeat(verify_chunk, rate, require_wanted)

    async def _repeat(
        self,
        step: Callable[[int], Awaitable[int]],
        rate: Callable[[], int],
        require_wanted: Callable[[], None],
    ) -> None:
        while True:
            require_wanted()
            allowed = rate()
            if allowed != self._rate:
                self._rate = allowed
                self._throttle.forget()
            pause_s = self._throttle.pause_s(time.monotonic())
            if pause_s:
                await trio.sleep(pause_s)
                continue
            began_s = time.monotonic()
            count = await step(chunk_bytes(allowed, CHUNK_BYTES))
            if not count:
                return
            self._throttle.record(allowed, count, began_s, time.monotonic())
            if self.progress is not None:
                self.progress.done_bytes += count

    async def _step(self, work: Callable[[], T], disk: DiskNumber, discard: Callable[[T], None] | None = None) -> T:
        """The result of a call for one disk. Raises DiskError for that disk, and whatever `work` raises."""
        path = self._commitlog.disks[disk].path
        try:
            return await self._threads.run_within(disk, CHUNK_DEADLINE_S, work, discard)
        except TimeoutError as error:
            raise DiskFailedError(path, f"move: {error}") from error
        except OSError as error:
            raise translate(path, error) from error

    async def _publish(self, copy: SegmentCopy, file: Segment, target: DiskNumber) -> None:
        name, disk = file.name, self._disks[target]

        async def work() -> None:
            try:
                published = await disk.publish_copy(copy, name)
            except (UncertainPublishError, FileExistsError):
                self._commitlog.names.record_uncertain(name, target)
                self._strays[name] = copy.mark(file.disk)
                raise
            self._commitlog.record_moved(file, target, published)
            self._changes.record(None)
            self._invalidate_entry(name, 0)
            self._sources.remind(file.disk)
            source = self._commitlog.disk_of(file).path
            log_event(log, logging.INFO, "moved", segment=name, disk=source, target=disk.path)

        async with self._changes.lock:
            if not self.may_move(file) or self._changes.is_in_flight(name):
                raise MoveStoppedError(f"{name.decode()}: its move was stopped")
            await self._changes.finish(disk, "link", (name,), work, PUBLISH_DEADLINE_S)
