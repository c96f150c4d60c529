"""Attempts of a create: one for each disk that is asked, until one of them has given the file its name.

A disk that does not answer in time is not waited for, but its answer counts until the create ends. One link begins
after the other, and none when the create has ended. One that has begun cannot be taken back: it may leave an empty
file, which is on record as a leftover from the end of the create on.
"""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import trio

from commitlogfs.fusefs.disks.disk_threads import FirstTaker
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, SegmentExistsError, UncertainPublishError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, CreatePlan

log = logging.getLogger(__name__)


class Attempt:
    """The part of one disk: an unnamed file with all its blocks, then its name."""

    def __init__(self, disk: DiskFiles, turn_s: float) -> None:
        self.disk = disk
        self.turn_s = turn_s
        """How long no other disk is asked, and then, no other one may link."""
        self.silent_since_s = trio.current_time()
        """When the disk was asked, or has answered last."""
        self.fd = -1
        self.file: Segment | None = None
        """The file, a leftover unless it becomes the segment; set when it has its blocks."""
        self.published: Published | None = None
        """Set when the file has its name."""
        self.error: Exception | None = None
        self.linking_since_s: float | None = None
        self.has_ended = False
        """Whether the disk has answered: the file has its name, or gets none."""
        self.is_over = False
        """Whether its create has ended without it."""
        self.turn = trio.Event()
        self.link_begins = FirstTaker()
        """Taken by the thread of the disk, just before the link, or by the create that ends: a link that waits for
        a thread must not begin after that."""

    @property
    def is_ready(self) -> bool:
        """Whether the file has its blocks and no turn yet."""
        return self.file is not None and self.linking_since_s is None and not self.has_ended

    def links_until_s(self) -> float:
        """When a link under way has had its time."""
        if self.linking_since_s is None or self.has_ended:
            return -math.inf
        return self.linking_since_s + self.turn_s

    def link(self) -> None:
        """It is its turn."""
        self.linking_since_s = trio.current_time()
        self.turn.set()


class AttemptsUnderWay:
    """The attempts of all creates that are not done. Their creates may have ended before."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._patience_s = commitlog.timing.requests.patience_s
        self._attempts: set[Attempt] = set()
        self.reserving = {number: trio.Lock() for number in commitlog.disks}
        """Held while a disk reserves a file: of creates that fail one after the other, one holds a thread of it."""

    def begin(self, attempt: Attempt) -> None:
        self._attempts.add(attempt)

    def end(self, attempt: Attempt) -> None:
        self._attempts.discard(attempt)

    def silent_since_s(self) -> dict[DiskNumber, float]:
        """The disks that have not answered, each with the time since which one has been waited for."""
        since_s: dict[DiskNumber, float] = {}
        for attempt in self._attempts:
            if not attempt.has_ended:
                number = attempt.disk.number
                since_s[number] = min(since_s.get(number, math.inf), attempt.silent_since_s)
        return since_s

    def silent(self) -> frozenset[DiskNumber]:
        """The disks that have not answered."""
        return frozenset(self.silent_since_s())

    def is_hung(self, number: DiskNumber) -> bool:
        """Whether a disk is silent, and has had RequestTiming.patience_s."""
        return self.silent_since_s().get(number, math.inf) + self._patience_s <= trio.current_time()

    @contextlib.contextmanager
    def waiting(self, end_s: float) -> Iterator[trio.CancelScope]:
        """As trio.move_on_at, for a body that only waits. What it takes beyond that is no silence of a disk: the
        machine was suspended, or this daemon was stopped."""
        end_s = max(end_s, trio.current_time())
        try:
            with trio.move_on_at(end_s) as scope:
                yield scope
        finally:
            now_s = trio.current_time()
            late_s = max(0.0, now_s - end_s)
            for attempt in self._attempts:
                attempt.silent_since_s = min(now_s, attempt.silent_since_s + late_s)

    def next_end_s(self) -> float:
        """When the next silent disk has had RequestTiming.patience_s; math.inf if each has had it."""
        now_s = trio.current_time()
        ends_s = (since_s + self._patience_s for since_s in self.silent_since_s().values())
        return min((end_s for end_s in ends_s if end_s > now_s), default=math.inf)

    def may_answer(self) -> bool:
        """Whether a disk is silent for less than RequestTiming.patience_s, so that it may answer in time."""
        return self.next_end_s() < math.inf


class Attempts:
    """All attempts of one create."""

    def __init__(
        self,
        commitlog: CommitLog,
        plan: CreatePlan,
        owner: Owner,
        under_way: AttemptsUnderWay,
        record_failed: Callable[[DiskFiles, DiskError], None],
        record_silent: Callable[[DiskFiles], None],
        take_late: Callable[[Attempt], Awaitable[bool]],
    ) -> None:
        """`record_failed` is called with the error of a disk, also after the end of the create; `record_silent`
        when another disk is asked, too. `take_late` takes over a file that has got its name although its create has
        ended without any, and returns whether it has."""
        self._commitlog = commitlog
        self._hedge_s = commitlog.timing.requests.hedge_s
        self._plan = plan
        self._owner = owner
        self._under_way = under_way
        self._record_failed = record_failed
        self._record_silent = record_silent
        self._take_late = take_late
        self._attempts: list[Attempt] = []
        self._news = trio.Event()
        self._interruptible: trio.CancelScope | None = None

    @property
    def is_any_silent(self) -> bool:
        """Whether there is one of `silent`."""
        return bool(self.silent())

    def silent(self) -> set[DiskNumber]:
        """Disks that have neither made the file nor refused it."""
        return {attempt.disk.number for attempt in self._attempts if not attempt.has_ended}

    def asked(self) -> set[DiskNumber]:
        return {attempt.disk.number for attempt in self._attempts}

    async def ask(self, disks: Sequence[DiskFiles], asked_by: float, deadline: float) -> Attempt | None:
        """Ask one disk after the other, until one has given the file its name, or none is left: the next one when
        the last has failed or has had its turn, and so has each link. A turn is RequestTiming.hedge_s; when one of
        them is silent, the others share the time until `asked_by`, and a disk that is known to hang gets none.
        Raises as `named`."""
        for index, disk in enumerate(disks):
            if trio.current_time() >= deadline:
                break
            attempt = self._begin(disk, self._turn_s(disk, len(disks) - index, asked_by))
            turn_end = trio.current_time() + attempt.turn_s
            named = await self._named(deadline, partial(self._asks_next_at, attempt, turn_end))
            if named is not None:
                return named
            if not attempt.has_ended:
                self._record_silent(disk)
        return None

    def _turn_s(self, disk: DiskFiles, left: int, asked_by: float) -> float:
        """How long to wait for a disk; `left` are still to be asked, with this one."""
        if left > 1 and self._under_way.is_hung(disk.number):
            return 0.0
        remaining_s = asked_by - trio.current_time()
        if self.is_any_silent and remaining_s > 0:
            return min(self._hedge_s, remaining_s / left)
        return self._hedge_s

    async def named(self, deadline: float) -> Attempt | None:
        """The first attempt whose file has its name; None at the deadline, or when all have failed. Raises the
        error of an attempt, unless it is its disk's fault."""
        return await self._named(deadline, lambda: math.inf if self.is_any_silent else -math.inf)

    async def named_soon(self, soon: float, deadline: float) -> Attempt | None:
        """As `named`, but until `soon` if no disk has its blocks by then; each that has gets the time for its
        link."""

        def ends_at() -> float:
            if not self.is_any_silent:
                return -math.inf
            is_any_ready = any(attempt.is_ready for attempt in self._attempts)
            return math.inf if is_any_ready else max(soon, self._links_until_s())

        return await self._named(deadline, ends_at)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """The body is cancelled when the next `named` has something to do: a disk has its blocks, or has named the
        file, or has failed so that the create fails."""
        with trio.CancelScope() as self._interruptible:
            try:
                yield
            finally:
                self._interruptible = None

    async def _named(self, deadline: float, ends_at: Callable[[], float]) -> Attempt | None:
        """`ends_at` returns, again after each change, until when an answer is waited for."""
        while True:
            named, now_s = self._find_named(), trio.current_time()
            if named is not None or now_s >= min(deadline, ends_at()):
                return named
            self._give_turns()  # which may change the end
            end, links_until_s = min(deadline, ends_at()), self._links_until_s()
            with self._under_way.waiting(min(end, links_until_s) if links_until_s > now_s else end):
                await self._news.wait()

    def _asks_next_at(self, last: Attempt, turn_end: float) -> float:
        return max(self._links_until_s(), -math.inf if last.has_ended else turn_end)

    def _links_until_s(self) -> float:
        return max((attempt.links_until_s() for attempt in self._attempts), default=-math.inf)

    def _find_named(self) -> Attempt | None:
        """Raises the error of an attempt, unless it is its disk's fault: a file of that name that is none of the
        log is never accepted, anything else if no disk has made the file."""
        errors = [one.error for one in self._attempts if one.error and not isinstance(one.error, DiskError)]
        named = next((attempt for attempt in self._attempts if attempt.published is not None), None)
        for error in errors:
            if named is None or isinstance(error, SegmentExistsError):
                raise error
        return named

    def _give_turns(self) -> None:
        """Let the next one link, unless another one has not had its time."""
        for attempt in self._attempts:
            if attempt.is_ready and self._links_until_s() <= trio.current_time():
                attempt.link()

    def _begin(self, disk: DiskFiles, turn_s: float) -> Attempt:
        """Ask a disk, in a task of its own: it may answer when the create has ended."""
        attempt = Attempt(disk, turn_s)
        self._attempts.append(attempt)
        self._under_way.begin(attempt)
        trio.lowlevel.spawn_system_task(self._run, attempt)
        return attempt

    def end(self, winner: Attempt | None) -> None:
        """The create ends, with the file of the `winner`, which gets its name in this moment. What the others have
        got is given up, now or when their disks answer."""
        for attempt in self._attempts:
            if attempt is winner:
                continue
            attempt.is_over = True
            has_begun = not attempt.link_begins.take()
            if has_begun and attempt.file is not None and attempt.error is None:
                self._commitlog.record_leftover(attempt.file, is_linking=True)
            attempt.turn.set()
            if attempt.published is not None:
                trio.lowlevel.spawn_system_task(self._give_up, attempt)

    async def _run(self, attempt: Attempt) -> None:
        """No error may leave a system task: it would end the daemon."""
        published = None
        try:
            published = attempt.published = await self._make(attempt)
            attempt.has_ended = True
            if attempt.is_over and published is not None:
                await self._give_up(attempt)
        except DiskError as error:
            attempt.error = error
            self._record_failed(attempt.disk, error)
        except Exception as error:
            attempt.error = error
            if attempt.is_over:
                log_event(log, logging.WARNING, "late_create_failed", segment=self._plan.name, reason=str(error))
        finally:
            attempt.has_ended = True
            self._announce()
            if published is None and attempt.fd >= 0:
                await self._close(attempt)
            self._under_way.end(attempt)

    def _announce(self) -> None:
        self._news.set()
        self._news = trio.Event()
        if self._interruptible is not None and any(map(_concerns_create, self._attempts)):
            self._interruptible.cancel()

    async def _make(self, attempt: Attempt) -> Published | None:
        """None, and no name, if the create has ended before. Raises DiskError, OSError, SegmentExistsError."""
        if not await self._reserve(attempt):
            return None
        await attempt.turn.wait()
        return None if attempt.is_over else await self._link(attempt)

    async def _reserve(self, attempt: Attempt) -> bool:
        """False, and nothing reserved, if the create has ended before its disk had the time."""
        plan, disk = self._plan, attempt.disk
        async with self._under_way.reserving[disk.number]:
            if attempt.is_over:
                return False
            attempt.silent_since_s = trio.current_time()
            attempt.fd, attributes = await disk.reserve(self._commitlog.segment_size, self._owner, math.inf)
        placed_as = b"" if plan.role is Role.SEGMENT else plan.name
        attempt.file = Segment(plan.base_offset, disk.number, attributes, Role.GIVEN_UP, placed_as)
        attempt.silent_since_s = trio.current_time()
        self._announce()
        return True

    async def _link(self, attempt: Attempt) -> Published | None:
        """None if the create has ended before a thread could begin."""
        name, disk, file = self._plan.name, attempt.disk, attempt.file
        assert file is not None
        try:
            return await disk.link(attempt.fd, name, attempt.link_begins.take)
        except UncertainPublishError as error:
            self._commitlog.record_leftover(file)
            raise DiskFailedError(disk.path, str(error)) from error
        except FileExistsError as error:
            self._commitlog.record_leftover_gone(file)
            self._commitlog.names.record_uncertain(name, disk.number)
            raise SegmentExistsError(f"{name.decode()}: a file of that name lies on {disk.path}") from error
        except Exception:
            self._commitlog.record_leftover_gone(file)
            raise

    async def _give_up(self, attempt: Attempt) -> None:
        """The file has got its name too late. Raises nothing: no error may leave a system task."""
        assert attempt.file is not None
        try:
            if attempt.file.role is not Role.LINKING or not await self._take_late(attempt):
                self._commitlog.record_leftover(attempt.file)
                await self._close(attempt)
        except Exception as error:
            log_event(log, logging.WARNING, "late_create_failed", segment=self._plan.name, reason=str(error))

    async def _close(self, attempt: Attempt) -> None:
        with contextlib.suppress(OSError):
            await attempt.disk.close(attempt.fd)


def _concerns_create(attempt: Attempt) -> bool:
    has_failed = attempt.error is not None and not isinstance(attempt.error, DiskError)
    return attempt.is_ready or attempt.published is not None or has_failed
