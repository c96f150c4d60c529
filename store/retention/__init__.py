"""Forced deletion: when the oldest segments are removed, and what statfs shows the broker.

Policy only, without I/O: fusefs.files.retention carries it out.
"""

from commitlogfs.store.disks.capacity import KEPT_SEGMENTS
from commitlogfs.store.retention.alerts import Alert, AlertCode, all_full
from commitlogfs.store.retention.engine import Decision, EngineState, PlannedRemoval, Rule, decide, is_pressed
from commitlogfs.store.retention.facts import (
    DiskFacts,
    HeldFacts,
    LogFacts,
    Moment,
    RefusedFacts,
    SegmentFacts,
    Snapshot,
)
from commitlogfs.store.retention.rules import Mode, RetentionRules, Trigger

__all__ = [
    "KEPT_SEGMENTS",
    "Alert",
    "AlertCode",
    "Decision",
    "DiskFacts",
    "EngineState",
    "HeldFacts",
    "LogFacts",
    "Mode",
    "Moment",
    "PlannedRemoval",
    "RefusedFacts",
    "RetentionRules",
    "Rule",
    "SegmentFacts",
    "Snapshot",
    "Trigger",
    "all_full",
    "decide",
    "is_pressed",
]
