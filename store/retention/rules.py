"""Settings of forced deletion. Pure."""

from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    COOPERATIVE = "cooperative"
    """A live broker deletes, because statfs shows it the pressure; commitlogfs removes what the broker leaves."""
    FILESYSTEM = "filesystem"
    """For a log without a live broker: statfs hides pressure, and commitlogfs removes segments by force and by
    age."""
    OFF = "off"
    """Nothing is deleted, and statfs hides nothing."""


class Trigger(Enum):
    """The disk whose fill level decides."""

    ALL = "all"
    """The least full writable disk: the broker acts as in native multi-path mode."""
    ANY = "any"
    """The fullest writable disk: RIP-7's text."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Raises ValueError for values that contradict each other or are out of range."""

    mode: Mode = Mode.COOPERATIVE
    trigger: Trigger = Trigger.ALL
    force_after_s: float = 30.0
    """How long the pressure must have held: three of the broker's own cleaning cycles."""
    grace_s: float = 120.0
    """How long a removed segment that is still open keeps its blocks (destroyMapedFileIntervalForcibly)."""
    punch: bool = True
    """Whether those blocks are freed by a hole when every disk is full. A slave would copy the zeros."""
    batch: int = 10
    """Removals per cycle (RocketMQ's deleteFileBatchMax)."""
    interval_s: float = 10.0
    """Length of a cycle (RocketMQ's cleanResourceInterval)."""
    reserved_s: float | None = None
    """Age at which a segment expires; in mode FILESYSTEM only, and required there."""
    delete_when: frozenset[int] = frozenset()
    """Hours of the day in which expired segments are removed; in mode FILESYSTEM only, and required there."""

    def __post_init__(self) -> None:
        if self.mode is Mode.FILESYSTEM and (self.reserved_s is None or not self.delete_when):
            raise ValueError("mode FILESYSTEM needs reserved_s and delete_when")
        if self.mode is not Mode.FILESYSTEM and (self.reserved_s is not None or self.delete_when):
            raise ValueError("reserved_s and delete_when have an effect in mode FILESYSTEM only")
        if self.batch < 1 or self.interval_s <= 0 or self.force_after_s < 0 or self.grace_s < 0:
            raise ValueError("batch and interval_s must be above 0, times not negative")
        if not all(0 <= hour <= 23 for hour in self.delete_when):
            raise ValueError("delete_when holds hours, 0 to 23")
