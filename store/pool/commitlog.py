"""The open log: the facade that adapters call.

Every method is short, synchronous and touches memory only, so it is called on one thread (the event loop).
Blocking work is in `allocate`, `remove` and `beneath`; adapters run it in worker threads between a `plan_*`
and a `note_*` call:

    plan_create -> allocate.reserve, allocate.publish (next disk on failure) -> record_created | record_disk_error
                                                                               | record_uncertain
    plan_remove -> remove.retire_file | remove.remove_file                   -> record_retired | record_removed
    plan_publish_copy -> link, unlink                                        -> record_copy_published
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.eligibility import DiskView, Eligibility, RefusalReason, evaluate
from commitlogfs.store.disks.identity import DiskNumber, RootAttributes
from commitlogfs.store.disks.reclaim import FruitlessRemovals, ReclaimedSpace
from commitlogfs.store.errors import (
    BeyondSegmentError,
    DiskError,
    DiskFailedError,
    DiskFullError,
    InvalidNameError,
    InvalidSizeError,
    LogGapError,
    NoDiskAvailableError,
    NotPermittedError,
    SegmentExistsError,
    SegmentIncompleteError,
    SegmentNotFoundError,
)
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, nlink_of, size_of, unpack
from commitlogfs.store.files.usage import DiskUsage, UsageAfter
from commitlogfs.store.findings import Finding
from commitlogfs.store.placement import Candidate, PlacementPolicy, PlacementRequest
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.pool.open import Pool
from commitlogfs.store.segment import (
    BaseOffset,
    LogOffset,
    format_segment_name,
    parse_segment_name,
    parse_temporary_name,
)

UNLINK = "unlink"
"""Why a segment is removed, where a caller of the mount asked for it."""
NO_SPACE_CACHE_S = 0.1
"""After a create found no room anywhere: the broker retries about every millisecond."""


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Where to make a file: disks in order of preference."""

    name: bytes
    base_offset: BaseOffset
    role: Role
    order: tuple[DiskNumber, ...]
    fallback: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """A decision to remove a file. It is made while no name changes, and carried out before another one does."""

    file: Segment
    reason: str = UNLINK
    """UNLINK, or the rule of forced deletion."""
    why: str | None = None
    """Explanation of the rule, for the operator."""

    @property
    def is_forced(self) -> bool:
        return self.reason != UNLINK


class LogRange(NamedTuple):
    """A part of a log read that lies in one segment."""

    segment: Segment
    position: int
    length: int


@dataclass(slots=True)
class Counters:
    """Since the daemon started."""

    created: int = 0
    create_retries: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """By reason: "unlink", or the rule of forced deletion."""


class CommitLog:
    """Segments, disks and the rules that tie them. Not thread-safe: one thread owns it."""

    def __init__(self, pool: Pool, policy: PlacementPolicy) -> None:
        self.pool_id = pool.pool_id
        self.segment_size = pool.segment_size
        self.catalog: Catalog = pool.inventory.catalog
        self.disks: dict[DiskNumber, Disk] = {disk.number: disk for disk in pool.disks}
        self.missing: tuple[str, ...] = tuple(pool.missing)
        self.findings: list[Finding] = list(pool.findings)
        self.root: RootAttributes = pool.root
        self.policy = policy
        self.counters = Counters()
        self.skipped: frozenset[DiskNumber] = frozenset()
        self.last_eligibility: Eligibility | None = None
        self._temporaries: dict[bytes, Segment] = pool.inventory.temporaries
        self._leaving: dict[bytes, Segment] = {}
        self._quarantined: dict[bytes, str] = pool.inventory.quarantined
        self._uncertain: dict[bytes, DiskNumber] = {}
        self._others: dict[tuple[DiskNumber, int], Segment] = {
            (file.disk, file.ino): file for file in (*self._temporaries.values(), *pool.inventory.leftovers)
        }
        self._kept: set[tuple[DiskNumber, int]] = set()
        self._usage: dict[DiskNumber, DiskUsage | None] = dict.fromkeys(self.disks)
        self._reclaimed_space = ReclaimedSpace(self.segment_size)
        self._linked: Counter[DiskNumber] = Counter()
        self._no_space: tuple[float, NoDiskAvailableError] | None = None
        self._newest_missing = pool.newest_missing
        self._sealed_floor = self._find_sealed_floor()

    def _find_sealed_floor(self) -> BaseOffset | None:
        """Below this no segment is made, since a missing disk may hold it; None where every disk is there."""
        floors = [] if self._newest_missing is None else [BaseOffset(self._newest_missing + self.segment_size)]
        if self.missing and self.catalog.last is not None:
            floors.append(self.catalog.last.base_offset)
        return max(floors, default=None)

    @property
    def newest(self) -> BaseOffset | None:
        """The newest segment, wherever it lies, as every disk records it."""
        last = self.catalog.last
        known = (self._newest_missing, None if last is None else last.base_offset)
        return max((base for base in known if base is not None), default=None)

    # --- looking up ----------------------------------------------------------------------------------

    def find_name(self, name: bytes) -> Segment | None:
        """The segment or temporary of this name."""
        base = parse_segment_name(name, self.segment_size)
        return self._temporaries.get(name) if base is None else self.catalog.get(base)

    def find_ino(self, disk: DiskNumber, ino: int) -> Segment:
        """The file behind an inode, whatever its role. Raises SegmentNotFoundError."""
        file = self.catalog.by_ino(disk, ino) or self._others.get((disk, ino))
        if file is None:
            raise SegmentNotFoundError(f"disk {disk}: inode {ino} is no file of this pool")
        return file

    def listed(self) -> Iterator[Segment]:
        """What a directory listing shows: whole segments only, because a broker that meets a file of another
        length refuses to start, and one that meets an empty last file deletes it."""
        return self.listed_after(-1)

    def listed_after(self, base_offset: int) -> Iterator[Segment]:
        """Those of them behind `base_offset`, found as they are taken: not to be held across changes."""
        return filter(self.is_listed, self.catalog.after(base_offset))

    def is_listed(self, segment: Segment) -> bool:
        return segment.size == self.segment_size

    def disk_of(self, file: Segment) -> Disk:
        return self.disks[file.disk]

    def quarantined(self, name: bytes) -> str:
        """Why a file of this name is kept but not served; empty if there is none."""
        return self._quarantined.get(name, "")

    # --- the log as one file -------------------------------------------------------------------------

    @property
    def end_offset(self) -> LogOffset:
        """The log offset just past the last whole segment; 0 for an empty log."""
        last = self.catalog.last_whole
        return LogOffset(0 if last is None else last.base_offset + self.segment_size)

    def split_range(self, offset: int, length: int) -> list[LogRange]:
        """The segments that hold log offsets [offset, offset + length), clipped at the end of the log.

        Raises LogGapError where the first byte lies in no whole segment. A gap further on ends the range
        early: what precedes it can be read.
        """
        ranges: list[LogRange] = []
        end = min(offset + length, self.end_offset)
        while offset < end:
            segment = self.catalog.find(offset)
            if segment is None or segment.size != self.segment_size:
                if ranges:
                    break
                raise LogGapError(f"log offset {offset}: no segment holds it")
            position = offset - segment.base_offset
            count = min(end - offset, self.segment_size - position)
            ranges.append(LogRange(segment, position, count))
            offset += count
        return ranges

    # --- disks ---------------------------------------------------------------------------------------

    def record_usage(self, number: DiskNumber, usage: DiskUsage | None) -> None:
        """The latest measurement of a disk; None while it does not answer."""
        self._usage[number] = usage
        if usage is not None:
            self._reclaimed_space.record_free(number, usage.free_bytes)

    def measured(self, number: DiskNumber) -> DiskUsage | None:
        """The latest measurement, as the disk says."""
        return self._usage[number]

    def pending_bytes(self, number: DiskNumber) -> int:
        """Of removed but still open segments: on their way to being free."""
        return sum(
            self.gainable_bytes(file)
            for file in self._others.values()
            if file.role is Role.RETIRED and file.disk == number
        )

    def gainable_bytes(self, file: Segment) -> int:
        """What unlinking this file, and its last close, give back, as far as is known: nothing while somebody keeps
        it under a name of his own."""
        return 0 if nlink_of(file.attributes) > 1 else self.punchable_bytes(file)

    def punchable_bytes(self, file: Segment) -> int:
        """What a hole in a retired file would give back; its other names, which forbid that, may have gone since
        they were seen."""
        return 0 if (file.disk, file.ino) in self._kept else unpack(file.attributes).allocated_bytes

    def count_links(self) -> None:
        """Walk the log for `freeable_bytes`: which segments have names besides ours."""
        self._linked = Counter(segment.disk for segment in self.catalog if nlink_of(segment.attributes) > 1)

    def fruitless_removals(self) -> dict[DiskNumber, FruitlessRemovals]:
        """Disks where the latest removals have not freed what they promised."""
        return self._reclaimed_space.records()

    def resume_fruitless_removals(self, number: DiskNumber, record: FruitlessRemovals) -> None:
        """What a former daemon of this mount has found."""
        self._reclaimed_space.resume(number, record)

    def reclaims_nothing(self, number: DiskNumber) -> bool:
        """Whether the latest removals from this disk freed nothing, so that none is to be counted on."""
        return self._reclaimed_space.reclaims_nothing(number, time.monotonic())

    def freeable_bytes(self, number: DiskNumber) -> int:
        """What removing all segments of a disk would give back, as far as is known."""
        if self.reclaims_nothing(number):
            return 0
        return max(0, self.catalog.count_on_disk(number) - self._linked[number]) * self.segment_size

    def usage(self, number: DiskNumber) -> DiskUsage | None:
        """The latest measurement, with pending bytes counted as free already."""
        usage = self._usage[number]
        return None if usage is None else usage.with_pending_free(self.pending_bytes(number))

    def views(self, now_s: float) -> tuple[DiskView, ...]:
        return tuple(
            DiskView(
                disk.number,
                disk.state,
                self.usage(disk.number),
                disk.thresholds,
                health.is_held_back(disk, now_s),
                self.pending_bytes(disk.number),
            )
            for disk in self.disks.values()
        )

    def evaluate(self, now_s: float) -> Eligibility:
        """Who may take a segment now; remembers who is skipped, for the hysteresis."""
        eligibility = evaluate(self.views(now_s), self.segment_size, self.skipped)
        self.skipped = eligibility.skipped
        self.last_eligibility = eligibility
        return eligibility

    def record_disk_error(self, number: DiskNumber, error: DiskError, now_s: float) -> None:
        """A create has failed there, and goes on to the next disk."""
        self.counters.create_retries += 1
        self.record_trouble(number, error, now_s)

    def record_trouble(self, number: DiskNumber, error: DiskError, now_s: float) -> None:
        """A disk has refused a change."""
        health.record_error(self.disks[number], error, now_s)

    # --- creating ------------------------------------------------------------------------------------

    def plan_create(self, name: bytes, now_s: float | None = None) -> CreatePlan:
        """Choose disks for a new segment or temporary.

        Raises InvalidNameError, SegmentExistsError, NoDiskAvailableError (the last answer of that kind
        holds for NO_SPACE_CACHE_S).
        """
        now_s = time.monotonic() if now_s is None else now_s
        base, role = self._parse_new_name(name)
        self._require_free_name(name, base)
        if self._no_space is not None and self.refuses_for_now(now_s):
            raise self._no_space[1]
        eligibility = self.evaluate(now_s)
        if not eligibility.eligible and not eligibility.held_back:
            error = self._no_disk_error(eligibility)
            self._no_space = (now_s + NO_SPACE_CACHE_S, error)
            raise error
        leftover_disks = {file.disk for file in self.leftovers_named(name)}
        order = tuple(number for number in self._rank(base, eligibility) if number not in leftover_disks)
        return CreatePlan(name, base, role, order, eligibility.fallback)

    def preview_next(self) -> tuple[DiskNumber, ...]:
        """Where the segment after the newest would go now, best first; empty if nowhere."""
        last = self.catalog.last
        base = BaseOffset(0 if last is None else last.base_offset + self.segment_size)
        return self._rank(base, self.evaluate(time.monotonic()))

    def record_created(self, plan: CreatePlan, number: DiskNumber, published: Published) -> Segment:
        """The file exists now. Returns its entry."""
        health.record_success(self.disks[number])
        self.record_usage(number, published.usage)
        self.counters.created += 1
        if plan.role is Role.TEMPORARY:
            file = Segment(plan.base_offset, number, published.attributes, Role.TEMPORARY, plan.name)
            self._temporaries[plan.name] = file
            self._others[(number, file.ino)] = file
        else:
            file = Segment(plan.base_offset, number, published.attributes)
            self.catalog.add(file)
        return file

    def can_move(self, file: Segment, now_s: float) -> bool:
        """Whether a segment that its disk refuses to go on with could be made on another one."""
        eligibility = self.evaluate(now_s)
        taken = {file.disk, *(leftover.disk for leftover in self.leftovers_named(file.name))}
        others = {*eligibility.eligible, *eligibility.last_resort} - taken
        return file.role is Role.SEGMENT and bool(others)

    def record_given_up(self, file: Segment) -> None:
        """An empty segment has left the log; its file stays on the failed disk, and its name is free for others."""
        self.catalog.remove(file)
        self.record_leftover(file)

    def record_leftover(self, file: Segment) -> None:
        """A failed disk holds, or may hold, this empty file, which is no part of the log."""
        file.role = Role.GIVEN_UP
        self._others[(file.disk, file.ino)] = file

    def record_leftover_gone(self, file: Segment, usage: DiskUsage | None = None) -> None:
        """It does not lie on its disk any longer."""
        self._others.pop((file.disk, file.ino), None)
        self._no_space = None
        if usage is not None:
            self.record_usage(file.disk, usage)

    def leftovers_named(self, name: bytes) -> list[Segment]:
        return [file for file in self._others.values() if file.role is Role.GIVEN_UP and file.name == name]

    def leftovers(self, number: DiskNumber) -> list[Segment]:
        """Files to be removed from a disk when it is well, unless they turned out to hold data (`record_kept`)."""
        return [
            file
            for key, file in self._others.items()
            if file.role is Role.GIVEN_UP and file.disk == number and key not in self._kept
        ]

    def record_uncertain(self, name: bytes, number: DiskNumber) -> None:
        """A disk holds, or may hold, this name outside of the log: until it denies that (`record_denied`), no disk
        gets the name, because the same segment on two disks is the one thing that must not happen."""
        self._uncertain[name] = number

    def uncertain(self, name: bytes) -> DiskNumber | None:
        """The disk to be asked before this name is used."""
        return self._uncertain.get(name)

    def record_denied(self, name: bytes) -> None:
        """The name certainly does not lie on the disk it was suspected on."""
        del self._uncertain[name]

    def refuses_for_now(self, now_s: float) -> bool:
        """Whether a create gets the answer of a moment ago, without another look."""
        return self._no_space is not None and now_s < self._no_space[0]

    def no_disk_left(self, plan: CreatePlan, now_s: float) -> NoDiskAvailableError:
        """Every disk of the plan refused: the error to raise, also for the next moment's attempts."""
        error = self._no_disk_error(self.evaluate(now_s))
        self._no_space = (now_s + NO_SPACE_CACHE_S, error)
        return error

    def _rank(self, base: BaseOffset, eligibility: Eligibility) -> tuple[DiskNumber, ...]:
        predecessor = self.catalog.predecessor(base)
        request = PlacementRequest(
            base, self.segment_size, None if predecessor is None else predecessor.disk, tuple(self.disks)
        )

        def ranked(numbers: tuple[DiskNumber, ...]) -> tuple[DiskNumber, ...]:
            candidates = tuple(
                Candidate(disk.number, disk.disk_id, disk.path, disk.weight, self._available(disk.number))
                for disk in self.disks.values()
                if disk.number in numbers
            )
            return tuple(self.policy.rank(request, candidates)) if candidates else ()

        return ranked(eligibility.eligible) + ranked(eligibility.last_resort) + ranked(eligibility.held_back)

    def _parse_new_name(self, name: bytes) -> tuple[BaseOffset, Role]:
        base = parse_segment_name(name, self.segment_size)
        if base is not None:
            return base, Role.SEGMENT
        base = parse_temporary_name(name, self.segment_size)
        if base is not None:
            return base, Role.TEMPORARY
        shown = name.decode(errors="backslashreplace")
        raise InvalidNameError(
            f"{shown}: not a segment of this log: names are 20 digits, a multiple of {self.segment_size}"
        )

    def _require_free_name(self, name: bytes, base: BaseOffset) -> None:
        if name in self._quarantined:
            raise SegmentExistsError(f"{name.decode()}: quarantined: {self._quarantined[name]}")
        if name in self._leaving:
            raise SegmentExistsError(f"{name.decode()}: being removed by a disk that does not answer")
        if name in self._uncertain:
            disk = self.disks[self._uncertain[name]]
            raise SegmentExistsError(f"{name.decode()}: a file of that name lies, or may lie, on {disk.path}")
        if self.find_name(name) is not None:
            raise SegmentExistsError(f"{name.decode()}: exists")
        if self._sealed_floor is not None and base < self._sealed_floor:
            raise SegmentExistsError(
                f"{format_segment_name(base).decode()}: may lie on a missing disk ({', '.join(self.missing)})"
            )

    def _available(self, number: DiskNumber) -> int:
        usage = self.usage(number)
        return 0 if usage is None else usage.available_bytes

    def _no_disk_error(self, eligibility: Eligibility) -> NoDiskAvailableError:
        words = {
            RefusalReason.ABOVE_FORCE: "above force",
            RefusalReason.NO_ROOM: "full",
            RefusalReason.HELD_BACK: "failed a moment ago",
            RefusalReason.NOT_WRITABLE: "not writable",
            RefusalReason.UNKNOWN_USAGE: "does not answer",
        }
        parts = []
        for number, reason in eligibility.refusals.items():
            disk = self.disks[number]
            detail = disk.last_error if reason is RefusalReason.HELD_BACK else f"{disk.path}: {words[reason]}"
            parts.append(detail)
        no_space = any(
            reason is RefusalReason.NO_ROOM
            or (reason is RefusalReason.HELD_BACK and isinstance(self.disks[number].last_failure, DiskFullError))
            for number, reason in eligibility.refusals.items()
        )
        failing = any(
            reason is RefusalReason.UNKNOWN_USAGE
            or (reason is RefusalReason.HELD_BACK and isinstance(self.disks[number].last_failure, DiskFailedError))
            for number, reason in eligibility.refusals.items()
        )
        message = f"no disk takes a new segment: {'; '.join(parts) or 'all refused'}"
        return NoDiskAvailableError(message, no_space=no_space, failing=failing)

    # --- writing and growing -------------------------------------------------------------------------

    def fit_write(self, offset: int, length: int) -> int:
        """How many bytes of a write lie within the fixed size. Raises BeyondSegmentError if none does."""
        if offset >= self.segment_size:
            raise BeyondSegmentError(f"a write at {offset} passes the segment size {self.segment_size}")
        return min(length, self.segment_size - offset)

    def check_resize(self, current_size: int, new_size: int) -> None:
        """A file grows to the segment size and never shrinks. Raises InvalidSizeError, BeyondSegmentError."""
        if new_size == current_size:
            return
        if new_size > self.segment_size:
            raise BeyondSegmentError(f"size {new_size} is more than the segment size {self.segment_size}")
        if new_size != self.segment_size:
            raise InvalidSizeError(f"size {new_size}: a segment grows to {self.segment_size} and never shrinks")

    def record_attributes(self, file: Segment, attributes: PackedAttributes) -> None:
        """Attributes after a change made through us: nothing newer is known."""
        self._set_attributes(file, attributes)

    def record_look(self, file: Segment, known: PackedAttributes, seen: PackedAttributes) -> bool:
        """What a stat saw. `known` are the attributes known when it began: if something newer has been noted
        since, the stat may have come before that change, and is left out.

        False, and nothing noted, for another inode: somebody put another file in its place."""
        if ino_of(seen) != file.ino:
            return False
        if file.attributes is known:
            self._set_attributes(file, seen)
        return True

    def _set_attributes(self, file: Segment, attributes: PackedAttributes) -> None:
        size_changes = size_of(attributes) != file.size
        file.attributes = attributes
        if size_changes and self.catalog.by_ino(file.disk, file.ino) is file:
            self.catalog.record_size(file)

    # --- removing and renaming -----------------------------------------------------------------------

    def plan_remove(self, name: bytes) -> Removal:
        """The removal that a caller of the mount asks for. Raises SegmentNotFoundError."""
        file = self.find_name(name)
        if file is None:
            raise SegmentNotFoundError(f"{name.decode(errors='backslashreplace')}: no such segment")
        return Removal(file)

    def record_removed(self, file: Segment, usage: DiskUsage, reason: str = UNLINK) -> None:
        """The file is gone from its disk for good."""
        if isinstance(usage, UsageAfter):
            promised = self.gainable_bytes(file)
            self._reclaimed_space.record_removal(
                file.disk, promised, usage.gained_bytes, usage.free_bytes, time.monotonic()
            )
        self._drop_name(file, reason)
        if self._others.get((file.disk, file.ino)) is file:  # its inode number may have been given away by now
            del self._others[file.disk, file.ino]
            self._kept.discard((file.disk, file.ino))
        self.record_usage(file.disk, usage)
        self._no_space = None

    def record_retired(self, file: Segment, retired_name: bytes, reason: str = UNLINK) -> None:
        """The file has left the log but is still open."""
        self._drop_name(file, reason)
        file.role = Role.RETIRED
        file.placed_as = retired_name
        self._others[(file.disk, file.ino)] = file
        self._no_space = None

    def record_kept(self, file: Segment) -> None:
        """A retired file has a name of somebody else's on its disk: its last close frees nothing."""
        if self._others.get((file.disk, file.ino)) is file:
            self._kept.add((file.disk, file.ino))

    def record_leaving(self, file: Segment, reason: str = UNLINK) -> None:
        """A removal takes longer than anyone waits for: the file is out of the log already, its name stays
        taken until `record_removed`, `record_retired` or `record_stayed`."""
        name = file.name
        self._drop_name(file, reason)
        self._leaving[name] = file
        self._others[(file.disk, file.ino)] = file

    def record_stayed(self, file: Segment, reason: str = UNLINK) -> None:
        """A removal has failed after all."""
        if self._leaving.pop(file.name, None) is None:
            return
        if file.role is Role.TEMPORARY:
            self._temporaries[file.placed_as] = file
        else:
            del self._others[(file.disk, file.ino)]
            self.catalog.add(file)
            self.counters.removed[reason] -= 1

    def plan_publish_copy(self, old_name: bytes, new_name: bytes) -> Segment:
        """A finished copy gets its segment's name.

        Raises NotPermittedError for any other rename, SegmentExistsError, SegmentIncompleteError,
        InvalidNameError, SegmentNotFoundError. The caller has refreshed the attributes.
        """
        file = self.find_name(old_name)
        if file is None:
            raise SegmentNotFoundError(f"{old_name.decode(errors='backslashreplace')}: no such file")
        if file.role is not Role.TEMPORARY:
            raise NotPermittedError(f"{old_name.decode()}: segments are not renamed")
        base, role = self._parse_new_name(new_name)
        self._require_free_name(new_name, base)
        if role is Role.SEGMENT and file.size != self.segment_size:
            raise SegmentIncompleteError(
                f"{old_name.decode()}: has {file.size} of {self.segment_size} bytes: finish the copy first"
            )
        return file

    def record_copy_published(self, file: Segment, new_name: bytes, attributes: PackedAttributes) -> None:
        del self._temporaries[file.placed_as]
        file.attributes = attributes
        base, role = self._parse_new_name(new_name)
        file.base_offset = base
        if role is Role.TEMPORARY:
            file.placed_as = new_name
            self._temporaries[new_name] = file
            return
        del self._others[(file.disk, file.ino)]
        file.role = Role.SEGMENT
        file.placed_as = b""
        self.catalog.add(file)

    def _drop_name(self, file: Segment, reason: str) -> None:
        if self._leaving.pop(file.name, None) is not None:
            return
        if file.role is Role.SEGMENT:
            self.catalog.remove(file)
            self.counters.removed[reason] += 1
        elif file.role is Role.TEMPORARY:
            del self._temporaries[file.placed_as]

    @property
    def is_removing(self) -> bool:
        """Whether a disk has not yet answered to a removal."""
        return bool(self._leaving)

    # --- closing -------------------------------------------------------------------------------------

    @property
    def has_retired(self) -> bool:
        """Cheap where there is none, which is nearly always."""
        return len(self._others) > len(self._temporaries) and bool(self.retired())

    def record_found_retired(self, file: Segment) -> None:
        """A former daemon has retired this file, and somebody may still have it open."""
        self._others[(file.disk, file.ino)] = file

    def files(self) -> Iterator[Segment]:
        """Every file that can still be open: segments, temporaries, retired and leaving ones."""
        yield from self.catalog
        yield from self._others.values()

    def retired(self) -> list[Segment]:
        return [file for file in self._others.values() if file.role is Role.RETIRED]

    def close(self) -> None:
        for disk in self.disks.values():
            disk.close()
