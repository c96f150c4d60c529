"""A RocketMQ broker's own cleaning of its log, as CleanCommitLogService does it (facts section 7). Pure."""

from dataclasses import dataclass, field
from typing import Final

from commitlogfs.store.retention.statfs import StatfsFigures
from commitlogfs.store.thresholds import Thresholds

FIRST_RUN_S: Final = 60
"""After the broker's start."""
INTERVAL_S: Final = 10
"""cleanResourceInterval."""


@dataclass(frozen=True, slots=True)
class BrokerRules:
    """Its settings; of the thresholds clean, force and full."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    reserved_s: int = 72 * 3600
    """fileReservedTime."""
    delete_when: frozenset[int] = frozenset({4})
    """deleteWhen: hours of the day."""
    batch: int = 10
    """deleteFileBatchMax."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a broker concludes from one look at the fill level."""

    cleans: bool
    """Expired segments go at any hour."""
    forces: bool
    """The oldest go, whatever their age."""
    fills: bool
    """From here on messages are refused."""
    clears: bool
    """Messages are taken again."""


def judge(figures: StatfsFigures, thresholds: Thresholds) -> Pressure:
    """Its percent is rounded up: one byte above a threshold is above it."""
    percent = -((figures.free - figures.blocks) * 100 // figures.blocks)
    return Pressure(
        cleans=percent > thresholds.clean,
        forces=percent > thresholds.force,
        fills=percent > thresholds.full,
        clears=percent <= thresholds.force,
    )
