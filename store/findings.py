"""Findings of the start-up check, each with its remedy."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Severity(IntEnum):
    """Effect of a finding on a mount."""

    NOTE = 0
    """For information; the pool is served."""
    WARNING = 1
    """A file is not served, or a guarantee is weaker; the pool is served."""
    REFUSES = 2
    """The mount is refused unless `on_missing = "degraded"`."""
    REFUSES_ALWAYS = 3
    """The mount is refused whatever the configuration says."""


class FindingCode(Enum):
    """Stable names, shown in `--json` and explained in docs/reference/findings.md."""

    DISK_MISSING = "disk-missing"
    DISK_WITHOUT_IDENTITY = "disk-without-identity"
    DISK_OF_ANOTHER_POOL = "disk-of-another-pool"
    DISK_TWICE = "disk-twice"
    DISK_NOT_CONFIGURED = "disk-not-configured"
    DISK_REMOVED = "disk-removed"
    DISK_JOINS = "disk-joins"
    DISK_LEFT = "disk-left"
    DISK_OFFLINE = "disk-offline"
    DISK_NOT_EMPTY = "disk-not-empty"
    DISK_NOT_TAKEN_BACK = "disk-not-taken-back"
    MEMBERS_DIFFER = "members-differ"
    DISK_TOO_SMALL = "disk-too-small"
    DISKS_SHARE_FILESYSTEM = "disks-share-filesystem"
    DISK_READ_ONLY = "disk-read-only"
    FILESYSTEM_UNSUITABLE = "filesystem-unsuitable"
    FILESYSTEM_FOR_TESTS = "filesystem-for-tests"
    SEGMENT_SIZE_DIFFERS = "segment-size-differs"
    BROKER_SIZE_DIFFERS = "broker-size-differs"
    POOL_IN_USE = "pool-in-use"
    SEGMENT_IN_USE = "segment-in-use"
    NEWEST_SEGMENT_MISSING = "newest-segment-missing"
    DUPLICATE_SEGMENT = "duplicate-segment"
    GAP = "gap"
    ACCEPTED_LOSS = "accepted-loss"
    REMOVED_SEGMENTS = "removed-segments"
    WRONG_SIZE = "wrong-size"
    NOT_A_REGULAR_FILE = "not-a-regular-file"
    ALIEN_FILE = "alien-file"
    UNFINISHED_COPY = "unfinished-copy"
    UNFINISHED_MOVE = "unfinished-move"
    UNREADABLE_RANGE = "unreadable-range"
    DAMAGED_SEGMENT = "damaged-segment"
    SET_ASIDE = "set-aside"
    UNSIZED_SEGMENT = "unsized-segment"
    EMPTY_LEFTOVER = "empty-leftover"
    DIRECTORY_OPEN_TO_OTHERS = "directory-open-to-others"


REPAIR_DISK: Final = "see `dmesg` for its errors; repair or replace the disk"
"""Remedy for a disk that answers with errors."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One irregularity: where it is, what it is, and what to do."""

    code: FindingCode
    severity: Severity
    disk: str
    file: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy} [{self.code.value}]"

    @property
    def text(self) -> str:
        """The place and the fact, without the remedy."""
        where = "/".join(part for part in (self.disk, self.file) if part)
        return f"{where}: {self.message}" if where else self.message

    def as_json(self) -> dict[str, str]:
        return {
            "code": self.code.value,
            "severity": self.severity.name.lower().replace("_", "-"),
            "disk": self.disk,
            "file": self.file,
            "message": self.message,
            "remedy": self.remedy,
        }
