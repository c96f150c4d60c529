"""The statements of a mount or a disk on its log: the parts that a degraded mount does not serve, which show as a
gap in the middle of the log but not at its beginning, and the losses that an operator has accepted."""

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.locations import local_path
from commitlogfs.store.disks.identity import parse_identity
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.errors import PoolError
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.layout import XATTR_IDENTITY

MOUNT_STATUS: Final = ".commitlogfs/status.json"
"""Present in every mount of commitlogfs; found by its name, as listings leave it out."""
_QUARANTINE: Final = (FindingCode.DUPLICATE_SEGMENT.value, FindingCode.WRONG_SIZE.value)


@dataclass(frozen=True, slots=True)
class NotServed:
    """A missing disk, or a segment in quarantine."""

    place: str
    """Directory of the mount."""
    fact: str
    base_offset: int | None = None
    """Base offset of the segment; None for a disk: no record says which segments a missing disk holds."""

    def __str__(self) -> str:
        return f"{self.place}: {self.fact}"

    def may_precede(self, offset: int) -> bool:
        """Whether it may hold messages before this log offset."""
        return offset > (self.base_offset or 0)


@dataclass(frozen=True, slots=True)
class AcceptedLosses:
    """The segments of disks that an operator has given up, as one place records them."""

    pool: str
    generation: int
    """The generation of the list of members; a later list replaces an earlier one."""
    segment_size: int
    losses: tuple[Loss, ...]

    def covers(self, base_offset: int) -> bool:
        """Whether the segment with this base offset is an accepted loss."""
        return any(loss.covers(base_offset // self.segment_size) for loss in self.losses)


@dataclass(frozen=True, slots=True)
class Told:
    """The statements of one place on its log."""

    not_served: tuple[NotServed, ...] = ()
    accepted: AcceptedLosses | None = None


def read_told(place: str) -> Told:
    """The statements of the mount or the bare disk at `place`; none if it is neither. Raises LocationError."""
    path = local_path(place)
    if path is None:
        return Told()
    try:
        document: dict[str, Any] = json.loads((path / MOUNT_STATUS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Told(accepted=_accepted_by_disk(path))
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise LocationError(f"{path / MOUNT_STATUS}: {reason}; check that the mount answers") from error
    except ValueError as error:
        raise LocationError(f"{path / MOUNT_STATUS}: not a status document of commitlogfs") from error
    missing = [NotServed(place, f"disk {disk} is missing") for disk in document.get("missing_disks", ())]
    return Told((*missing, *_quarantined(place, document.get("findings", ()))), _accepted_by_mount(document))


def latest(accepted: Sequence[AcceptedLosses]) -> AcceptedLosses | None:
    """The record of the latest list of members: a disk that was away has a former one. None for places of several
    pools, whose segments are no log."""
    if len({one.pool for one in accepted}) != 1:
        return None
    return max(accepted, key=lambda one: one.generation)


def _accepted_by_mount(document: dict[str, Any]) -> AcceptedLosses | None:
    """None also for a daemon of a former version, which does not report it."""
    try:
        members = document["members"]
        losses = tuple(
            Loss(one["number"], one["path"], one["since"], tuple(Run(**run) for run in one["runs"]))
            for one in members["given_up"]
        )
        return AcceptedLosses(document["pool"], members["generation"], document["segments"]["size"], losses)
    except KeyError:
        return None


def _accepted_by_disk(path: Path) -> AcceptedLosses | None:
    """None also for a disk whose identity cannot be read: what is not known to be accepted is missing."""
    try:
        identity = parse_identity(os.getxattr(path, XATTR_IDENTITY), str(path))
    except (OSError, PoolError):
        return None
    membership = identity.membership
    return AcceptedLosses(identity.pool_id, membership.generation, identity.segment_size, membership.losses)


def _quarantined(place: str, findings: list[dict[str, str]]) -> list[NotServed]:
    return [
        NotServed(
            place, f"segment {one['file']} on {one['disk']} is not served ({one['message']})", int(one["file"])
        )
        for one in findings
        if one["code"] in _QUARANTINE and one["file"].isdecimal()
    ]
