"""The open log: its ledgers, and the changes that concern several of them.

Every method is short, synchronous and touches memory only, so it is called on one thread (the event loop).
Blocking work is in `store.files`; callers run it in worker threads between a `plan_*` and a `record_*` call:

    plan_create -> allocate.reserve, allocate.publish (next disk on failure) -> record_created | record_disk_error
                                                                               | names.record_uncertain
    plan_remove -> remove.retire_file | remove.remove_file                   -> record_retired | record_removed
    plan_publish_copy -> rename.rename_copy                                  -> record_copy_published
    moves.copy.SegmentCopy                        -> record_moved | record_restored | record_repaired

What concerns one ledger only is asked and recorded there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.eligibility import Eligibility
from commitlogfs.store.disks.forecast import Removals
from commitlogfs.store.disks.identity import DiskIdentity, RootAttributes, is_recordable, require_recordable
from commitlogfs.store.disks.losses import is_accepted, still_lost
from commitlogfs.store.disks.membership import DiskNumber, Member, Membership, RebalanceMode
from commitlogfs.store.errors import (
    BeyondSegmentError,
    DiskError,
    InvalidSizeError,
    NotPermittedError,
    SegmentIncompleteError,
    SegmentNotFoundError,
)
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.files.attributes import PackedAttributes, ino_of, mtime_of, size_of, unpack, with_size
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.findings import Finding, FindingCode
from commitlogfs.store.placement import PlacementPolicy
from commitlogfs.store.placement.standing import Standing
from commitlogfs.store.pool.admission import Admission
from commitlogfs.store.pool.catalog import Catalog, Role, Segment, SizeChange
from commitlogfs.store.pool.names import Names
from commitlogfs.store.pool.open import Pool
from commitlogfs.store.pool.other_files import OtherFiles
from commitlogfs.store.pool.space import Space
from commitlogfs.store.segment import BaseOffset, parse_segment_name
from commitlogfs.store.timing import DEFAULT, Timing

UNLINK = "unlink"
LEFT_OVER = "left-over"
"""A restored segment that a broker does not know, and that lies before one which the broker removes."""
"""Why a segment is removed, where a caller of the mount asked for it."""


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """Where to make a file: disks in order of preference."""

    name: bytes
    base_offset: BaseOffset
    role: Role
    order: tuple[DiskNumber, ...]
    skip_reasons: tuple[str, ...]
    """Why other disks were passed over."""
    policy: str
    standings: tuple[Standing, ...]
    """All disks at that moment."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A decision to remove a file. It is made while no name changes, and carried out before another one does."""

    file: Segment
    reason: str = UNLINK
    """UNLINK, LEFT_OVER, or the rule of forced deletion."""
    why: str | None = None
    """Explanation for the operator: of the rule, or the fill level that statfs showed to the caller."""

    @property
    def is_forced(self) -> bool:
        return self.reason != UNLINK


@dataclass(slots=True)
class Counters:
    """Since the daemon started."""

    created: int = 0
    create_retries: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """By reason: "unlink", "left-over", or the rule of forced deletion."""
    moved: int = 0
    """Segments that were moved to another disk."""
    moved_bytes: int = 0
    move_failures: int = 0
    restored: int = 0
    """Segments that were missing and have come back from outside the pool."""
    repaired: int = 0
    """Damaged segments of which a right copy from outside the pool has taken the place."""
    checksums: int = 0
    """Checksums that were computed, without those of moved and restored segments."""
    checksum_bytes: int = 0
    """Bytes that were read for them."""
    checksum_mismatches: int = 0
    """Times that a move read something else than a segment's checksum was made of."""
    lost_writes: int = 0
    """Times that a disk was found to lack what was written to a segment."""
    scrub_bytes: int = 0
    """Bytes that scrubs have read of segments that they have finished."""
    damaged: Counter[str] = field(default_factory=Counter)
    """Segments that were found to be damaged, by kind (store/scrub/verdict.py)."""


class CommitLog:
    """The log and its ledgers. Not thread-safe: one thread owns it.

    catalog     segments, in order of their offsets
    others      files that are not in the catalog: copies in progress, retired files, leftovers
    names       names in use, and names that no new file may get
    space       how full the disks are, and what removing would give back
    admission   which disks take the next segment
    """

    def __init__(
        self, pool: Pool, policy: PlacementPolicy, clock: Clock = SYSTEM_CLOCK, timing: Timing = DEFAULT
    ) -> None:
        """`clock` and `timing` are those of everything that works on this log."""
        self.clock = clock
        self.timing = timing
        inventory = pool.inventory
        self.pool_id = pool.pool_id
        self.segment_size = pool.segment_size
        self.disks: dict[DiskNumber, Disk] = {disk.number: disk for disk in pool.disks}
        self.missing: tuple[str, ...] = tuple(pool.missing)
        """Paths of members that are not served, whether they are offline or lost."""
        self.findings: list[Finding] = list(pool.findings)
        self.root: RootAttributes = pool.root
        self.membership: Membership = pool.membership
        self.recorded: dict[DiskNumber, int | None] = {
            disk.number: pool.recorded[disk.number] for disk in pool.disks
        }
        """Generation of the list of members that each disk records; None for a disk that joins."""
        self.policy = policy
        self.counters = Counters()
        self.refused_size: int | None = None
        """Size that a process, such as a broker with another mappedFileSizeCommitLog, has asked for a new segment
        last; None once one has got its size."""
        self.removals = Removals()
        """Since the start of this daemon."""
        self._removed_end = 0
        """End of the newest segment that was removed from the beginning of the log by this daemon."""
        self._removed_found = any(finding.code is FindingCode.REMOVED_SEGMENTS for finding in pool.findings)
        self._are_losses_checked = False
        """Whether no segment has appeared since the losses were compared with the log."""
        self.catalog: Catalog = inventory.catalog
        self.others = OtherFiles((*inventory.temporaries.values(), *inventory.leftovers, *inventory.moved))
        self.names = Names(
            self.catalog,
            self.disks,
            inventory.temporaries,
            inventory.quarantined,
            self.missing,
            pool.newest_missing,
            pool.membership.removed_before if self._removed_found else 0,
        )
        self.space = Space(self.disks, self.catalog, self.others, clock, timing.health.fruitless_s)
        self.admission = Admission(self.disks, policy, self.catalog, self.others, self.space, clock, timing)
        self.admission.favours_emptier = self._favours_emptier()

    # --- looking up ----------------------------------------------------------------------------------

    def find_name(self, name: bytes) -> Segment | None:
        """The segment or temporary of this name."""
        return self.names.find(name)

    def find_ino(self, disk: DiskNumber, ino: int) -> Segment:
        """The file behind an inode, whatever its role. Raises SegmentNotFoundError."""
        file = self.catalog.by_ino(disk, ino) or self.others.get(disk, ino)
        if file is None:
            raise SegmentNotFoundError(f"disk {disk}: inode {ino} is not a file of this pool")
        return file

    def disk_of(self, file: Segment) -> Disk:
        return self.disks[file.disk]

    def listed(self) -> Iterator[Segment]:
        """The segments that a directory listing shows: whole ones only, because a broker that meets a file of
        another length refuses to start, and one that meets an empty last file deletes it."""
        return self.listed_after(-1)

    def listed_after(self, base_offset: int) -> Iterator[Segment]:
        """The listed segments after `base_offset`, found as they are taken: not to be held across changes."""
        return filter(self.is_listed, self.catalog.after(base_offset))

    def is_listed(self, segment: Segment) -> bool:
        return segment.size == self.segment_size

    def files(self) -> Iterator[Segment]:
        """Every file that can still be open: segments, temporaries, retired and leaving ones."""
        yield from self.catalog
        yield from self.others

    # --- for reports ---------------------------------------------------------------------------------

    def quarantined(self, name: bytes) -> str:
        """Why a file of this name is kept but not served; empty if there is none."""
        return self.names.quarantined(name)

    def retired(self) -> list[Segment]:
        """Files that have left the log and may still be open."""
        return self.others.retired()

    def usage(self, number: DiskNumber) -> DiskUsage | None:
        """The latest measurement of a disk, with pending bytes counted as free already."""
        return self.space.usage(number)

    def evaluate(self, now_s: float) -> Eligibility:
        """Which disks may take a segment now."""
        return self.admission.evaluate(now_s)

    def others_take_segments(self, disk: Disk) -> bool:
        """Whether a disk other than this one may take a segment now."""
        eligibility = self.evaluate(self.clock.monotonic())
        return bool({*eligibility.eligible, *eligibility.above_force, *eligibility.slow} - {disk.number})

    def preview_next(self) -> tuple[DiskNumber, ...]:
        """Where the segment after the newest would go now, best first; empty if nowhere."""
        return self.admission.preview_next()

    def expires_within(self, segment: Segment, seconds: float) -> bool:
        """Whether a segment is expected to leave the log within this time, by the age of those removed before."""
        changed_s = mtime_of(segment.attributes) / 1e9
        lifetime_s = self.removals.lifetime(changed_s)
        return lifetime_s is not None and changed_s + lifetime_s < self.clock.wall() + seconds

    def is_about_to_expire(self, segment: Segment, seconds: float) -> bool:
        """The same for one that is not overdue: a broker may keep segments longer than those before."""
        return self.expires_within(segment, seconds) and not self.expires_within(segment, 0.0)

    # --- creating ------------------------------------------------------------------------------------

    def plan_create(self, name: bytes, now_s: float | None = None) -> CreatePlan:
        """Choose disks for a new segment or temporary.

        Raises InvalidNameError, SegmentExistsError, NoDiskAvailableError (the last answer of that kind
        holds for `no_disk_s`).
        """
        now_s = self.clock.monotonic() if now_s is None else now_s
        base, role = self.names.parse_new(name)
        self.names.require_free(name, base)
        choice = self.admission.choose(base, name, now_s)
        return CreatePlan(name, base, role, choice.order, choice.skip_reasons, choice.policy, choice.standings)

    def record_created(self, plan: CreatePlan, number: DiskNumber, published: Published) -> Segment:
        """The file exists. Returns its entry."""
        self.admission.record_success(number)
        self.space.record_usage(number, published.usage)
        self.counters.created += 1
        placed_as = plan.name if plan.role is Role.TEMPORARY else b""
        file = Segment(plan.base_offset, number, published.attributes, plan.role, placed_as)
        self._enter(file)
        if plan.role is Role.TEMPORARY:
            self.others.add(file)
        return file

    def _enter(self, file: Segment) -> None:
        self.names.enter(file)
        self.others.record_named(file)
        self._are_losses_checked = False

    def record_disk_error(self, number: DiskNumber, error: DiskError, now_s: float) -> None:
        """A create has failed there, and continues on the next disk."""
        self.counters.create_retries += 1
        self.admission.record_trouble(number, error, now_s)

    # --- segments that their disk refuses ------------------------------------------------------------

    def record_given_up(self, file: Segment) -> None:
        """An empty segment has left the log; its file stays on the failed disk, and its name is free for others."""
        self.names.drop(file)
        self.record_leftover(file)

    def record_leftover(self, file: Segment, *, is_linking: bool = False) -> None:
        """A failed disk holds, or may hold, this empty file, which is not a part of the log. `is_linking`: it gets
        its name when the disk answers, unless that fails."""
        file.role = Role.LINKING if is_linking else Role.GIVEN_UP
        self.others.add(file)

    def record_leftover_gone(self, file: Segment, usage: DiskUsage | None = None) -> None:
        """It does not lie on its disk any longer."""
        self.others.remove(file)
        self.admission.forget_refusal()
        if usage is not None:
            self.space.record_usage(file.disk, usage)

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
        """Attributes after a change made through us: nothing newer is known. What a process has written past the
        segment's end, through passthrough, is no part of the log, so it does not count for the size."""
        if size_of(attributes) > self.segment_size:
            attributes = with_size(attributes, self.segment_size)
        size_changes = size_of(attributes) != file.size
        is_written = size_changes or mtime_of(attributes) != mtime_of(file.attributes)
        file.attributes = attributes
        file.size_change = SizeChange.NONE
        if size_changes and self.catalog.holds(file):
            self.catalog.record_size(file)
            self._are_losses_checked = False
        if is_written:
            self.catalog.record_checksum(file, is_valid=False)

    def record_stat(self, file: Segment, known: PackedAttributes, seen: PackedAttributes) -> bool:
        """Record what a stat saw. `known` are the attributes known when it began: if something newer has been
        recorded since, the stat may have come before that change, and is left out, as is one of a segment without a
        size that its disk has confirmed.

        False, and nothing recorded, for another inode: another file has been put in its place."""
        if ino_of(seen) != file.ino:
            return False
        if file.attributes is known and file.size_change is SizeChange.NONE:
            self.record_attributes(file, seen)
        return True

    # --- removing ------------------------------------------------------------------------------------

    def plan_remove(self, name: bytes) -> Removal:
        """The removal that a caller of the mount asks for. Raises SegmentNotFoundError."""
        file = self.find_name(name)
        if file is None:
            raise SegmentNotFoundError(f"{name.decode(errors='backslashreplace')}: no such segment")
        return Removal(file)

    def record_removed(self, removal: Removal, usage: DiskUsage) -> None:
        """The file is gone from its disk for good."""
        self._drop_name(removal)
        self.record_freed(removal.file, usage)

    def record_retired(self, removal: Removal, retired_name: bytes) -> None:
        """The file has left the log but is still open."""
        file = removal.file
        self._drop_name(removal)
        file.role = Role.RETIRED
        file.placed_as = retired_name
        self.others.add(file)
        self.admission.forget_refusal()

    def record_freed(self, file: Segment, usage: DiskUsage) -> None:
        """A file that had left the log is gone from its disk for good."""
        self.space.record_removal(file, usage)
        self.others.remove(file)
        self.admission.forget_refusal()

    def record_leaving(self, removal: Removal) -> None:
        """A removal takes longer than anyone waits for: the file is out of the log already, its name stays
        taken until `record_removed`, `record_retired` or `record_stayed`."""
        self._drop_name(removal)
        self.names.record_leaving(removal.file)
        self.others.add(removal.file)

    def record_stayed(self, removal: Removal) -> None:
        """A removal has failed. If the file had left the log, it is back."""
        file = removal.file
        if not self.names.end_leaving(file):
            return
        self.names.enter(file)
        if file.role is Role.SEGMENT:
            self.others.remove(file)
            self.counters.removed[removal.reason] -= 1

    def record_found_retired(self, file: Segment) -> None:
        """A former daemon has retired this file, and it may still be open."""
        self.others.add(file)

    @property
    def is_removing(self) -> bool:
        """Whether a disk has not yet answered to a removal."""
        return self.names.is_any_leaving

    def record_found_removed(self, name: bytes) -> None:
        """A former daemon has removed this file, and may have died before anything recorded that."""
        base = parse_segment_name(name, self.segment_size)
        first = self.catalog.first
        if base is not None and first is not None and base < first.base_offset:
            self._removed_end = max(self._removed_end, base + self.segment_size)

    def may_come_back(self, name: bytes) -> bool:
        """Whether a file that no present disk has may be in the log again when a missing disk is back."""
        base = parse_segment_name(name, self.segment_size)
        return bool(self.missing) and (base is None or base >= self.membership.removed_before)

    def _drop_name(self, removal: Removal) -> None:
        if removal.file is self.catalog.first:
            changed_s = unpack(removal.file.attributes).mtime_ns / 1e9
            self._removed_end = removal.file.base_offset + self.segment_size
            self.removals.record(changed_s, self.clock.wall(), self._removed_end)
        if self.names.drop(removal.file) and removal.file.role is Role.SEGMENT:
            self.counters.removed[removal.reason] += 1

    # --- members -------------------------------------------------------------------------------------

    def identity_of(self, disk: Disk) -> DiskIdentity:
        """The identity that a disk is to record."""
        return DiskIdentity(self.pool_id, disk.disk_id, disk.number, self.segment_size, self.membership)

    def follow_log(self) -> Membership:
        """The list of members as it is to be, with what it says of the log and of the disks' paths; the present one
        if that is right. A path that the disks have no place for is left out."""
        present, losses, size = self.membership, self.membership.losses, self.segment_size
        if losses and not self._are_losses_checked:
            losses = still_lost(losses, lambda index: self._is_safe(BaseOffset(index * size)))
        self._are_losses_checked = True
        removed_before = self._removed_before()
        located = present.located({disk.number: disk.path for disk in self.disks.values()})
        if located != present and self.is_recordable(following := located.following(losses, removed_before)):
            return following
        if (losses, removed_before) == (present.losses, present.removed_before):
            return present
        return present.following(losses, removed_before)

    def _is_safe(self, base_offset: BaseOffset) -> bool:
        """Whether the next daemon has this segment, too: it does not serve a disk that is given up."""
        segment = self.catalog.get(base_offset)
        return segment is not None and self.is_listed(segment) and not self.is_given_up(self.disk_of(segment))

    def _removed_before(self) -> int:
        recorded, first = self.membership.removed_before, self.catalog.first
        if not self.missing and not self.others.has_unremovable(self.disks):
            return recorded if self._removed_found else 0
        if first is None:
            return recorded
        returning = self.names.oldest_returning
        begin = first.base_offset if returning is None else min(returning, first.base_offset)
        return max(recorded, min(self._removed_end, begin))

    def require_recordable(self, membership: Membership) -> None:
        """Raises PoolError if a list of members does not fit the attributes of some disk's directory."""
        require_recordable(*self._to_record(membership))

    def is_recordable(self, membership: Membership) -> bool:
        """Whether `require_recordable` accepts it."""
        return is_recordable(*self._to_record(membership))

    def _to_record(self, membership: Membership) -> tuple[DiskIdentity, int]:
        disk = next(iter(self.disks.values()))
        spaces = (one.filesystem.attribute_bytes for one in self.disks.values())
        return replace(self.identity_of(disk), membership=membership), min(spaces)

    def lagging(self) -> list[Disk]:
        """Disks that do not record the present list of members yet."""
        return [
            disk
            for disk in self.disks.values()
            if self.recorded[disk.number] != self.membership.generation and not self.is_given_up(disk)
        ]

    def offline(self) -> list[Member]:
        """Members that an operator has released, and that are not served."""
        return [member for member in self.membership.offline() if member.number not in self.disks]

    def unserved(self) -> list[Member]:
        """Members that are not served, as of now: one that was given up is not a member any longer."""
        return [member for member in self.membership.members if member.number not in self.disks]

    def missed(self) -> list[str]:
        """Paths of members that are not served, although no operator has released them."""
        released = {member.path for member in self.offline()}
        return [path for path in self.missing if path not in released]

    def is_given_up(self, disk: Disk) -> bool:
        """Whether a disk that is still served has left the list of members."""
        return self.membership.member(disk.number) is None

    def record_membership(self, membership: Membership) -> None:
        """The list of members has changed. The same disks are served; it takes another daemon to serve others."""
        self.membership = membership
        for disk in self.disks.values():
            member = membership.member(disk.number)
            disk.cordon = None if member is None else member.cordon
            disk.drain = None if member is None else member.drain
            disk.is_leaving = member is None or member.leaves
            disk.is_offline = member is not None and member.offline_since_s is not None
        self.admission.favours_emptier = self._favours_emptier()
        self.admission.forget_refusal()

    def _favours_emptier(self) -> bool:
        rebalance = self.membership.rebalance
        return rebalance is not None and rebalance.mode is RebalanceMode.PLACEMENT

    def record_members_recorded(self, number: DiskNumber, generation: int) -> None:
        """A disk records this generation of the list durably. One that was joining is a disk of the pool now."""
        self.recorded[number] = generation
        self.disks[number].is_joining = False
        self.admission.forget_refusal()

    # --- moves between disks -------------------------------------------------------------------------

    def record_moved(
        self,
        file: Segment,
        disk: DiskNumber,
        published: Published,
        *,
        has_checksum: bool = False,
        is_compared: bool = False,
    ) -> Segment:
        """The copy on `disk` is the segment from now on; `file` is no part of the log. `is_compared`: the file had
        a checksum, and its content that one. Returns the copy's entry."""
        self.counters.moved += 1
        self.counters.moved_bytes += file.size
        copy = self._replace(file, disk, published, has_checksum=has_checksum)
        copy.is_compared = is_compared and file.is_compared is not False
        return copy

    def record_repaired(self, file: Segment, disk: DiskNumber, published: Published) -> Segment:
        """The same for a copy from outside the pool, which replaces a damaged file."""
        self.counters.repaired += 1
        return self._replace(file, disk, published, has_checksum=True)

    def _replace(self, file: Segment, disk: DiskNumber, published: Published, *, has_checksum: bool) -> Segment:
        copy = Segment(file.base_offset, disk, published.attributes)
        self.catalog.replace(file, copy)
        self.catalog.record_checksum(copy, is_valid=has_checksum)
        self.space.record_usage(disk, published.usage)
        file.role = Role.MOVED
        self.others.add(file)
        self.admission.forget_refusal()
        return copy

    def record_restored(self, base_offset: BaseOffset, disk: DiskNumber, published: Published) -> Segment:
        """A segment that was missing has come back from outside the pool. Returns its entry."""
        segment = Segment(base_offset, disk, published.attributes)
        self._enter(segment)
        self.catalog.record_checksum(segment, is_valid=True)
        self.counters.restored += 1
        self.space.record_usage(disk, published.usage)
        self.admission.forget_refusal()
        return segment

    def record_source_retired(self, file: Segment, retired_name: bytes) -> None:
        """The file from which a segment was moved is still open, and was set aside."""
        file.role = Role.RETIRED
        file.placed_as = retired_name

    def record_put_back(self, copy: Segment, file: Segment, attributes: PackedAttributes) -> None:
        """A move was undone: `file` is the segment again, and `copy` what it was moved from."""
        file.role = Role.SEGMENT
        file.placed_as = b""
        file.attributes = attributes
        file.is_compared = None
        self.others.remove(file)
        self.catalog.replace(copy, file)
        copy.role = Role.MOVED
        self.others.add(copy)

    def is_lost(self, base_offset: BaseOffset) -> bool:
        """Whether a segment is not in the log because its disk was given up, or may be on one that is missing."""
        if self.catalog.get(base_offset) is not None:
            return False
        end = base_offset + self.segment_size
        return bool(self.missing) or is_accepted(self.membership.losses, base_offset, end, self.segment_size)

    def record_returned(self, file: Segment, attributes: PackedAttributes) -> None:
        """The retired source of a segment that was lost is the segment again."""
        file.role = Role.SEGMENT
        file.placed_as = b""
        file.attributes = attributes
        self.others.remove(file)
        self._enter(file)

    # --- copies --------------------------------------------------------------------------------------

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
        base, role = self.names.parse_new(new_name)
        self.names.require_free(new_name, base)
        if role is Role.SEGMENT and file.size != self.segment_size:
            raise SegmentIncompleteError(
                f"{old_name.decode()}: has {file.size} of {self.segment_size} bytes: finish the copy first"
            )
        return file

    def record_copy_published(self, file: Segment, new_name: bytes, attributes: PackedAttributes) -> None:
        """The copy has its new name: its segment's, or another temporary one."""
        self.names.drop(file)
        self.others.remove(file)
        file.attributes = attributes
        file.base_offset, file.role = self.names.parse_new(new_name)
        file.placed_as = new_name if file.role is Role.TEMPORARY else b""
        if file.role is Role.TEMPORARY:
            self.others.add(file)
        self._enter(file)

    # --- closing -------------------------------------------------------------------------------------

    def close(self) -> None:
        for disk in self.disks.values():
            disk.close()
