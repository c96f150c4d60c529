"""An open CommitLog on plain directories, with the parts of fusefs around it but without a mount."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.copies import Copies
from commitlogfs.fusefs.files.creation import Creation
from commitlogfs.fusefs.files.disk_files import DiskFiles, files_of_disks
from commitlogfs.fusefs.files.freeing import Freeing
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.files.removal import Removals
from commitlogfs.fusefs.files.resizing import Resizing
from commitlogfs.fusefs.integrity.lost_writes import LostWrites
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.fusefs.moves.mover import Mover
from commitlogfs.fusefs.moves.salvaged import Salvaged
from commitlogfs.fusefs.moves.sources import Sources
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
"""Size of a segment."""
OURS = Owner(os.geteuid(), os.getegid(), 0o644)


def segment(parts: "Parts", index: int) -> Segment:
    found = parts.commitlog.find_name(name_of(index))
    assert found is not None
    return found


def place(parts: "Parts", index: int) -> Path:
    """The file of a segment on its disk."""
    return parts.directories[segment(parts, index).disk - 1] / name_of(index).decode()


def name_of(index: int) -> bytes:
    return b"%020d" % (index * SIZE)


async def nothing_to_reclaim() -> bool:
    return False


@dataclass(slots=True)
class Kernel:
    """Invalidations that a kernel would get, and its answers."""

    holds_all: bool = False
    """Whether it still knows every inode."""
    invalidated: list[bytes] = field(default_factory=list)

    def invalidate(self, name: bytes, _inode: int) -> None:
        self.invalidated.append(name)


class Parts:
    """The parts that serve a mount, without forced deletion and without a kernel."""

    def __init__(
        self,
        directories: list[Path],
        commitlog: CommitLog,
        reclaim: Callable[[], Awaitable[bool]] = nothing_to_reclaim,
    ) -> None:
        self.directories = directories
        self.commitlog = commitlog
        self.kernel = Kernel()
        observer = SilentObserver()
        self.threads = DiskThreads(commitlog.disks)
        self.usage = UsageMonitor(commitlog, self.threads, observer)
        self.background = BackgroundSync(commitlog, self.threads)
        self.backing = Backing(observer)
        self.disks: dict[DiskNumber, DiskFiles] = files_of_disks(commitlog.disks.values(), self.threads, observer)
        self.to_free = Reminders(commitlog.disks)
        members = MemberRecords(commitlog, self.threads)
        self.verdicts = Verdicts(commitlog, self.threads)
        self.lost_writes = LostWrites(commitlog, self.threads, observer, members, self.verdicts)
        self.handles = Handles(commitlog, self.disks, self.backing, self.to_free, self.lost_writes.release)
        self.attributes = BackingAttributes(commitlog, self.disks, self.handles)
        self.changes = NameChanges(commitlog, self.disks, self.background)
        self.sources = Sources(
            commitlog, self.disks, self.changes, self.handles, self.backing, self.to_free, self.kernel.invalidate
        )
        self.salvaged = Salvaged(commitlog)
        invalidate = self.kernel.invalidate
        self.mover = Mover(
            commitlog,
            self.disks,
            self.threads,
            self.changes,
            self.sources,
            self.salvaged,
            self.verdicts,
            self.lost_writes.may_lack_writes,
            invalidate,
        )
        self.removals = Removals(
            commitlog,
            self.disks,
            self.changes,
            self.handles,
            self.backing,
            self.to_free,
            self.kernel.invalidate,
            self.sources,
            members.record_removals,
            observer,
        )
        self.freeing = Freeing(
            commitlog,
            self.disks,
            self.handles,
            self.backing,
            self.to_free,
            lambda _inode: self.kernel.holds_all,
            self.sources.put_back_if_changed,
        )
        self.creation = Creation(
            commitlog, self.disks, self.changes, self.handles, self.usage, self.background, observer, reclaim
        )
        self.copies = Copies(commitlog, self.disks, self.changes, self.handles, self.attributes)
        self.resizing = Resizing(
            commitlog,
            self.disks,
            self.changes,
            self.handles,
            self.attributes,
            self.backing,
            self.usage,
            self.background,
            self.kernel.invalidate,
        )

    @asynccontextmanager
    async def freeing_runs(self) -> AsyncIterator[None]:
        """As while a daemon serves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.freeing.run)
            yield
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        self.handles.close()
        self.backing.close()
        self.commitlog.close()


@contextmanager
def open_parts(
    workdir: Path,
    count: int = 3,
    segment_size: int = SIZE,
    reclaim: Callable[[], Awaitable[bool]] = nothing_to_reclaim,
) -> Iterator[Parts]:
    """A new pool of `count` directories in `workdir`."""
    directories = [workdir / f"disk{number}" for number in range(1, count + 1)]
    specs = tuple(DiskSpec(str(directory), Thresholds()) for directory in directories)
    with ExitStack() as stack:
        birth.execute(birth.plan_init(specs, segment_size, RootAttributes(0o755, 0, 0), stack), specs, stack)
    commitlog = CommitLog(open_pool(specs, segment_size), POLICIES["round-robin"])
    parts = Parts(directories, commitlog, reclaim)
    try:
        yield parts
    finally:
        parts.close()


async def make(parts: Parts, index: int, *, close: bool = True) -> int:
    """Make segment `index`; returns the number of the disk it got."""
    handle = await parts.creation.create(name_of(index), OURS)
    if close:
        os.ftruncate(handle.fd, SIZE)
        await parts.handles.release(inodes.encode(handle.file))
    return handle.file.disk
