"""The parts of a log that a degraded mount does not serve. In the middle of the log they show as a gap in the
listing; at its beginning they do not."""

import errno
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.locations import local_path
from commitlogfs.store.findings import FindingCode

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


def find_not_served(place: str) -> tuple[NotServed, ...]:
    """The parts that the mount at `place` does not serve; empty if it is not a mount of commitlogfs. Raises
    LocationError."""
    path = local_path(place)
    if path is None:
        return ()
    try:
        document: dict[str, Any] = json.loads((path / MOUNT_STATUS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise LocationError(f"{path / MOUNT_STATUS}: {reason}; check that the mount answers") from error
    except ValueError as error:
        raise LocationError(f"{path / MOUNT_STATUS}: not a status document of commitlogfs") from error
    missing = [NotServed(place, f"disk {disk} is missing") for disk in document.get("missing_disks", ())]
    return (*missing, *_quarantined(place, document.get("findings", ())))


def _quarantined(place: str, findings: list[dict[str, str]]) -> list[NotServed]:
    return [
        NotServed(
            place, f"segment {one['file']} on {one['disk']} is not served ({one['message']})", int(one["file"])
        )
        for one in findings
        if one["code"] in _QUARANTINE and one["file"].isdecimal()
    ]
