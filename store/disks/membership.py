"""The members of a pool: the list that every disk of it records, and the changes of that list. Pure.

Each change makes the next generation of the list. It is complete once every disk has recorded it. A disk that was
absent meanwhile records an older generation, and learns the newer one when it is back.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NewType

from commitlogfs.store.disks.losses import Loss

DiskNumber = NewType("DiskNumber", int)
"""1, 2, 3 ... in the order in which the disks joined the pool; never reused within a pool, part of every inode
number."""

LARGEST_DISK_NUMBER = 2**12 - 1
"""A disk number has 12 bits of an inode number (fusefs.kernel.inodes). Numbers are never reused, so this is also
the number of disks that a pool can have in its whole life."""


LONGEST_REASON: Final = 80
"""Characters of the reason of a cordon, which must be printable."""


@dataclass(frozen=True, slots=True)
class Cordon:
    """An operator's decision that a disk gets no new segments."""

    since_s: int
    """Seconds since 1970."""
    reason: str = ""


class DrainMode(Enum):
    COPY = "copy"
    """Its segments are moved to the other disks."""
    EXPIRY = "expiry"
    """Its segments stay until they are removed in the normal course."""
    FAILING = "failing"
    """As COPY, from a disk that fails: what cannot be read becomes zeros, and is recorded."""

    @property
    def copies(self) -> bool:
        return self is not DrainMode.EXPIRY


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator's decision that a disk is to become empty. It gets no new segments."""

    since_s: int
    """Seconds since 1970."""
    mode: DrainMode = DrainMode.COPY
    rate: int = 0
    """Bytes per second that a move may read from, or write to, a disk; 0 if none was given."""


class RebalanceMode(Enum):
    PLACEMENT = "placement"
    """New segments favour emptier disks; nothing is copied."""
    COPY = "copy"
    """Segments are moved from fuller disks to emptier ones."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """An operator's decision that the disks are to become equally full. It ends by itself when they are."""

    since_s: int
    """Seconds since 1970."""
    mode: RebalanceMode = RebalanceMode.PLACEMENT
    rate: int = 0
    """Bytes per second that a move may read from, or write to, a disk; 0 if none was given."""


@dataclass(frozen=True, slots=True)
class Member:
    number: DiskNumber
    disk_id: str
    path: str
    """Path of the disk when this was written; for messages, and to know the place of one that is offline."""
    cordon: Cordon | None = None
    leaves: bool = False
    """Empty, and about to leave the pool: the first daemon whose configuration does not name it drops it."""
    drain: Drain | None = None
    offline_since_s: int | None = None
    """Seconds since 1970: an operator has released the disk. No daemon serves it until it is taken back, or until
    the pool is mounted anew."""
    again_since: int = 0
    """Generation that undid a list without this member, which no disk recorded in time; 0 if there was none. A disk
    may have recorded that list later."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One generation of the list. Every method that changes something returns the next generation."""

    members: tuple[Member, ...]
    """In order of their numbers."""
    generation: int = 0
    """0 in a pool that was made before lists had generations, and until its first change."""
    last_number: DiskNumber = DiskNumber(0)
    """The highest number that any disk of the pool has had."""
    losses: tuple[Loss, ...] = ()
    """Accepted losses: what disks held that were given up."""
    rebalance: Rebalance | None = None
    removed_before: int = 0
    """Base offset before which every segment was removed while a disk was away; 0 if none was, or if no disk holds
    such a segment any more."""

    def member(self, number: DiskNumber) -> Member | None:
        return next((member for member in self.members if member.number == number), None)

    def with_id(self, disk_id: str) -> Member | None:
        return next((member for member in self.members if member.disk_id == disk_id), None)

    def may_follow(self, other: "Membership") -> bool:
        """Whether this list may have come from the `other` one, of the same or an earlier generation. If not, the
        two were changed while each was away from the other.

        A daemon of a former version does not know a rebalance or disks that are offline: it lets a disk that lagged
        record the list without them.
        """
        if other.generation == self.generation:
            return _without_later_fields(other) == _without_later_fields(self)
        ids = {member.number: member.disk_id for member in self.members}
        reused = any(ids.get(member.number, member.disk_id) != member.disk_id for member in other.members)
        return not reused and other.last_number <= self.last_number and not self.returned_since(other)

    def returned_since(self, earlier: "Membership") -> tuple[Member, ...]:
        """Members that had left the pool by an earlier list. No change of that list brings them back: a disk that
        joins again gets another number."""
        known = {member.number for member in earlier.members}
        return tuple(
            member
            for member in self.members
            if member.number <= earlier.last_number
            and member.number not in known
            and member.again_since <= earlier.generation
        )

    def instead_of(self, failed: "Membership") -> "Membership":
        """This list again, after a change of it that no disk has recorded in time. A disk may still record that."""
        generation, known = failed.generation + 1, {member.number for member in failed.members}
        members = tuple(
            member if member.number in known else replace(member, again_since=generation) for member in self.members
        )
        return replace(self, members=members, generation=generation)

    def joined_by(self, disk_id: str, path: str) -> "Membership":
        """A disk joins, under a number that no disk has had. Raises ValueError if there is none left."""
        number = DiskNumber(self.last_number + 1)
        if number > LARGEST_DISK_NUMBER:
            raise ValueError(f"the pool has used all {LARGEST_DISK_NUMBER} disk numbers")
        members = (*self.members, Member(number, disk_id, path))
        return replace(self, members=members, generation=self.generation + 1, last_number=number)

    def cordoned(self, number: DiskNumber, cordon: Cordon | None) -> "Membership":
        """A member gets a cordon, or with None loses it."""
        return self._changed(number, lambda member: replace(member, cordon=cordon))

    def draining(self, number: DiskNumber, drain: Drain | None) -> "Membership":
        """A member is to become empty; with None, that ends. A cordon is not touched."""
        return self._changed(number, lambda member: replace(member, drain=drain))

    def released(self, number: DiskNumber, path: str, since_s: int) -> "Membership":
        """A member is offline from now on; `path` is its present one."""
        return self._changed(number, lambda member: replace(member, path=path, offline_since_s=since_s))

    def taken_back(self, numbers: Collection[DiskNumber]) -> "Membership":
        """Members are offline no longer."""
        members = tuple(
            replace(member, offline_since_s=None) if member.number in numbers else member for member in self.members
        )
        return replace(self, members=members, generation=self.generation + 1)

    def offline(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.offline_since_s is not None)

    def rebalancing(self, rebalance: Rebalance | None) -> "Membership":
        """The disks are to become equally full; with None, that ends."""
        return replace(self, rebalance=rebalance, generation=self.generation + 1)

    def following(self, losses: tuple[Loss, ...], removed_before: int) -> "Membership":
        """The log has changed meanwhile, and with it these two fields, or only paths of members have."""
        return replace(self, losses=losses, removed_before=removed_before, generation=self.generation + 1)

    def located(self, paths: Mapping[DiskNumber, str]) -> "Membership":
        """This list with the present paths of members, of the same generation."""
        members = tuple(replace(member, path=paths.get(member.number, member.path)) for member in self.members)
        return replace(self, members=members)

    def leaving(self, number: DiskNumber) -> "Membership":
        """A member is about to leave. From now on it gets no segments."""
        return self._changed(number, lambda member: replace(member, leaves=True))

    def staying(self, number: DiskNumber) -> "Membership":
        """A member does not leave after all. The caller makes sure that the configuration names it."""
        return self._changed(number, lambda member: replace(member, leaves=False))

    def without(self, number: DiskNumber) -> "Membership":
        """A member has left. Its number is not given out again."""
        members = tuple(member for member in self.members if member.number != number)
        return replace(self, members=members, generation=self.generation + 1)

    def giving_up(self, number: DiskNumber, loss: Loss, first_segment: int) -> "Membership":
        """A member is given up with what it held. Losses before `first_segment`, with which the log begins, are
        forgotten: they have expired."""
        losses = tuple(known for known in self.losses if known.end > first_segment)
        return replace(self.without(number), losses=(*losses, loss))

    def _changed(self, number: DiskNumber, change: Callable[[Member], Member]) -> "Membership":
        members = tuple(change(member) if member.number == number else member for member in self.members)
        return replace(self, members=members, generation=self.generation + 1)


def _without_later_fields(membership: Membership) -> Membership:
    members = tuple(replace(member, offline_since_s=None, again_since=0) for member in membership.members)
    return replace(membership, members=members, rebalance=None)
