"""Selects entries of a journal, newest first, and shows them as the control API does. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from commitlogfs.mount.journal import ring
from commitlogfs.mount.journal.entries import Entry, Kind, decode
from commitlogfs.mount.journal.wording import describe


class Selection(NamedTuple):
    """Which entries are meant; None means all."""

    segment: str | None = None
    disk: str | None = None
    kind: Kind | None = None


def select(content: bytes, selection: Selection, limit: int) -> list[dict[str, Any]]:
    """At most `limit` entries of a journal with this content."""
    found: list[dict[str, Any]] = []
    for entry in _selected(ring.newest_first(content), selection):
        if len(found) >= limit:
            break
        found.append(as_json(entry))
    return found


def answer(content: bytes, selection: Selection, limit: int) -> dict[str, Any]:
    """The same entries as `decisions`, and as `begins_at` the time of the oldest one, selected or not; None for an
    empty journal."""
    oldest_first = (decode(record) for record in ring.newest_first(content, is_reversed=True))
    begins_at = next((entry.at for entry in oldest_first if entry is not None), None)
    return {"begins_at": begins_at, "decisions": select(content, selection, limit)}


def as_json(entry: Entry) -> dict[str, Any]:
    return {
        "sequence": entry.sequence,
        "at": entry.at,
        "kind": entry.kind.value,
        "segment": entry.segment,
        "disk": entry.disk,
        "text": describe(entry),
        "facts": entry.facts,
    }


def _selected(records: Iterable[ring.Record], selection: Selection) -> Iterator[Entry]:
    segment = None if selection.segment is None else selection.segment.encode()
    for record in records:
        if segment is not None and segment not in record.payload:  # much faster than decoding each entry
            continue
        entry = decode(record)
        if entry is not None and _is_selected(entry, selection):
            yield entry


def _is_selected(entry: Entry, selection: Selection) -> bool:
    if selection.segment not in (None, entry.segment) or selection.kind not in (None, entry.kind):
        return False
    return selection.disk is None or selection.disk in (entry.disk, entry.facts.get("source"))
