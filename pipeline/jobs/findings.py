"""Findings of an audit: all are counted, the first ones of each kind are shown."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SHOWN_PER_KIND = 100


class Kind(StrEnum):
    """Kinds of findings; each value is a stable name for scripts."""

    GAP = "gap"
    CUT_SHORT = "cut-short"
    UNREAD_END = "unread-end"
    EMPTY_PLACE = "empty-place"
    NOT_SERVED = "not-served"
    DUPLICATE_SEGMENT = "duplicate-segment"
    DAMAGE = "damage"
    BODY_CRC = "body-crc"
    PROPERTY_CRC = "property-crc"
    QUEUE_JUMP = "queue-jump"
    QUEUE_MISSING = "queue-missing"
    QUEUE_ENTRY_MISSING = "queue-entry-missing"
    QUEUE_ENTRY_WRONG = "queue-entry-wrong"
    QUEUE_ENTRY_STRAY = "queue-entry-stray"
    INDEX_ENTRY_MISSING = "index-entry-missing"
    INDEX_ENTRY_STRAY = "index-entry-stray"
    INDEX_BROKEN = "index-broken"


MEANINGS = {
    Kind.GAP: "no segment holds this range of the log",
    Kind.CUT_SHORT: "the file of a segment is too short",
    Kind.UNREAD_END: "a message after the last one that is read: its write was interrupted, or it is damaged",
    Kind.EMPTY_PLACE: "a directory holds no segment; check that its disk is mounted",
    Kind.NOT_SERVED: "a degraded mount does not serve a disk or a segment",
    Kind.DUPLICATE_SEGMENT: "two directories hold a segment with this name",
    Kind.DAMAGE: "no record can be read, although the log continues after it",
    Kind.BODY_CRC: "the body does not match its CRC",
    Kind.PROPERTY_CRC: "the record does not match the CRC in its properties",
    Kind.QUEUE_JUMP: "queue offsets in the log are not consecutive",
    Kind.QUEUE_MISSING: "the queue has records in the log, but no files",
    Kind.QUEUE_ENTRY_MISSING: "a record has no entry in its consume queue",
    Kind.QUEUE_ENTRY_WRONG: "an entry differs from its record",
    Kind.QUEUE_ENTRY_STRAY: "the log has no record for an entry",
    Kind.INDEX_ENTRY_MISSING: "a key of a record is not in the index",
    Kind.INDEX_ENTRY_STRAY: "the log has no key for an index entry",
    Kind.INDEX_BROKEN: "keys of an index file cannot be found",
}

_RESTORE = "fill it from a slave or a copy: `commitlogfs restore NAME --from DIRECTORY`"
_REPAIR = "repair the segment from a slave or a copy: `commitlogfs restore NAME --from DIRECTORY`"
_REBUILD = "make queues and index again from the log: `commitlogfs-pipeline rebuild`"

REMEDIES = {
    Kind.GAP: f"bring the disk back that has it, or {_RESTORE}",
    Kind.CUT_SHORT: _REPAIR,
    Kind.UNREAD_END: f"none if the broker was killed at that moment; otherwise {_REPAIR}",
    Kind.EMPTY_PLACE: "mount the disk, or leave the directory out",
    Kind.NOT_SERVED: "bring the disk back: `commitlogfs status` names it",
    Kind.DUPLICATE_SEGMENT: "`commitlogfs check` shows which of them belongs to the log",
    Kind.DAMAGE: _REPAIR,
    Kind.BODY_CRC: _REPAIR,
    Kind.PROPERTY_CRC: _REPAIR,
    Kind.QUEUE_JUMP: "compare with a slave: messages may be missing",
    Kind.QUEUE_MISSING: _REBUILD,
    Kind.QUEUE_ENTRY_MISSING: _REBUILD,
    Kind.QUEUE_ENTRY_WRONG: _REBUILD,
    Kind.QUEUE_ENTRY_STRAY: f"{_REBUILD}; if the log has lost messages, first fill it from a slave",
    Kind.INDEX_ENTRY_MISSING: _REBUILD,
    Kind.INDEX_ENTRY_STRAY: _REBUILD,
    Kind.INDEX_BROKEN: _REBUILD,
}
"""The next step of an operator for each kind."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    kind: Kind
    offset: int
    """Log offset; -1 if the finding has none."""
    where: str
    """Name of the segment, queue or file."""
    detail: str


@dataclass(slots=True)
class Findings:
    """Number of findings of each kind, and the first ones. Picklable, and can be merged in any order."""

    counts: Counter[Kind] = field(default_factory=Counter)
    shown: dict[Kind, list[Finding]] = field(default_factory=dict)

    def add(self, kind: Kind, offset: int, where: str, detail: str, *, count: int = 1) -> None:
        self.counts[kind] += count
        self._show([Finding(kind, offset, where, detail)])

    def merge(self, other: "Findings") -> None:
        self.counts += other.counts
        for findings in other.shown.values():
            self._show(findings)

    @property
    def total(self) -> int:
        return self.counts.total()

    def all_shown(self) -> list[Finding]:
        return [finding for kind in Kind for finding in sorted(self.shown.get(kind, []))[:SHOWN_PER_KIND]]

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": {str(kind): count for kind, count in sorted(self.counts.items())},
            "shown": [asdict(finding) for finding in self.all_shown()],
        }

    def _show(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            first_ones = self.shown.setdefault(finding.kind, [])
            first_ones.append(finding)
            if len(first_ones) > 2 * SHOWN_PER_KIND:
                self.shown[finding.kind] = sorted(first_ones)[:SHOWN_PER_KIND]
