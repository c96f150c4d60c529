"""Changes of names: create, remove, publish a copy. One at a time, as the kernel sends them anyway."""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.handles import Handle, Handles
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.disk import Disk, DiskState, translate
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.errors import (
    DiskError,
    DiskFailedError,
    DiskReadOnlyError,
    ForeignFileError,
    HoldsDataError,
    NoDiskAvailableError,
    SegmentExistsError,
    UncertainPublishError,
)
from commitlogfs.store.events import log_event
from commitlogfs.store.files import allocate, durable, remove, safe_open, write_lease
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, nlink_of, size_of, stat_fd, stat_name
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import UNLINK, CommitLog, CreatePlan

log = logging.getLogger(__name__)

T = TypeVar("T")

CREATE_DEADLINE_S = 4.5
"""For a create as a whole: the broker gives up after 5 s. The parts of it, which share it:"""
COMMIT_DEADLINE_S = 2.0
MAKE_ROOM_DEADLINE_S = 2.0
RESERVE_DEADLINE_S = 2.0
"""A disk that has not reserved a segment by then is passed over."""
PUBLISH_DEADLINE_S = 1.0
REMOVE_DEADLINE_S = 3.0
USAGE_AGE_S = 0.1
RETIRED_INTERVAL_S = 1.0
ATTRIBUTES_DEADLINE_S = 1.0
"""A disk that has not answered a stat by then is answered for from the catalog."""
MAX_LOOKS = 5
"""At one file, while others note what they have seen of it."""
SLOW_CREATE_S = 0.01
"""The broker warns about a segment that took longer."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A segment that a rule of forced deletion removes."""

    file: Segment
    rule: str
    why: str


class Namespace:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        usage: UsageMonitor,
        background: BackgroundSync,
        backing: Backing,
        observer: Observer,
        kernel_holds: Callable[[int], bool] = lambda inode: False,
        invalidate_entry: Callable[[bytes, int], None] = lambda name, inode: None,
    ) -> None:
        """`kernel_holds` tells whether the kernel still knows an inode; it may block. `invalidate_entry` makes it
        forget a name that has gone without its asking; it does not block."""
        self._commitlog = commitlog
        self._threads = threads
        self._usage = usage
        self._background = background
        self._observer = observer
        self._lock = trio.Lock()
        self._in_flight: set[bytes] = set()
        """Names in the hands of a disk that may not have answered yet."""
        self._backing = backing
        self._kernel_holds = kernel_holds
        self._invalidate_entry = invalidate_entry
        self.make_room: Callable[[], Awaitable[bool]] | None = None
        """Called when a create finds every disk full, with all names locked; whether it is worth another try."""
        self._look_at_retired = {number: trio.Event() for number in commitlog.disks}
        self.handles = Handles(commitlog, threads, backing, self._free_retired)
        self.changed_ns = time.time_ns()
        """When names last changed: the root directory's mtime."""

    async def create(self, name: bytes, owner: Owner) -> Handle:
        """Make a segment or temporary and open it.

        Raises InvalidNameError, SegmentExistsError, NoDiskAvailableError, OSError.
        """
        started = time.perf_counter()
        deadline = trio.current_time() + CREATE_DEADLINE_S  # what it waits for another change counts, too
        result = "failed"
        try:
            async with self._lock:
                handle = await self._create(name, owner, deadline)
            result = "ok"
        except SegmentExistsError:
            result = "exists"
            raise
        except NoDiskAvailableError:
            result = "no-space"
            raise
        finally:
            elapsed = time.perf_counter() - started
            self._observer.segment_created(result, elapsed)
        if elapsed > SLOW_CREATE_S:
            log_event(log, logging.INFO, "slow_create", segment=name, seconds=elapsed)
        return handle

    async def remove(self, name: bytes) -> None:
        """Durable when it returns. Raises SegmentNotFoundError, DiskError, OSError.

        A disk that hangs must not hold up the whole directory (the kernel locks it for the length of a removal):
        after REMOVE_DEADLINE_S the removal goes on by itself, and the caller gets DiskFailedError.
        """
        async with self._lock:
            file = self._commitlog.plan_remove(name)
            await self._remove_in_time(file, UNLINK)

    async def remove_by_rule(self, choose: Callable[[], Chosen | None]) -> bool:
        """Ask `choose`, while no name changes, what is to go, and remove it; False if nothing is. Durable when it
        returns. Raises as `remove`."""
        async with self._lock:
            return await self.remove_by_rule_locked(choose)

    async def remove_by_rule_locked(self, choose: Callable[[], Chosen | None]) -> bool:
        """The same for `make_room`."""
        chosen = choose()
        if chosen is None:
            return False
        file = chosen.file
        name, inode = file.name, int(inodes.encode(file))
        await self._remove_in_time(file, chosen.rule, chosen.why)
        self._invalidate_entry(name, inode)
        return True

    async def publish_copy(self, old_name: bytes, new_name: bytes) -> None:
        """Rename a finished temporary onto its segment's name. Raises as CommitLog.plan_publish_copy, DiskError.

        A disk that hangs: as `remove`."""
        async with self._lock:
            file = self._commitlog.find_name(old_name)
            if file is not None:
                self._require_at_rest(self._commitlog.disk_of(file), old_name, new_name)
                await self.refresh_attributes(file)
            await self._settle(new_name)
            file = self._commitlog.plan_publish_copy(old_name, new_name)
            disk = self._commitlog.disk_of(file)

            async def work() -> None:
                await self._publish_copy(file, disk, old_name, new_name)

            try:
                await self._finish(disk.number, "rename", (old_name, new_name), work, REMOVE_DEADLINE_S)
            except TimeoutError as error:
                raise DiskFailedError(disk.path, f"rename: {error}") from error

    def sync_soon(self, file: Segment) -> None:
        """Commit a segment's new size in the background."""

        async def work() -> None:
            disk = self._commitlog.disk_of(file)
            try:
                async with self.handles.use(inodes.encode(file)) as handle:
                    fd = handle.fd
                    await self._on_disk(disk, "sync", lambda: os.fsync(fd))
            except Exception as error:  # nobody waits for this, and nothing in it may end the daemon
                if isinstance(error, DiskReadOnlyError | DiskFailedError):
                    self._commitlog.record_trouble(disk.number, error, time.monotonic())
                log_event(log, logging.WARNING, "sync_failed", segment=file.name, reason=str(error))

        self._background.sync_size(file.disk, work)

    async def refresh_attributes(self, file: Segment) -> None:
        """Look at the backing file; keep the last known attributes where the disk is slow or failing."""
        # Two at once, for a release and an fstat: what the one notes may be older than what the other has seen.
        for _ in range(MAX_LOOKS):
            known = file.attributes
            seen = await self._look(file)
            if seen is None:
                return
            if size_of(seen) > self._commitlog.segment_size and ino_of(seen) == file.ino:
                await self._cut(file)
                return
            disturbed = file.attributes is not known
            if not self._commitlog.record_look(file, known, seen):
                disk = self._commitlog.disk_of(file)
                self._observer.disk_error(disk.path, "stat", "ESTALE")
                log_event(log, logging.ERROR, "file_replaced", disk=disk.path, segment=file.path)
                return
            if not disturbed:
                return

    async def _look(self, file: Segment) -> PackedAttributes | None:
        """None where the disk is slow or failing."""
        disk = self._commitlog.disk_of(file)
        dirfd, path = disk.dirfd, file.path
        try:
            return await self._threads.run_within(
                disk.number, ATTRIBUTES_DEADLINE_S, lambda: _stat_path(dirfd, path)
            )
        except TimeoutError:
            self._observer.disk_error(disk.path, "stat", "ETIMEDOUT")
        except OSError as error:
            self._observer.disk_error(disk.path, "stat", errno.errorcode.get(error.errno or 0, "EIO"))
            log_event(log, logging.WARNING, "stat_failed", disk=disk.path, segment=path, errno=error.errno)
        return None

    async def _cut(self, file: Segment) -> None:
        """What was written past a segment's end through passthrough, where nobody asks us, is cut off again: it is
        no part of the log, plain mode refuses it, and a broker does not start on a segment of another size."""
        disk, size = self._commitlog.disk_of(file), self._commitlog.segment_size
        before = file.size
        try:
            async with self.handles.use(inodes.encode(file)) as handle:
                fd = handle.fd

                def cut() -> PackedAttributes:
                    os.ftruncate(fd, size)
                    return stat_fd(fd)

                attributes = await self._on_disk(disk, "cut", cut)
        except (DiskError, OSError) as error:
            log_event(log, logging.ERROR, "overgrown", segment=file.name, size=before, reason=str(error))
            return
        self._commitlog.record_attributes(file, attributes)
        log_event(log, logging.ERROR, "cut_to_size", segment=file.name, disk=disk.path, bytes=before - size)

    async def _create(self, name: bytes, owner: Owner, deadline: float) -> Handle:
        if name in self._in_flight:
            raise SegmentExistsError(f"{name.decode()}: in the hands of a disk that does not answer")
        await self._usage.refresh(USAGE_AGE_S)
        await self._settle(name)
        last_chance = deadline - PUBLISH_DEADLINE_S
        refused_before = self._commitlog.refuses_for_now(time.monotonic())
        try:
            return await self._create_somewhere(name, owner, last_chance)
        except NoDiskAvailableError as error:
            if refused_before or not error.no_space or not await self._made_room(last_chance):
                raise
        return await self._create_somewhere(name, owner, last_chance)

    async def _made_room(self, last_chance: float) -> bool:
        if self.make_room is None:
            return False
        with trio.move_on_at(min(trio.current_time() + MAKE_ROOM_DEADLINE_S, last_chance)):
            return await self.make_room()
        return trio.current_time() < last_chance  # cut short: something may have been removed

    async def _create_somewhere(self, name: bytes, owner: Owner, last_chance: float) -> Handle:
        """On the first disk of the plan that takes it. Raises NoDiskAvailableError, SegmentExistsError."""
        plan = self._commitlog.plan_create(name)
        if not plan.order and await self._settle_leftovers(name):
            plan = self._commitlog.plan_create(name)
        await self._commit_predecessor(plan, last_chance)
        for reason in self._skip_reasons(plan):
            self._observer.placement_skipped(reason)
        for number in plan.order:
            disk = self._commitlog.disks[number]
            patience_s = min(RESERVE_DEADLINE_S, last_chance - trio.current_time())
            if patience_s <= 0:
                raise NoDiskAvailableError(
                    f"{name.decode()}: no disk has taken it in time", no_space=False, failing=True
                )
            try:
                handle = await self._create_on(disk, plan, owner, patience_s)
            except DiskError as error:
                self._commitlog.record_disk_error(number, error, time.monotonic())
                self._observer.placement_skipped(type(error).__name__)
                log_event(log, logging.WARNING, "create_moved_on", segment=name, reason=str(error))
                continue
            return handle
        raise self._commitlog.no_disk_left(plan, time.monotonic())

    async def _create_on(self, disk: Disk, plan: CreatePlan, owner: Owner, patience_s: float) -> Handle:
        dirfd, size = disk.dirfd, self._commitlog.segment_size

        def reserve() -> tuple[int, PackedAttributes]:
            fd = allocate.reserve(dirfd, size, owner)
            return fd, stat_fd(fd)

        fd, attributes = await self._on_disk(
            disk, "reserve", reserve, deadline_s=patience_s, discard=lambda made: os.close(made[0])
        )
        # A link that fails or hangs may have happened, or happen yet. What it leaves is empty, and known.
        placed_as = b"" if plan.role is Role.SEGMENT else plan.name
        left = Segment(plan.base_offset, disk.number, attributes, Role.GIVEN_UP, placed_as)
        is_late = False

        async def publish() -> Handle | None:
            published = await self._publish(disk, plan, fd, left)
            if not is_late:
                return self._adopt(disk, plan, fd, published)
            async with self._lock:
                if self._commitlog.find_name(plan.name) is None:
                    self._commitlog.record_leftover_gone(left)
                    await self.handles.release(inodes.encode(self._adopt(disk, plan, fd, published).file))
                else:
                    await self._threads.run(disk.number, partial(os.close, fd))
                    self._commitlog.record_leftover(left)
            return None

        try:
            handle = await self._finish(disk.number, "link", (), publish, PUBLISH_DEADLINE_S)
        except TimeoutError as error:
            is_late = True
            self._commitlog.record_leftover(left)
            raise DiskFailedError(disk.path, f"link: {error}") from error
        assert handle is not None
        return handle

    async def _publish(self, disk: Disk, plan: CreatePlan, fd: int, left: Segment) -> allocate.Published:
        """Give the unnamed file its name. Raises DiskError where another disk is to be tried."""
        dirfd = disk.dirfd
        try:
            return await self._on_disk(disk, "link", lambda: allocate.publish(dirfd, fd, plan.name))
        except BaseException as error:
            os.close(fd)
            if isinstance(error, UncertainPublishError):
                self._commitlog.record_leftover(left)
                raise DiskFailedError(disk.path, str(error)) from error
            if isinstance(error, FileExistsError):
                self._commitlog.record_uncertain(plan.name, disk.number)
                raise SegmentExistsError(
                    f"{plan.name.decode()}: a file of that name lies on {disk.path}"
                ) from error
            raise

    def _adopt(self, disk: Disk, plan: CreatePlan, fd: int, published: allocate.Published) -> Handle:
        file = self._commitlog.record_created(plan, disk.number, published)
        self._changed(disk)
        log_event(log, logging.INFO, "created", segment=plan.name, disk=disk.path)
        return self.handles.adopt(file, fd)

    async def give_up(self, file: Segment, error: DiskError) -> bool:
        """A disk has refused a segment its size, or an open for writing: if it is certainly empty, and another disk
        can take it, it leaves the log, and the next create of its name goes there. Whether it has left.

        Its empty file stays until the disk is well (leftovers); whoever has that open cannot give it a size.
        """
        disk, name, inode = self._commitlog.disk_of(file), file.name, int(inodes.encode(file))
        self._commitlog.record_trouble(disk.number, error, time.monotonic())
        await self._usage.refresh(USAGE_AGE_S)
        async with self._lock:
            if file.role is Role.GIVEN_UP:
                return True
            if not self.may_give_up(file) or not await self._is_certainly_empty(file):
                return False
            self._backing.record_gone(file)
            self._commitlog.record_given_up(file)
            self.changed_ns = time.time_ns()
            self._background.request(None)
        log_event(log, logging.WARNING, "given_up", segment=name, disk=disk.path, reason=str(error))
        self._invalidate_entry(name, inode)
        return True

    def may_give_up(self, file: Segment) -> bool:
        """Whether `give_up` has anywhere to go."""
        if file.size or file.name in self._in_flight or self._commitlog.find_name(file.name) is not file:
            return False
        return self._commitlog.can_move(file, time.monotonic())

    async def _is_certainly_empty(self, file: Segment) -> bool:
        """Also where the kernel may have written to it without our being asked."""
        known = self.handles.is_certainly_empty(file)
        if known is not None:
            return known
        if not self._backing.is_passed_through(file):
            return file.size == 0
        seen = await self._look(file)
        return seen is not None and (ino_of(seen), size_of(seen)) == (file.ino, 0)

    async def _publish_copy(self, file: Segment, disk: Disk, old_name: bytes, new_name: bytes) -> None:
        dirfd = disk.dirfd

        def work() -> PackedAttributes:
            # Its content first: with passthrough nothing of it went through us, and rsync syncs nothing.
            fd = safe_open.open_file(dirfd, old_name, os.O_RDONLY, file.ino)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            # link + unlink instead of rename: a file that appeared there meanwhile is not replaced.
            os.link(old_name, new_name, src_dir_fd=dirfd, dst_dir_fd=dirfd, follow_symlinks=False)
            os.unlink(old_name, dir_fd=dirfd)
            durable.sync_dir(dirfd)
            return stat_name(dirfd, new_name)

        async with self.handles.first_opens_held(file):
            try:
                attributes = await self._on_disk(disk, "rename", work)
            except BaseException:
                self._commitlog.record_uncertain(new_name, disk.number)
                raise
            self._commitlog.record_copy_published(file, new_name, attributes)
        self._changed(disk)

    async def _commit_predecessor(self, plan: CreatePlan, last_chance: float) -> None:
        """So that no power cut leaves a segment without the one before it. A disk that does not answer in time
        goes without: the broker gives up after 5 s."""
        predecessor = self._commitlog.catalog.predecessor(plan.base_offset)
        if predecessor is None:
            return
        with trio.move_on_at(min(trio.current_time() + COMMIT_DEADLINE_S, last_chance)) as scope:
            await self._background.committed(predecessor.disk)
        if scope.cancelled_caught:
            disk = self._commitlog.disk_of(predecessor)
            log_event(log, logging.WARNING, "commit_wait_timed_out", segment=predecessor.name, disk=disk.path)

    async def _settle(self, name: bytes) -> None:
        """Ask the disk that this name may lie on, if there is one, whether it does."""
        disk = self._commitlog.uncertain(name)
        if disk is None:
            return
        dirfd = disk.dirfd
        with contextlib.suppress(TimeoutError):
            absent = await self._threads.run_within(
                disk.number, ATTRIBUTES_DEADLINE_S, lambda: allocate.is_certainly_absent(dirfd, name)
            )
            if absent:
                self._commitlog.record_denied(name)

    async def _settle_leftovers(self, name: bytes) -> bool:
        """Ask the disks that may hold an empty file of this name, where there is no other disk, whether they do.
        Whether one does not."""
        is_settled = False
        for file in self._commitlog.leftovers_named(name):
            dirfd = self._commitlog.disk_of(file).dirfd
            with contextlib.suppress(TimeoutError):
                if await self._threads.run_within(
                    file.disk, ATTRIBUTES_DEADLINE_S, partial(allocate.is_certainly_absent, dirfd, name)
                ):
                    self._commitlog.record_leftover_gone(file)
                    is_settled = True
        return is_settled

    async def _remove_in_time(self, file: Segment, reason: str, why: str | None = None) -> None:
        disk, name, inode = self._commitlog.disk_of(file), file.name, int(inodes.encode(file))
        self._require_at_rest(disk, name)
        has_ended = is_late = False

        async def work() -> None:
            nonlocal has_ended
            try:
                await self._remove(file, reason, why)
            finally:
                has_ended = True
            if is_late:
                # The kernel has been told nothing, or that it failed: it would keep the name, and with it the file.
                self._invalidate_entry(name, inode)

        try:
            await self._finish(file.disk, "unlink", (name,), work, REMOVE_DEADLINE_S)
        except (TimeoutError, trio.Cancelled) as error:
            if not has_ended:
                is_late = True
                self._commitlog.record_leaving(file, reason)
            if isinstance(error, TimeoutError):
                raise DiskFailedError(disk.path, f"unlink: {error}") from error
            raise

    async def _remove(self, file: Segment, reason: str, why: str | None) -> None:
        """Remove a file from its disk, however long it takes."""
        name, disk = file.name, self._commitlog.disk_of(file)
        try:
            await self._remove_from_disk(file, disk, reason)
        except Exception as error:
            self._commitlog.record_stayed(file, reason)
            log_event(log, logging.WARNING, "remove_failed", segment=name, disk=disk.path, reason=str(error))
            raise
        self._changed(disk)
        level = logging.INFO if reason == UNLINK else logging.WARNING
        log_event(log, level, "removed", segment=name, disk=disk.path, reason=reason, why=why)

    async def _remove_from_disk(self, file: Segment, disk: Disk, reason: str) -> None:
        dirfd, file_name = disk.dirfd, file.name

        def retire() -> remove.Retired:
            return remove.retire_file(dirfd, file_name, file.ino, forced=reason != UNLINK)

        def unlink() -> DiskUsage:
            with contextlib.suppress(FileNotFoundError):  # gone already: what is asked for has happened
                safe_open.require_file(dirfd, file_name, file.ino)
            return remove.remove_file(dirfd, file_name)

        async with self.handles.first_opens_held(file):
            if await self._is_held(file, disk):
                retired = await self._on_disk(disk, "retire", retire)
                self._commitlog.record_retired(file, retired.name, reason)
                if retired.vanished:
                    await self._record_vanished(file, disk, file_name)
            else:
                self._backing.record_gone(file)  # before: what it pins is not free
                self._commitlog.record_removed(file, await self._on_disk(disk, "unlink", unlink), reason)

    async def _record_vanished(self, file: Segment, disk: Disk, name: bytes) -> None:
        """Somebody has removed or moved an open file on the disk itself: has it another name now?"""
        links = 1
        if self.handles.is_open(file):
            async with self.handles.use(inodes.encode(file)) as handle:
                fd = handle.fd
                links = nlink_of(await self._on_disk(disk, "stat", lambda: stat_fd(fd)))
        if links:
            self._commitlog.record_kept(file)
        log_event(log, logging.WARNING, "vanished", segment=name, disk=disk.path, links=links)

    async def _is_held(self, file: Segment, disk: Disk) -> bool:
        """Whether anybody has a file open or mapped that is about to be removed; no first open is under way."""
        if self.handles.is_open(file) or self._backing.is_inherited(file):
            return True
        was_passed_through = self._backing.is_passed_through(file)
        self._backing.record_gone(file)
        is_open = await self._is_open_on_disk(file, disk)
        return was_passed_through if is_open is None else is_open

    async def _is_open_on_disk(self, file: Segment, disk: Disk) -> bool | None:
        """Whether anybody but us has the disk's own file open; None where it cannot be told. A mapping outlives its
        descriptor, and passed through, nobody asks us to release it; and some read the disks beside the mount. Our
        backing id must not keep it open any longer."""
        dirfd, path = disk.dirfd, file.path
        try:
            return await self._on_disk(disk, "lease", lambda: write_lease.is_open_elsewhere(dirfd, path))
        except FileNotFoundError:
            return False
        except PermissionError:  # of another owner: removing needs no permission of the file's
            return None

    async def punch(self, file: Segment) -> None:
        """Free the blocks of a retired segment although it is open. Where somebody keeps it under a name of his own
        they stay, and count as nothing to gain from then on. Raises DiskError, OSError."""
        disk = self._commitlog.disk_of(file)
        try:
            attributes, usage = await self._punched(file, disk)
        except (FileNotFoundError, ForeignFileError) as error:
            self._commitlog.record_kept(file)
            log_event(log, logging.WARNING, "punch_refused", segment=file.name, disk=disk.path, reason=str(error))
            return
        self._commitlog.record_attributes(file, attributes)
        self._commitlog.record_usage(file.disk, usage)

    async def _punched(self, file: Segment, disk: Disk) -> tuple[PackedAttributes, DiskUsage]:
        dirfd, name, ino, size = disk.dirfd, file.placed_as, file.ino, self._commitlog.segment_size
        if not self.handles.is_open(file):
            return await self._on_disk(disk, "punch", lambda: remove.punch_retired(dirfd, name, ino, size))
        async with self.handles.use(inodes.encode(file)) as handle:
            fd = handle.fd
            return await self._on_disk(disk, "punch", lambda: remove.punch_fd(fd, dirfd, name, size))

    def look_at_retired_soon(self) -> None:
        """The kernel has let go of some inode."""
        for look in self._look_at_retired.values():
            look.set()

    async def free_retired_files(self) -> None:
        """Until cancelled. The kernel's own knowledge decides, not a count of opens, which a dead daemon would have
        taken with it. It tells when it forgets an inode, but not twice: so there is a look now and then, too."""
        async with trio.open_nursery() as nursery:
            for disk in self._commitlog.disks.values():
                nursery.start_soon(self._free_retired_of, disk)  # a disk that hangs holds up its own only

    async def _free_retired_of(self, disk: Disk) -> None:
        await self._drop_empty_folder(disk)
        while True:
            with trio.move_on_after(RETIRED_INTERVAL_S):
                await self._look_at_retired[disk.number].wait()
            self._look_at_retired[disk.number] = trio.Event()
            for file in self._commitlog.retired():
                if file.disk == disk.number:
                    await self._free_retired(file)
            if disk.state is DiskState.RW and not disk.is_troubled:
                for file in self._commitlog.leftovers(disk.number):
                    await self._remove_leftover(file, disk)

    async def _drop_empty_folder(self, disk: Disk) -> None:
        """That a former daemon has left."""
        if disk.state is DiskState.RW:
            dirfd = disk.dirfd
            with contextlib.suppress(OSError):
                await self._threads.run_within(
                    disk.number, ATTRIBUTES_DEADLINE_S, lambda: remove.drop_empty_folder(dirfd)
                )

    async def _free_retired(self, file: Segment) -> None:
        """Give a retired file's space back, unless somebody still has it open."""
        disk = self._commitlog.disk_of(file)
        async with self.handles.first_opens_held(file):  # a removal under way ends first
            if self.handles.is_open(file) or file not in self._commitlog.retired():
                return
            inode = int(inodes.encode(file))
            if await trio.to_thread.run_sync(self._kernel_holds, inode):
                return
            self._backing.record_gone(file)  # before: what it pins is not free
            dirfd, name = disk.dirfd, file.name
            try:
                if await self._is_open_on_disk(file, disk):
                    return
                usage = await self._on_disk(disk, "free", lambda: remove.drop_retired(dirfd, name))
            except (DiskError, OSError) as error:
                log_event(log, logging.WARNING, "free_failed", segment=name, reason=str(error))
                return
            self._commitlog.record_removed(file, usage)

    async def _remove_leftover(self, file: Segment, disk: Disk) -> None:
        """Once nobody has it open, and if it holds no data: whatever else it may be, it is not removed."""
        async with self.handles.first_opens_held(file):
            inode = int(inodes.encode(file))
            if self.handles.is_open(file) or await trio.to_thread.run_sync(self._kernel_holds, inode):
                return
            self._backing.record_gone(file)
            dirfd, name, ino = disk.dirfd, file.name, file.ino
            try:
                usage = await self._on_disk(
                    disk, "unlink", lambda: leftovers.remove_leftover(dirfd, name, ino), REMOVE_DEADLINE_S
                )
            except (HoldsDataError, ForeignFileError) as error:
                self._commitlog.record_kept(file)
                log_event(log, logging.ERROR, "leftover_kept", segment=name, disk=disk.path, reason=str(error))
                return
            except (DiskError, OSError) as error:
                reason = error if isinstance(error, DiskError) else DiskFailedError(disk.path, str(error))
                self._commitlog.record_trouble(disk.number, reason, time.monotonic())
                log_event(log, logging.WARNING, "leftover_not_removed", segment=name, reason=str(error))
                return
        if usage is not None:
            self._commitlog.record_leftover_gone(file, usage)
            log_event(log, logging.INFO, "leftover_removed", segment=name, disk=disk.path)

    def _changed(self, disk: Disk) -> None:
        self.changed_ns = time.time_ns()
        self._background.request(disk.number)

    def _skip_reasons(self, plan: CreatePlan) -> list[str]:
        evaluated = self._commitlog.last_eligibility
        reasons = [reason.name.lower() for reason in evaluated.refusals.values()] if evaluated else []
        return [*reasons, "fallback"] if plan.fallback else reasons

    def _require_at_rest(self, disk: Disk, *names: bytes) -> None:
        """Raises DiskFailedError while an earlier change of one of these names has not ended."""
        for name in names:
            if name in self._in_flight:
                raise DiskFailedError(disk.path, f"{name.decode()}: no answer yet to an earlier change")

    async def _finish(
        self,
        number: DiskNumber,
        op: str,
        names: tuple[bytes, ...],
        work: Callable[[], Awaitable[T]],
        deadline_s: float,
    ) -> T:
        """Have a disk change names, and wait at most `deadline_s`; then raise TimeoutError.

        A disk that hangs must not hold up the whole directory (the kernel locks it for the length of a change),
        but what was sent to it may still happen: the work goes on, its names can be used when it has ended.
        """
        self._in_flight.update(names)

        async def work_and_release() -> T:
            try:
                return await work()
            finally:
                self._in_flight.difference_update(names)

        try:
            return await AbandonableWork(work_and_release).wait(deadline_s)
        except TimeoutError:
            self._observer.disk_error(self._commitlog.disks[number].path, op, "ETIMEDOUT")
            raise

    async def _on_disk(
        self,
        disk: Disk,
        op: str,
        work: Callable[[], T],
        deadline_s: float | None = None,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Run blocking work for a disk; its OSErrors come back as the store's own where they blame the disk."""
        try:
            if deadline_s is None:
                return await self._threads.run(disk.number, work)
            return await self._threads.run_within(disk.number, deadline_s, work, discard)
        except TimeoutError as error:
            self._observer.disk_error(disk.path, op, "ETIMEDOUT")
            raise DiskFailedError(disk.path, f"{op}: {error}") from error
        except OSError as error:
            self._observer.disk_error(disk.path, op, errno.errorcode.get(error.errno or 0, "EIO"))
            translated = translate(disk.path, error)
            if translated is error:
                raise
            raise translated from error


def _stat_path(dirfd: int, path: bytes) -> PackedAttributes:
    folder, _, name = path.rpartition(b"/")
    if not folder:
        return stat_name(dirfd, name)
    fd = safe_open.open_folder(dirfd, folder)
    try:
        return stat_name(fd, name)
    finally:
        os.close(fd)
