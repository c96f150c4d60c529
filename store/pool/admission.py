"""Which disks take the next segment, in which order, and the error when none does."""

from collections.abc import Mapping
from typing import NamedTuple

from commitlogfs.store.clock import Clock
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.eligibility import DiskView, Eligibility, RefusalReason, evaluate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import DiskError, DiskFailedError, DiskFullError, NoDiskAvailableError
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.placement import Candidate, EmptierFirst, PlacementPolicy, PlacementRequest
from commitlogfs.store.placement.standing import Standing, standing_of
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.pool.other_files import OtherFiles
from commitlogfs.store.pool.space import Space
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.timing import Timing

FALLBACK = "fallback"
"""Skip reason: all disks were passed over for their fill level, and those below `full` are taken all the same."""

_WORDS = {
    RefusalReason.ABOVE_FORCE: "above force",
    RefusalReason.NO_ROOM: "full",
    RefusalReason.SLOW: "slow",
    RefusalReason.IN_BACKOFF: "failed a moment ago",
    RefusalReason.NOT_WRITABLE: "not writable",
    RefusalReason.CORDONED: "cordoned",
    RefusalReason.UNKNOWN_USAGE: "does not answer",
}


class Choice(NamedTuple):
    order: tuple[DiskNumber, ...]
    """In order of preference. A disk with a leftover of the new file's name is not among them."""
    skip_reasons: tuple[str, ...]
    """Why others were passed over, and FALLBACK."""
    policy: str
    """Name of the policy that gave the order."""
    standings: tuple[Standing, ...]
    """All disks at that moment."""


class Admission:
    """Ledger of the disks' standing with new segments: which are skipped for their fill level (with hysteresis),
    which have refused one lately, and for how long nobody needs to ask again.

    Every question evaluates all disks anew, by their latest measurements.
    """

    def __init__(
        self,
        disks: Mapping[DiskNumber, Disk],
        policy: PlacementPolicy,
        catalog: Catalog,
        others: OtherFiles,
        space: Space,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._disks = disks
        self._policy = policy
        self._emptier_first = EmptierFirst(policy)
        self.favours_emptier = False
        """Whether new segments go to emptier disks first, instead of by the configured policy."""
        self._catalog = catalog
        self._others = others
        self._space = space
        self._clock = clock
        self._timing = timing
        self._skipped: frozenset[DiskNumber] = frozenset()
        self._no_space: tuple[float, NoDiskAvailableError] | None = None

    def evaluate(self, now_s: float) -> Eligibility:
        """Which disks may take a segment now; remembers which are skipped, for the hysteresis."""
        eligibility = evaluate(self._views(now_s), self._catalog.segment_size, self._skipped)
        self._skipped = eligibility.skipped
        if eligibility.eligible:  # what `status` calls the next disk takes a segment at once
            self.forget_refusal()
        return eligibility

    def choose(self, base: BaseOffset, name: bytes, now_s: float) -> Choice:
        """The disks for a new file. Raises NoDiskAvailableError; that answer holds for `no_disk_s`."""
        if self._no_space is not None and self.refuses_for_now(now_s):
            raise self._no_space[1]
        eligibility = self.evaluate(now_s)
        if not (eligibility.eligible or eligibility.slow or eligibility.in_backoff):
            raise self._refusal(eligibility, now_s)
        taken = self._others.disks_taken(name)
        order = tuple(number for number in self._rank(base, eligibility) if number not in taken)
        reasons = [reason.name.lower() for reason in eligibility.refusals.values()]
        skip_reasons = (*reasons, FALLBACK) if eligibility.fallback else tuple(reasons)
        policy = self._emptier_first if self.favours_emptier else self._policy
        return Choice(order, skip_reasons, policy.name, self._standings(eligibility))

    def standings(self, now_s: float) -> tuple[Standing, ...]:
        """How all disks stand now, by the latest measurements. Changes nothing."""
        return self._standings(evaluate(self._views(now_s), self._catalog.segment_size, self._skipped))

    def preview_next(self) -> tuple[DiskNumber, ...]:
        """Where the segment after the newest would go now, best first; empty if nowhere."""
        last = self._catalog.last
        base = BaseOffset(0 if last is None else last.base_offset + self._catalog.segment_size)
        return self._rank(base, self.evaluate(self._clock.monotonic()))

    def can_move(self, file: Segment, now_s: float) -> bool:
        """Whether a segment that its disk refuses to continue with could be made on another one."""
        eligibility = self.evaluate(now_s)
        taken = {file.disk, *self._others.disks_taken(file.name)}
        others = {*eligibility.eligible, *eligibility.above_force, *eligibility.slow} - taken
        return file.role is Role.SEGMENT and bool(others)

    # --- refusals ------------------------------------------------------------------------------------

    def record_success(self, disk: DiskNumber) -> None:
        """A disk has taken a segment."""
        health.record_success(self._disks[disk])

    def record_trouble(self, disk: DiskNumber, error: DiskError, now_s: float) -> None:
        """A disk has refused a change."""
        health.record_error(self._disks[disk], error, now_s, self._timing.health)

    def refuses_for_now(self, now_s: float) -> bool:
        """Whether a create gets the answer of a moment ago, without a new evaluation."""
        return self._no_space is not None and now_s < self._no_space[0]

    def no_disk_left(self, now_s: float) -> NoDiskAvailableError:
        """Every disk that was tried has refused: the error to raise, also for the next moment's attempts."""
        return self._refusal(self.evaluate(now_s), now_s)

    def forget_refusal(self) -> None:
        """Something has gone from a disk, so the next create evaluates anew."""
        self._no_space = None

    def _refusal(self, eligibility: Eligibility, now_s: float) -> NoDiskAvailableError:
        error = self._no_disk_error(eligibility)
        self._no_space = (now_s + self._timing.requests.no_disk_s, error)
        return error

    def _no_disk_error(self, eligibility: Eligibility) -> NoDiskAvailableError:
        parts = []
        no_space = failing = False
        for number, reason in eligibility.refusals.items():
            disk = self._disks[number]
            in_backoff = reason is RefusalReason.IN_BACKOFF
            parts.append(disk.last_error if in_backoff else f"{disk.path}: {_WORDS[reason]}")
            no_space |= reason is RefusalReason.NO_ROOM
            no_space |= in_backoff and isinstance(disk.last_failure, DiskFullError)
            failing |= reason is RefusalReason.UNKNOWN_USAGE
            failing |= in_backoff and isinstance(disk.last_failure, DiskFailedError)
        reasons = ", ".join(parts) or "all refused"
        message = f"no disk takes a new segment ({reasons}); free space, or repair or add a disk"
        return NoDiskAvailableError(message, no_space=no_space, failing=failing)

    def _standings(self, eligibility: Eligibility) -> tuple[Standing, ...]:
        return tuple(
            standing_of(disk, self._space.usage(disk.number), eligibility.refusals.get(disk.number))
            for disk in self._disks.values()
        )

    # --- order ---------------------------------------------------------------------------------------

    def _views(self, now_s: float) -> tuple[DiskView, ...]:
        return tuple(
            DiskView(
                disk.number,
                disk.intended_state,
                self._space.usage(disk.number),
                disk.thresholds,
                health.is_in_backoff(disk, now_s),
                self._others.pending_bytes(disk.number),
                disk.is_slow,
            )
            for disk in self._disks.values()
        )

    def _rank(self, base: BaseOffset, eligibility: Eligibility) -> tuple[DiskNumber, ...]:
        predecessor = self._catalog.predecessor(base)
        request = PlacementRequest(
            base,
            self._catalog.segment_size,
            None if predecessor is None else predecessor.disk,
            tuple(self._disks),
        )

        if self.favours_emptier:
            policy: PlacementPolicy = self._emptier_first
            usages = self._space.usages_when_closed()
        else:
            policy, usages = self._policy, {disk: self._space.usage(disk) for disk in self._disks}

        def ranked(numbers: tuple[DiskNumber, ...]) -> tuple[DiskNumber, ...]:
            candidates = tuple(
                _candidate(disk, usages[disk.number]) for disk in self._disks.values() if disk.number in numbers
            )
            return tuple(policy.rank(request, candidates)) if candidates else ()

        last = ranked(eligibility.slow) + ranked(eligibility.in_backoff)
        return ranked(eligibility.eligible) + ranked(eligibility.above_force) + last


def _candidate(disk: Disk, usage: DiskUsage | None) -> Candidate:
    available, used = (0, 0) if usage is None else (usage.available_bytes, usage.used_bytes)
    return Candidate(disk.number, disk.disk_id, disk.path, disk.weight, available, used)
