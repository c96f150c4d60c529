"""Giving a lost disk up: which segments go with it, and the list of members without it. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from commitlogfs.store.disks.losses import Loss, runs_of
from commitlogfs.store.disks.membership import Member, Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.gaps import gaps_between, uncovered
from commitlogfs.store.segment import BaseOffset


@dataclass(frozen=True, slots=True)
class GivingUp:
    """The decision, before it is carried out."""

    member: Member
    lost: tuple[tuple[BaseOffset, BaseOffset], ...]
    """Log offset ranges [start, end) that no other disk holds. Segments before the first one of the other disks are
    among them only if a daemon has served them: no disk records which there are."""
    used_again_from: BaseOffset | None
    """The log offset from which on a broker that is started anew gives lost offsets to other messages; None if the
    newest segment is not lost."""
    membership: Membership
    """The next generation."""
    also_missing: tuple[str, ...] = ()
    """Paths of other disks that are missing, and may hold some of what counts as lost."""

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.member.number,
            "path": self.member.path,
            "lost": [[start, end] for start, end in self.lost],
            "used_again_from": self.used_again_from,
            "also_missing": list(self.also_missing),
        }


def plan_giving_up(
    membership: Membership,
    member: Member,
    others: Iterable[BaseOffset],
    newest: BaseOffset | None,
    segment_size: int,
    now_s: int,
    held: Iterable[BaseOffset] = (),
    is_recordable: Callable[[Membership], bool] = lambda _: True,
    missing: Iterable[str] = (),
) -> GivingUp:
    """`others` are the segments with content on all other disks, in ascending order; `newest` is the newest segment
    on record; `held` are those that the disk is known to hold. Accepted losses become spans if the disks could not
    record the list otherwise: a dead disk must not stay because others have died before. `missing` are the paths of
    all disks that are not there: no disk records which segments the others hold, so what they have in the gaps is
    accepted, too, until they are back."""
    bases = list(others)
    oldest = sorted(base for base in held if bases and base < bases[0])
    lost = [(base, BaseOffset(base + segment_size)) for base in oldest] + gaps_between(bases, segment_size)
    end = bases[-1] + segment_size if bases else 0
    used_again_from = None
    if newest is not None and newest >= end:
        used_again_from = BaseOffset(end)
        lost += [(BaseOffset(a), BaseOffset(b)) for a, b in uncovered(end, newest + segment_size, [])]
    runs = runs_of((start // segment_size, (stop - start) // segment_size) for start, stop in lost)
    loss = Loss(member.number, member.path, now_s, runs)
    first = min([*oldest, *bases[:1]], default=0) // segment_size
    following = membership.giving_up(member.number, loss, first)
    if not is_recordable(following):
        following = replace(following, losses=tuple(one.as_span() for one in following.losses))
    others_missing = tuple(path for path in missing if path != member.path)
    return GivingUp(member, tuple(lost), used_again_from, following, others_missing)


def find_member(membership: Membership, number_or_path: str) -> Member:
    """Raises PoolError if there is none."""
    for member in membership.members:
        if number_or_path in (str(member.number), member.path):
            return member
    known = ", ".join(f"{member.number} {member.path}" for member in membership.members)
    raise PoolError(f"{number_or_path}: the pool has no disk of this number or path; its disks are {known}")
