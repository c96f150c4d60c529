"""What a degraded mount does not serve. Its listing shows a gap where that is the middle of the log, but nothing
where it is the beginning."""

import errno
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.locations import local_path
from commitlogfs.store.findings import FindingCode

MOUNT_STATUS: Final = ".commitlogfs/status.json"
"""In every mount of ours, found by its name alone."""
_QUARANTINE: Final = (FindingCode.DUPLICATE_SEGMENT.value, FindingCode.WRONG_SIZE.value)


@dataclass(frozen=True, slots=True)
class NotServed:
    """A disk that is missing, or a segment that is in quarantine."""

    place: str
    """The mount."""
    fact: str
    base_offset: int | None = None
    """Of the segment. Nothing records which segments a missing disk holds."""

    def __str__(self) -> str:
        return f"{self.place}: {self.fact}"

    def may_precede(self, offset: int) -> bool:
        """Whether it may hold messages before this log offset."""
        return offset > (self.base_offset or 0)


def find_not_served(place: str) -> tuple[NotServed, ...]:
    """What the mount at `place` does not serve; nothing if no mount of ours is there. Raises LocationError."""
    path = local_path(place)
    if path is None:
        return ()
    try:
        document: dict[str, Any] = json.loads((path / MOUNT_STATUS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise LocationError(f"{path / MOUNT_STATUS}: {reason}: does the mount answer?") from error
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
