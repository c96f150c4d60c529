"""What an audit finds, and how much of it is kept: every finding counts, the first ones of a kind are shown."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SHOWN_PER_KIND = 100


class Kind(StrEnum):
    """What can be wrong; each value is a stable name for scripts."""

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
    Kind.CUT_SHORT: "the file of a segment ends before it ought to",
    Kind.UNREAD_END: "a message after the last one that is read: never finished, or damaged",
    Kind.EMPTY_PLACE: "a folder without any segment: is its disk mounted?",
    Kind.NOT_SERVED: "a degraded mount leaves out a disk or a segment",
    Kind.DUPLICATE_SEGMENT: "two folders hold a segment of this name",
    Kind.DAMAGE: "no readable record, although the log goes on behind it",
    Kind.BODY_CRC: "the body does not match its CRC",
    Kind.PROPERTY_CRC: "the record does not match the CRC in its properties",
    Kind.QUEUE_JUMP: "queue offsets in the log do not follow one another",
    Kind.QUEUE_MISSING: "the queue has records in the log, but no files",
    Kind.QUEUE_ENTRY_MISSING: "a record without an entry in its consume queue",
    Kind.QUEUE_ENTRY_WRONG: "an entry that points elsewhere than at its record, or says something else of it",
    Kind.QUEUE_ENTRY_STRAY: "an entry for which the log has no record",
    Kind.INDEX_ENTRY_MISSING: "a key of a record that is not in the index",
    Kind.INDEX_ENTRY_STRAY: "an index entry for which the log has no key",
    Kind.INDEX_BROKEN: "an index file in which keys cannot be found",
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    kind: Kind
    offset: int
    """Of the log; -1 where there is none."""
    where: str
    """Segment, queue or file."""
    detail: str


@dataclass(slots=True)
class Findings:
    """Counts of all, and the first of each kind. Picklable, and can be added up in any order."""

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
            kept = self.shown.setdefault(finding.kind, [])
            kept.append(finding)
            if len(kept) > 2 * SHOWN_PER_KIND:
                self.shown[finding.kind] = sorted(kept)[:SHOWN_PER_KIND]
