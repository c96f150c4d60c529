"""Fill levels of one disk, in whole percent of used / (used + available). Pure.

Whole percents because RocketMQ's own three settings are ints and it rounds the measured ratio up to one
(UtilAll#getDiskPartitionSpaceUsedPercent, MessageStoreConfig).
"""

from dataclasses import dataclass
from typing import Final

RANGES: Final[dict[str, tuple[int, int]]] = {"clean": (10, 95), "force": (30, 85), "full": (35, 90)}
"""Allowed percent, both ends included: the ranges to which RocketMQ 5.5.0 clamps
(MessageStoreConfig#getDiskMaxUsedSpaceRatio, CleanCommitLogService#getDiskSpaceCleanForciblyRatio and
#getDiskSpaceWarningLevelRatio)."""

LOWEST_RESUME: Final = 10
RESUME_MARGIN: Final = 2
RESUME_FROM_FORCE: Final = -1
"""Value for a `resume` that is not given: it becomes `force` - RESUME_MARGIN."""


class ThresholdError(ValueError):
    """A threshold is out of range or contradicts another one.

    `key` is the name in the configuration (`min_free` for `min_free_bytes`), `allowed` the range as text.
    """

    def __init__(self, key: str, value: int, problem: str, allowed: str) -> None:
        super().__init__(f"{key} = {value} {problem}; set it to {allowed}")
        self.key = key
        self.value = value
        self.problem = problem
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Fill levels at which a disk is cleaned, skipped, relieved by force, and closed. Raises ThresholdError.

    `clean <= force <= full`: each has a stronger effect than the one before. With a reversed order, a broker acts
    at the lower of the two, so refusing it costs nothing. And statfs shows pressure that deleting cannot cure up to
    `clean`; if `clean` were above `force`, that would make a broker empty its log. `resume < force`: otherwise a
    disk would change between skipped and eligible with every segment. `resume` and `clean` have no order: `resume`
    ends forced deletion, `clean` begins expiry by age.
    """

    clean: int = 75
    """RocketMQ's diskMaxUsedSpaceRatio."""
    force: int = 85
    """RocketMQ's diskSpaceCleanForciblyRatio; at or above it, the disk is skipped for new segments."""
    full: int = 90
    """RocketMQ's diskSpaceWarningLevelRatio; at or above it, the disk takes no segment."""
    resume: int = RESUME_FROM_FORCE
    """Percent below which a skipped disk is eligible again."""
    min_free_bytes: int = 0
    """Bytes that stay available: a segment that would leave less is not placed on the disk."""

    def __post_init__(self) -> None:
        for key, value in (("clean", self.clean), ("force", self.force), ("full", self.full)):
            low, high = RANGES[key]
            if not low <= value <= high:
                raise ThresholdError(key, value, "is out of range", f"{low} to {high} percent")
        if self.force > self.full:
            allowed = f"{RANGES['force'][0]} to {self.full} percent"
            raise ThresholdError("force", self.force, f"is above full = {self.full}", allowed)
        if self.clean > self.force:
            allowed = f"{RANGES['clean'][0]} to {self.force} percent"
            raise ThresholdError("clean", self.clean, f"is above force = {self.force}", allowed)
        if self.resume == RESUME_FROM_FORCE:
            object.__setattr__(self, "resume", self.force - RESUME_MARGIN)
        elif not LOWEST_RESUME <= self.resume < self.force:
            problem = "is out of range" if self.resume < LOWEST_RESUME else f"is not below force = {self.force}"
            allowed = f"{LOWEST_RESUME} to {self.force - 1} percent"
            raise ThresholdError("resume", self.resume, problem, allowed)
        if self.min_free_bytes < 0:
            raise ThresholdError("min_free", self.min_free_bytes, "is negative", "0 bytes or more")


def clamp(key: str, value: int) -> tuple[int, str]:
    """`value` clamped to the range of `clean`, `force` or `full`, and the reason; "" if it was in range.

    For values from a broker.conf, which the broker clamps silently. Raises KeyError for other keys.
    """
    low, high = RANGES[key]
    clamped = min(max(value, low), high)
    if clamped == value:
        return value, ""
    return clamped, f"{value} is outside {low} to {high} percent: {clamped} is used, as the broker does"
