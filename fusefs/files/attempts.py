"""Attempts of a create: one for each disk that is asked, until one of them has given the file its name.

A disk that does not answer in time is not waited for, but its answer counts until the create ends. A link is begun
on the disk whose turn it is, and on none when the create has ended. One that has begun cannot be taken back: it may
leave an empty file, which is recorded as a leftover when the create ends.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Awaitable, Callable

import trio

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store.errors import DiskError, DiskFailedError, SegmentExistsError, UncertainPublishError
from commitlogfs.store.events import log_event
from commitlogfs.store.files.allocate import Owner, Published
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, CreatePlan

log = logging.getLogger(__name__)


class Attempt:
    """The part of one disk: an unnamed file with all its blocks, then its name."""

    def __init__(self, disk: DiskFiles) -> None:
        self.disk = disk
        self.fd = -1
        self.left: Segment | None = None
        """The file that a link without an answer may leave; set when it has its blocks."""
        self.published: Published | None = None
        """Set when the file has its name, and its create has not ended."""
        self.error: Exception | None = None
        self.linking_since_s: float | None = None
        self.has_ended = False
        self.is_over = False
        """Whether its create has ended without it."""
        self.turn = trio.Event()
        self._begin = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether the file has its blocks and no turn yet."""
        return self.left is not None and self.linking_since_s is None and not self.has_ended

    def links_for_less_than(self, seconds: float) -> bool:
        if self.linking_since_s is None or self.has_ended:
            return False
        return trio.current_time() - self.linking_since_s < seconds

    def link(self) -> None:
        """It is its turn."""
        self.linking_since_s = trio.current_time()
        self.turn.set()

    def take_link(self) -> bool:
        """Decide whether the name is linked: the first caller does. It is the thread of the disk, just before the
        link, or the create that ends: a link that waits for a thread must not begin after that."""
        return self._begin.acquire(blocking=False)


class Attempts:
    """All attempts of one create."""

    def __init__(
        self,
        commitlog: CommitLog,
        plan: CreatePlan,
        owner: Owner,
        under_way: set[Attempt],
        record_failed: Callable[[DiskFiles, DiskError], None],
        take_late: Callable[[Attempt, Segment, Published], Awaitable[None]],
    ) -> None:
        """`under_way` has the attempts that have not ended, also of other creates. `record_failed` is called with
        the error of a disk, also after the end of the create. `take_late` takes over a file that has got its name
        although its create has ended without any."""
        self._commitlog = commitlog
        self._hedge_s = commitlog.timing.requests.hedge_s
        self._plan = plan
        self._owner = owner
        self._under_way = under_way
        self._record_failed = record_failed
        self._take_late = take_late
        self._attempts: list[Attempt] = []
        self._news = trio.Event()
        self._has_won = False

    @property
    def have_all_failed(self) -> bool:
        return all(attempt.has_ended for attempt in self._attempts)

    def begin(self, disk: DiskFiles) -> Attempt:
        """Ask a disk, in a task of its own: it may answer when the create has ended."""
        attempt = Attempt(disk)
        self._attempts.append(attempt)
        self._under_way.add(attempt)
        trio.lowlevel.spawn_system_task(self._run, attempt)
        return attempt

    async def named(self, deadline: float, candidate: Attempt | None = None) -> Attempt | None:
        """The first attempt whose file has its name; None at the deadline, or when the candidate has failed.

        Only the candidate gets its turn. Without one, all attempts that are ready do, each when the link before has
        had its time. Raises the error of an attempt, unless it is its disk's fault.
        """
        candidates = self._attempts if candidate is None else [candidate]
        while True:
            named = self._find_named()
            now_s = trio.current_time()
            if named is not None or now_s >= deadline or all(attempt.has_ended for attempt in candidates):
                return named
            self._give_turn(candidates)
            with trio.move_on_at(min(deadline, now_s + self._hedge_s)):
                await self._news.wait()

    def _find_named(self) -> Attempt | None:
        """Raises the error of an attempt, unless it is its disk's fault."""
        for attempt in self._attempts:
            if attempt.error is not None and not isinstance(attempt.error, DiskError):
                raise attempt.error
        return next((attempt for attempt in self._attempts if attempt.published is not None), None)

    def _give_turn(self, candidates: list[Attempt]) -> None:
        """Let one of them link, unless another one has not had its time."""
        if any(attempt.links_for_less_than(self._hedge_s) for attempt in candidates):
            return
        ready = next((attempt for attempt in candidates if attempt.is_ready), None)
        if ready is not None:
            ready.link()

    def end(self, winner: Attempt | None) -> None:
        """The create ends, with the file of the `winner`. What the others have got is given up, now or when their
        disks answer."""
        self._has_won = winner is not None
        for attempt in self._attempts:
            if attempt is winner:
                continue
            attempt.is_over = True
            has_begun = not attempt.take_link()
            if has_begun and attempt.left is not None and attempt.error is None:
                self._commitlog.record_leftover(attempt.left)
            attempt.turn.set()
            if attempt.published is not None:
                trio.lowlevel.spawn_system_task(self._give_up, attempt, attempt.published)

    async def _run(self, attempt: Attempt) -> None:
        """No error may leave a system task: it would end the daemon."""
        try:
            published = await self._make(attempt)
            if not attempt.is_over:
                attempt.published = published
            else:
                await self._give_up(attempt, published)
        except DiskError as error:
            attempt.error = error
            self._record_failed(attempt.disk, error)
        except Exception as error:
            attempt.error = error
            if attempt.is_over:
                log_event(log, logging.WARNING, "late_create_failed", segment=self._plan.name, reason=str(error))
        finally:
            attempt.has_ended = True
            self._under_way.discard(attempt)
            self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def _make(self, attempt: Attempt) -> Published | None:
        """None, and no name, if the create has ended before. Raises DiskError, OSError, SegmentExistsError."""
        plan, disk = self._plan, attempt.disk
        attempt.fd, attributes = await disk.reserve(self._commitlog.segment_size, self._owner, math.inf)
        placed_as = b"" if plan.role is Role.SEGMENT else plan.name
        attempt.left = Segment(plan.base_offset, disk.number, attributes, Role.GIVEN_UP, placed_as)
        self._announce()
        await attempt.turn.wait()
        try:
            return None if attempt.is_over else await disk.link(attempt.fd, plan.name, attempt.take_link)
        except UncertainPublishError as error:
            await self._close(attempt)
            self._commitlog.record_leftover(attempt.left)
            raise DiskFailedError(disk.path, str(error)) from error
        except FileExistsError as error:
            await self._close(attempt)
            self._commitlog.names.record_uncertain(plan.name, disk.number)
            raise SegmentExistsError(f"{plan.name.decode()}: a file of that name lies on {disk.path}") from error
        except Exception:
            await self._close(attempt)
            raise

    async def _give_up(self, attempt: Attempt, published: Published | None) -> None:
        """For an answer that has come too late."""
        if published is None or self._has_won or attempt.left is None:
            await self._close(attempt)
        else:
            await self._take_late(attempt, attempt.left, published)

    async def _close(self, attempt: Attempt) -> None:
        with contextlib.suppress(OSError):
            await attempt.disk.close(attempt.fd)
