"""Creates beside disks that hang, fail and answer at random, in virtual time. After each answer and each pause,
everything comes to rest, and the ledgers are compared with the disks."""

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from support.clocks import VirtualTime, pass_time
from support.pooled import OURS, PATIENT, SIZE, Parts, name_of, open_parts
from support.rooms import Room
from support.waiting import PATIENCE_S
from trio.testing import MockClock

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handle
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.disks import health
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.eligibility import takes_a_segment
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskFailedError, NoDiskAvailableError, SegmentExistsError, StoreError
from commitlogfs.store.files import allocate, safe_open
from commitlogfs.store.files.remove import Reason, Retired
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.catalog import Role
from commitlogfs.store.pool.commitlog import CommitLog, Removal
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.timing import RequestTiming

T = TypeVar("T")

DEFAULTS = RequestTiming(freed_s=0.0)
DISKS = 4
MANY_DISKS = 12
"""The creates of a pool with so many ask them faster."""
STEPS = 120
LINKING = (Role.LINKING, Role.LINKING_TOO_LATE)
SEEDS = 40
GATE_SEEDS = 8
"""Seeds of each kind in the gate; the others are `full`."""
COPY = b"." + name_of(1) + b".abcdef"
FEW = [name_of(0), name_of(1), name_of(2), COPY]
MANY = [*(name_of(index) for index in range(60)), COPY]
PAUSES_S = (0.001, 0.05, 0.1, 0.25, 0.25, 0.5, 1.0, 2.0)
MOMENT_S = 1e-6
LOCKED_S = (0.5, 2.0, 3.0, 3.3)
HANGS = {"close": 0.25, "retire": 0.3, "statvfs": 0.04}
"""Probability, by the kind of a call."""
ERRORS = {
    "reserve": [0, 0, 0, 0, errno.EIO, errno.ENOSPC],
    "link": [0, 0, 0, 0, errno.EIO, errno.ENOSPC],
    "remove": [0, 0, 0, errno.EIO],
    "retire": [0, 0, 0, errno.EIO],
}
RECLAIM_AFTER_S = DEFAULTS.create_s - DEFAULTS.link_s - DEFAULTS.reclaim_s


class Fault:
    """A call of a disk, and what comes of it. The same call of a life always does the same, whenever it comes."""

    def __init__(self, kind: str, seed: str) -> None:
        self.kind = kind
        chance = random.Random(seed)  # noqa: S311 - a test
        self.hangs = chance.random() < HANGS.get(kind, 0.45)
        self.errno = chance.choice(ERRORS.get(kind, [0]))
        self.is_late = chance.random() < 0.5
        """Whether a link has happened all the same."""
        self.ended = threading.Event()


class Faults:
    """The calls under way that hang."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self.hung: dict[int, list[Fault]] = {}
        self.are_over = False

    def begin(self, kind: str, disk: int) -> Fault:
        """Called in the thread of a disk; returns when the call may continue."""
        with self._lock:
            self._counts[kind, disk] += 1
            fault = Fault(kind, f"{self._seed} {kind} {disk} {self._counts[kind, disk]}")
            if self.are_over:
                fault.errno = 0
                return fault
            if fault.hangs:
                self.hung.setdefault(disk, []).append(fault)
        if fault.hangs:
            assert fault.ended.wait(PATIENCE_S)
        return fault

    def all_hung(self) -> list[tuple[int, Fault]]:
        with self._lock:
            return [(disk, fault) for disk in sorted(self.hung) for fault in self.hung[disk]]

    def release(self, disk: int, fault: Fault) -> None:
        with self._lock:
            self.hung[disk].remove(fault)
        fault.ended.set()

    def release_all(self) -> None:
        self.are_over = True
        for disk, fault in self.all_hung():
            self.release(disk, fault)


class Life:
    names = FEW
    statvfs_hangs = False
    most_creates = 1

    def __init__(self, parts: Parts, clock: MockClock, seed: int) -> None:
        self.parts = parts
        self.log = parts.commitlog
        self.clock = clock
        self.chance = random.Random(seed)  # noqa: S311 - a test
        self.faults = Faults(seed)
        self.handles: list[Handle] = []
        self.began_s: dict[bytes, float] = {}
        """Creates under way."""
        self._present: set[bytes] = set()
        self.may_be_back: set[bytes] = set()
        """Segments that were to be removed by rule: that may fail when nobody waits for it any more."""
        self._made: set[bytes] = set()
        """Names that creates have given since the last check."""
        self._failed: set[bytes] = set()
        """Names whose last create has failed, and that no file has got since: one may still be made late."""
        self.story: list[str] = []
        self._open_before = self._open_files()

    # --- what happens --------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._begins()
            async with trio.open_nursery() as nursery, self.parts.freeing_runs():
                self.nursery = nursery
                for _ in range(STEPS):
                    await self._act(nursery)
                    await self._rests()
                    self._check()
                self.faults.release_all()
                while self.began_s:
                    await self._passes(self._limit(DEFAULTS.hedge_s))
                await self._passes(DEFAULTS.create_s)
                await self._ends()
        finally:
            self.faults.release_all()

    async def _act(self, nursery: trio.Nursery) -> None:
        hung = self.faults.all_hung()
        action = self.chance.random()
        if hung and action < 0.3:
            disk, fault = self.chance.choice(hung)
            self._tell(f"disk {disk} answers to {fault.kind} ({fault.errno})")
            self.faults.release(disk, fault)
        elif action < 0.6:
            pause_s = self._limit(self.chance.choice(PAUSES_S))
            if self.chance.random() < 0.2:
                self._tell(f"the machine stands still for {pause_s:g} s")
                self.clock.jump(pause_s)
            else:
                self._tell(f"{pause_s:g} s pass")
                await pass_time(self.clock, pause_s, self._rests)
        elif (
            len(self.began_s) < self.most_creates
            and action < 0.85
            and (name := self._choose_name()) not in self.began_s
        ):
            self.began_s[name] = self.clock.current_time()
            nursery.start_soon(self._create, name)
        elif self.handles and action < 0.9:
            handle = self.handles.pop(self.chance.randrange(len(self.handles)))
            nursery.start_soon(self._close, handle)
        elif action < 0.95:
            nursery.start_soon(self._unlink, self.chance.choice(self.names))
        else:
            self._change(DiskNumber(self.chance.randint(1, len(self.log.disks))))

    def _limit(self, pause_s: float) -> float:
        """Not past the end of a create: what ends in between would be seen too late."""
        ends_s = [began_s + DEFAULTS.create_s for began_s in self.began_s.values()]
        return max(0.0, min([pause_s, *(end_s - self.clock.current_time() for end_s in ends_s)]))

    async def _begins(self) -> None:
        """Before the first disk hangs."""

    def _choose_name(self) -> bytes:
        """For a create."""
        return self.chance.choice(self.names)

    def _change(self, number: DiskNumber) -> None:
        self._tell(f"disk {number} is found to be well")
        health.record_success(self.log.disks[number])

    async def _create(self, name: bytes) -> None:
        self._tell(f"create {name!r}")
        try:
            handle = await self.parts.creation.create(name, OURS)
        except (NoDiskAvailableError, SegmentExistsError) as error:
            outcome = f"{type(error).__name__}: {error}"
            if isinstance(error, NoDiskAvailableError):
                self._failed.add(name)
        else:
            self._made.add(name)
            self._failed.discard(name)
            outcome = f"made on disk {handle.file.disk}"
            self.handles.append(handle)
        elapsed_s = self.clock.current_time() - self.began_s.pop(name)
        self._tell(f"create {name!r} ends after {elapsed_s:g} s: {outcome}")
        assert elapsed_s <= DEFAULTS.create_s + MOMENT_S

    async def _close(self, handle: Handle) -> None:
        """A broker has written to it."""
        os.pwrite(handle.fd, b"\1", 0)
        os.ftruncate(handle.fd, SIZE)
        await self.parts.attributes.refresh(handle.file)
        await self.parts.handles.release(inodes.encode(handle.file))

    async def _unlink(self, name: bytes) -> None:
        try:
            await self.parts.removals.unlink(name)
        except (StoreError, OSError) as error:
            self._tell(f"not unlinked {name!r}: {error}")
        else:
            self._tell(f"unlinked {name!r}")

    async def reclaim(self) -> bool:
        """In place of forced deletion: whether a create makes another attempt."""
        return self.chance.random() < 0.5

    def _tell(self, event: str) -> None:
        self.story.append(f"{self.clock.current_time():8.3f} {event}")

    async def _passes(self, seconds: float) -> None:
        await self._rests()
        self.clock.jump(seconds)
        await self._rests()

    async def _rests(self) -> None:
        """Return when every thread hangs and every task waits."""
        quiet = 0
        while quiet < 2:
            await trio.testing.wait_all_tasks_blocked()
            busy = sum(self.parts.threads.statistics().values())
            quiet = quiet + 1 if busy == len(self.faults.all_hung()) else 0

    # --- what must hold ------------------------------------------------------------------------------

    def _files(self) -> dict[tuple[int, bytes], int]:
        """Inode numbers by disk and name."""
        return {
            (number, os.fsencode(entry.name)): entry.stat().st_ino
            for number, directory in enumerate(self.parts.directories, 1)
            for entry in os.scandir(directory)
            if entry.is_file() and os.fsencode(entry.name) in self.names
        }

    def _check(self) -> None:
        now_s = self.clock.current_time()
        assert all(now_s < began_s + DEFAULTS.create_s for began_s in self.began_s.values())
        if self.statvfs_hangs:  # a removal measures its disk before it is recorded
            return
        on_disks = self._files()
        attempted = {one.file for one in self.parts.creation._under_way._attempts if one.file is not None}
        in_log = {(file.disk, file.name): file.ino for name in self.names if (file := self.log.find_name(name))}
        assert in_log.items() <= on_disks.items()
        present = {name for _, name in in_log}
        made = present - self._present - self.may_be_back
        expected = self._failed | self._made
        assert made <= expected, f"{made - expected} is back although nobody has made it"
        self._failed -= made
        self._made.clear()
        self._present = present
        for (disk, name), ino in on_disks.items() - in_log.items():
            if any((file.disk, file.ino) == (disk, ino) for file in attempted):
                continue
            other = self.log.others.get(DiskNumber(disk), ino)
            assert other is not None, f"{name!r} on disk {disk} is not known"
            assert other.name == name
            assert other.role in (Role.GIVEN_UP, *LINKING) or self.parts.changes.is_in_flight(name)
        if not self.began_s:  # what is linked late waits for its end
            linking = {file for file in self.log.others if file.role in LINKING}
            assert linking <= attempted, f"nobody looks for {linking - attempted}"
        self._check_turns(now_s)

    def _check_turns(self, now_s: float) -> None:
        current = [attempt for attempt in self.parts.creation._under_way._attempts if not attempt.is_over]
        if any(attempt.links_until_s() > now_s for attempt in current):
            return
        assert not any(attempt.is_ready for attempt in current), "a disk is ready, and does not get its turn"

    async def _ends(self) -> None:
        """All disks are well again."""
        await self._rests()
        self._check()
        assert not self.began_s
        for handle in self.handles:
            await self._close(handle)
        for disk in self.log.disks.values():
            health.record_success(disk)
        for _ in range(3):
            await self._passes(DEFAULTS.freeing_s)
        self._check()
        assert not [file for file in self.log.others if file.role is not Role.TEMPORARY]
        assert len(self._files()) == sum(self.log.find_name(name) is not None for name in self.names)
        assert not self.parts.creation._under_way._attempts
        assert not self.parts.changes.lock.locked()
        assert not any(lock.locked() for lock in self.parts.creation._under_way.reserving.values())
        assert self._open_files() == self._open_before

    def _open_files(self) -> int:
        roots = tuple(f"{directory}/" for directory in self.parts.directories)
        count = 0
        for entry in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{entry}").startswith(roots)
            except FileNotFoundError:
                continue
        return count


class FullLife(Life):
    """The disks get full, and segments are removed by rule."""

    names = MANY

    def __init__(self, parts: Parts, clock: MockClock, seed: int) -> None:
        super().__init__(parts, clock, seed)
        parts.retention.rules = RetentionRules()
        self.room = Room(parts)
        self.forced: set[tuple[int, int]] = set()
        """Disks and inode numbers of the files that were to be removed by rule."""
        self._carry_out = parts.removals.carry_out

    async def _begins(self) -> None:
        self.faults.are_over = True
        for name in MANY[:6]:
            self._leave_room(self.chance.choice(list(self.log.disks)))
            await self.parts.usage.refresh(0)
            await self._close(await self.parts.creation.create(name, OURS))
        self._leave_room(self.chance.choice(list(self.log.disks)))
        self._present = set(MANY[:6])
        self.faults.are_over = False

    def _leave_room(self, number: DiskNumber) -> None:
        """On this disk only."""
        for one in self.log.disks:
            self.room.leave(one, int(one == number))

    def _choose_name(self) -> bytes:
        last = self.log.catalog.last
        is_next = last is not None and self.chance.random() < 0.8
        return name_of(last.base_offset // SIZE + 1) if is_next else super()._choose_name()

    def _change(self, number: DiskNumber) -> None:
        if self.chance.random() < 0.5:
            super()._change(number)
            return
        left = self.chance.choice([-1, 0, 0, 0, 1])
        self._tell(f"data of others leave space for {left} segments on disk {number}")
        self.room.leave(number, left)

    async def carry_out(self, removal: Removal) -> None:
        """In place of that of Removals."""
        if removal.is_forced:
            self._tell(f"{removal.file.name!r} on disk {removal.file.disk} is removed by rule")
            self._check_removal(removal)
            self.forced.add((removal.file.disk, removal.file.ino))
            self.may_be_back.add(removal.file.name)
        await self._carry_out(removal)

    def _check_removal(self, removal: Removal) -> None:
        now_s = self.clock.current_time()
        since_s = self.parts.attempts.silent_since_s()
        assert removal.file is self.log.catalog.first
        assert removal.file.disk not in since_s, "its disk does not answer"
        latest_s = max(self.began_s.values()) + DEFAULTS.create_s - DEFAULTS.link_s - 2 * DEFAULTS.hedge_s
        assert now_s <= latest_s + MOMENT_S, "no disk may make the segment in time"
        with_room = [number for number in self.log.disks if self._has_room(number)]
        assert set(with_room) <= since_s.keys(), "a disk that answers has room"
        for number, silent_since_s in since_s.items():
            assert now_s >= silent_since_s + RECLAIM_AFTER_S - MOMENT_S, f"disk {number} may answer in time"
        oldest = min(self.began_s, key=lambda name: self.began_s[name])
        for late in self.parts.creation._late:
            is_open = late.is_taken or not self.parts.creation._is_wanted(late)
            assert is_open or late.plan.name != oldest, "the file is there"

    def _has_room(self, number: DiskNumber) -> bool:
        disk, usage = self.log.disks[number], self.log.usage(number)
        if disk.present_state is not DiskState.RW or usage is None:
            return False
        return takes_a_segment(usage, self.log.others.pending_bytes(number), disk.thresholds, SIZE)


class TwoLife(FullLife):
    """Two creates at once."""

    most_creates = 2


class SilentLife(FullLife):
    """Disks that do not answer when they are measured, either."""

    statvfs_hangs = True


class LockLife(FullLife):
    """Other changes of names hold the lock for a while."""

    def _change(self, number: DiskNumber) -> None:
        super()._change(number)
        if self.chance.random() < 0.6 and not self.parts.changes.lock.locked():
            self.nursery.start_soon(self._hold, self.chance.choice(LOCKED_S))

    async def _hold(self, seconds: float) -> None:
        async with self.parts.changes.lock:
            self._tell(f"the lock is held for {seconds:g} s")
            await trio.sleep(seconds)


@contextmanager
def faulty(life: Life, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the calls of a create hang and fail."""
    numbers = {disk.dirfd: int(number) for number, disk in life.log.disks.items()}
    reserve, link, is_absent = allocate.reserve, safe_open.link_unnamed, allocate.is_certainly_absent

    def faulty_reserve(dirfd: int, segment_size: int, owner: allocate.Owner) -> int:
        if code := life.faults.begin("reserve", numbers[dirfd]).errno:
            raise OSError(code, "injected")
        return reserve(dirfd, segment_size, owner)

    def faulty_link(fd: int, dirfd: int, name: bytes) -> None:
        fault = life.faults.begin("link", numbers[dirfd])
        if not fault.errno or fault.is_late:
            link(fd, dirfd, name)
        if fault.errno:
            raise OSError(fault.errno, "injected")

    def faulty_absence(dirfd: int, name: bytes) -> bool:
        life.faults.begin("absence", numbers[dirfd])
        return is_absent(dirfd, name)

    async def faulty_close(disk: DiskFiles, fd: int) -> None:
        def work() -> None:
            life.faults.begin("close", int(disk.number))
            os.close(fd)

        await life.parts.threads.run(disk.number, work)

    unlink = DiskFiles.unlink

    async def faulty_unlink(disk: DiskFiles, name: bytes, ino: int) -> DiskUsage:
        await leave(disk, ino, "remove")
        return await unlink(disk, name, ino)

    retire = DiskFiles.retire

    async def faulty_retire(disk: DiskFiles, name: bytes, ino: int, reason: Reason) -> Retired:
        await leave(disk, ino, "retire")
        return await retire(disk, name, ino, reason)

    async def leave(disk: DiskFiles, ino: int, kind: str) -> None:
        if isinstance(life, FullLife) and (disk.number, ino) in life.forced:
            fault = await life.parts.threads.run(disk.number, lambda: life.faults.begin(kind, int(disk.number)))
            if fault.errno:
                raise DiskFailedError(disk.path, "injected")

    def faulty_statvfs(path: int | str) -> object:
        if path in numbers and threading.current_thread() is not threading.main_thread():
            life.faults.begin("statvfs", numbers[int(path)])
        assert isinstance(life, FullLife)
        return life.room.statvfs(path)

    async def aside(_: DiskThreads, function: Callable[[], T], *, may_be_abandoned: bool = False) -> T:
        return function()  # it waits for no disk

    with patch.context() as patched:
        patched.setattr(allocate, "reserve", faulty_reserve)
        patched.setattr(safe_open, "link_unnamed", faulty_link)
        patched.setattr(allocate, "is_certainly_absent", faulty_absence)
        patched.setattr(DiskFiles, "close", faulty_close)
        patched.setattr(DiskFiles, "unlink", faulty_unlink)
        patched.setattr(DiskThreads, "aside", aside)
        if isinstance(life, FullLife):
            patched.setattr(os, "statvfs", faulty_statvfs if life.statvfs_hangs else life.room.statvfs)
            patched.setattr(DiskFiles, "retire", faulty_retire)
            patched.setattr(life.parts.removals, "carry_out", life.carry_out)
        yield


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < GATE_SEEDS else pytest.mark.full) for seed in range(SEEDS)]
)
@pytest.mark.parametrize("kind", [Life, FullLife, TwoLife, SilentLife, LockLife])
@pytest.mark.parametrize("disks", [DISKS, pytest.param(MANY_DISKS, marks=pytest.mark.full)])
def test_a_life_beside_disks_that_hang_and_fail(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, disks: int, kind: type[Life], seed: int
) -> None:
    clock = MockClock()
    timing = replace(PATIENT, requests=DEFAULTS)
    life: Life
    reclaim = None if issubclass(kind, FullLife) else lambda: life.reclaim()
    with open_parts(workdir, disks, reclaim=reclaim, clock=VirtualTime(clock), timing=timing) as parts:
        life = kind(parts, clock, seed)
        try:
            with faulty(life, monkeypatch):
                trio.run(life.run, clock=clock)
        except BaseException:
            print(*life.story, sep="\n")
            raise
        known = {name: (file.disk, file.ino) for name in life.names if (file := life.log.find_name(name))}
        directories = parts.directories
    successor(directories, known)


def successor(directories: list[Path], known: dict[bytes, tuple[DiskNumber, int]]) -> None:
    """Another daemon finds the same log."""
    specs = tuple(DiskSpec(str(directory), Thresholds()) for directory in directories)
    log = CommitLog(open_pool(specs, SIZE), POLICIES["round-robin"])
    try:
        found = {name: (file.disk, file.ino) for name in MANY if (file := log.find_name(name))}
        leftovers = {file.name: (file.disk, file.ino) for file in log.others if file.role is Role.GIVEN_UP}
        assert {**leftovers, **found} == known
    finally:
        log.close()
