"""An open CommitLog on plain directories, with the parts of fusefs around it but without a mount."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from support.waiting import eventually
from trio._core._thread_cache import THREAD_CACHE, WorkerThread

from commitlogfs.fusefs import assembly
from commitlogfs.fusefs.files.creation import Creation
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.retention import Mode, RetentionRules
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.timing import (
    CheckTiming,
    MemberTiming,
    MoveTiming,
    RequestTiming,
    ScrubTiming,
    Timing,
    VerdictTiming,
)

SIZE = 4096
"""Size of a segment."""
OURS = Owner(os.geteuid(), os.getegid(), 0o644)
_LONG_S = 1000.0
PATIENT = Timing(
    requests=RequestTiming(
        create_s=10 * _LONG_S,
        commit_s=_LONG_S,
        reclaim_s=_LONG_S,
        hedge_s=_LONG_S,
        link_s=_LONG_S,
        remove_s=_LONG_S,
        prepare_s=_LONG_S,
        resize_s=_LONG_S,
        flush_s=_LONG_S,
        open_s=_LONG_S,
        change_s=2 * _LONG_S,
        rename_s=_LONG_S,
        stat_s=_LONG_S,
        refresh_s=_LONG_S,
        leftover_s=_LONG_S,
        usage_s=_LONG_S,
    ),
    checks=CheckTiming(probe_s=_LONG_S),
    members=MemberTiming(record_s=_LONG_S),
    moves=MoveTiming(publish_s=_LONG_S, chunk_s=_LONG_S, close_s=_LONG_S),
    scrub=ScrubTiming(record_s=_LONG_S),
    verdicts=VerdictTiming(load_s=_LONG_S, clear_s=_LONG_S, finish_s=_LONG_S),
)
"""No request gives up: on a busy machine, a disk that is well may be late. A create has several limits one after
the other, and so has a change of size."""


def has_calls() -> bool:
    """Whether a thread of this process makes a call, on a disk or elsewhere, or is about to begin one: trio knows
    which of its threads have none."""
    idle = THREAD_CACHE._idle_workers
    workers = (getattr(getattr(thread, "_target", None), "__self__", None) for thread in threading.enumerate())
    return any(isinstance(worker, WorkerThread) and worker not in idle for worker in workers)


def segment(parts: "Parts", index: int) -> Segment:
    found = parts.commitlog.find_name(name_of(index))
    assert found is not None
    return found


def place(parts: "Parts", index: int) -> Path:
    """The file of a segment on its disk."""
    return parts.directories[segment(parts, index).disk - 1] / name_of(index).decode()


def name_of(index: int) -> bytes:
    return b"%020d" % (index * SIZE)


@dataclass(slots=True)
class Kernel:
    """The link to a kernel that is not there: keeps what it would get, and gives its answers."""

    holds_all: bool = False
    """Whether it still knows every inode."""
    invalidated: list[bytes] = field(default_factory=list)

    def invalidate(self, name: bytes, _inode: int) -> None:
        self.invalidated.append(name)

    async def sent(self) -> None:
        pass

    async def run(self) -> None:
        await trio.sleep_forever()

    def holds(self, _inode: int) -> bool:
        return self.holds_all


class Parts(assembly.Parts):
    """The parts that serve a mount, without a kernel. Nothing is removed by rule."""

    kernel: Kernel

    def __init__(
        self,
        directories: list[Path],
        commitlog: CommitLog,
        reclaim: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`reclaim` takes the place of forced deletion."""
        super().__init__(commitlog, RetentionRules(mode=Mode.OFF), ScrubRules(), SilentObserver(), Kernel())
        self.directories = directories
        if reclaim is not None:
            self.creation = Creation(
                commitlog,
                self.disk_files,
                self.changes,
                self.handles,
                self.usage,
                self.background,
                self.observer,
                self.attempts,
                reclaim,
            )

    @asynccontextmanager
    async def freeing_runs(self) -> AsyncIterator[None]:
        """As while a daemon serves."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.freeing.run)
            yield
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        # A thread that a cancelled task has left behind would write to a file of the next test, because the kernel
        # gives the number of its descriptor to another one.
        eventually(lambda: not has_calls())
        super().close()
        self.commitlog.close()


@contextmanager
def open_parts(
    workdir: Path,
    count: int = 3,
    segment_size: int = SIZE,
    reclaim: Callable[[], Awaitable[bool]] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    timing: Timing = PATIENT,
) -> Iterator[Parts]:
    """A new pool of `count` directories in `workdir`."""
    directories = [workdir / f"disk{number}" for number in range(1, count + 1)]
    specs = tuple(DiskSpec(str(directory), Thresholds()) for directory in directories)
    with ExitStack() as stack:
        birth.execute(birth.plan_init(specs, segment_size, RootAttributes(0o755, 0, 0), stack), specs, stack)
    commitlog = CommitLog(open_pool(specs, segment_size), POLICIES["round-robin"], clock, timing)
    parts = Parts(directories, commitlog, reclaim)
    try:
        yield parts
    finally:
        parts.close()


async def let_go(parts: Parts) -> None:
    """Compare and remove the former files of moves, as far as a daemon that serves would do so."""
    await parts.sources.finish()
    while any([await parts.readings.read_next(number) for number in parts.commitlog.disks]):
        await parts.sources.finish()


async def make(parts: Parts, index: int, *, close: bool = True) -> int:
    """Make segment `index`; returns the number of the disk it got."""
    handle = await parts.creation.create(name_of(index), OURS)
    if close:
        os.ftruncate(handle.fd, SIZE)
        await parts.handles.release(inodes.encode(handle.file))
    return handle.file.disk
