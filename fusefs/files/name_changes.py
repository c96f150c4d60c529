"""The order of changes of names: one at a time, and none waits for a hung disk without end.

The kernel locks the mounted directory for the length of a create, unlink or rename, so a change that hangs would
stop all others. Each change therefore waits for its disk for a bounded time. The system call may still happen
afterwards, so the names that it uses stay reserved until it has ended.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError, DiskSilentError, StoreError
from commitlogfs.store.pool.commitlog import CommitLog

T = TypeVar("T")


class _UnderWay(NamedTuple):
    """A change that a disk has not answered."""

    work: AbandonableWork[Any]
    until_s: float
    """When it has had its time."""


class NameChanges:
    """The lock of all names, the names in flight, and the time of the last change."""

    def __init__(
        self, commitlog: CommitLog, disks: Mapping[DiskNumber, DiskFiles], background: BackgroundSync
    ) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._background = background
        self._in_flight: dict[bytes, _UnderWay] = {}
        self.lock = trio.Lock()
        """The lock of all names: held from the decision about a change until its disk has answered, or is given
        up."""
        self.changed_ns = commitlog.clock.wall_ns()
        """When names last changed: the root directory's mtime."""

    def assert_locked(self) -> None:
        """For functions whose caller holds the lock of all names."""
        assert self.lock.statistics().owner is trio.lowlevel.current_task()

    def is_in_flight(self, name: bytes) -> bool:
        """Whether a disk has not yet answered to an earlier change of this name."""
        return name in self._in_flight

    def require_at_rest(self, disk: DiskFiles, *names: bytes) -> None:
        """Raises DiskFailedError while an earlier change of one of these names has not ended."""
        for name in names:
            if self.is_in_flight(name):
                raise DiskFailedError(
                    disk.path, f"{name.decode()}: no answer yet to an earlier change; repair the disk"
                )

    def record(self, disk: DiskNumber | None) -> None:
        """Names have changed on a disk; None where only the log as a whole has changed."""
        self.changed_ns = self._commitlog.clock.wall_ns()
        self._background.request(disk)

    async def settle(self, name: bytes) -> None:
        """If a disk may hold this name outside of the log, ask it, so that the name can be used if it does not."""
        number = self._commitlog.names.uncertain(name)
        if number is not None and await self._disks[number].is_certainly_absent(name):
            self._commitlog.names.record_denied(name)

    async def outlast(self) -> bool:
        """Wait for the changes that continue although their callers do not wait any more, each until it has had its
        time. False, and no wait, if there are none of these."""
        under_way = [one for one in self._in_flight.values() if one.until_s > trio.current_time()]
        for one in under_way:
            with trio.move_on_at(one.until_s), contextlib.suppress(StoreError, OSError):  # reported by the work
                await one.work.wait()
        return bool(under_way)

    async def finish(
        self,
        disk: DiskFiles,
        op: str,
        names: tuple[bytes, ...],
        work: Callable[[], Awaitable[T]],
        deadline_s: float,
        on_late: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of `work`, which changes `names`. Raises DiskSilentError after `deadline_s`.

        `work` continues then, and the names are reserved until it ends. `on_late` is called when nobody waits for
        `work` any longer, because of the deadline or because the caller was cancelled.
        """

        async def work_and_release() -> T:
            try:
                return await work()
            finally:
                for name in names:
                    self._in_flight.pop(name, None)

        changing = AbandonableWork(work_and_release)
        self._in_flight.update(dict.fromkeys(names, _UnderWay(changing, trio.current_time() + deadline_s)))
        try:
            with disk.limited(op, deadline_s):
                return await changing.wait()
        except (DiskSilentError, trio.Cancelled):
            if not changing.has_ended:
                on_late()
            raise
