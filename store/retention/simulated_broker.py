"""A RocketMQ broker's own cleaning of its log, as CleanCommitLogService does it. Pure."""

from dataclasses import dataclass, field
from typing import Final

from commitlogfs.store.retention.statfs import StatfsFigures
from commitlogfs.store.thresholds import Thresholds

FIRST_RUN_S: Final = 60
"""Time after the broker's start."""
INTERVAL_S: Final = 10
"""cleanResourceInterval."""


@dataclass(frozen=True, slots=True)
class BrokerRules:
    """Settings of the broker. Of the thresholds, it uses clean, force and full."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    reserved_s: int = 72 * 3600
    """fileReservedTime."""
    delete_when: frozenset[int] = frozenset({4})
    """deleteWhen: hours of the day."""
    batch: int = 10
    """deleteFileBatchMax."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Action of a broker at a fill level."""

    cleans: bool
    """Whether it removes expired segments at any hour."""
    forces: bool
    """Whether it removes the oldest segments, whatever their age."""
    fills: bool
    """Whether it begins to refuse messages."""
    clears: bool
    """Whether it accepts messages again."""


def evaluate_pressure(figures: StatfsFigures, thresholds: Thresholds) -> Pressure:
    """The action of a broker at the fill level that statfs shows. It rounds the percentage up."""
    percent = -((figures.free - figures.blocks) * 100 // figures.blocks)
    return Pressure(
        cleans=percent > thresholds.clean,
        forces=percent > thresholds.force,
        fills=percent > thresholds.full,
        clears=percent <= thresholds.force,
    )
