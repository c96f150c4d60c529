"""The keys of an aggregation, such as `topic,hour(storeTimestamp)`: their texts, columns and values. Pure."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
    from commitlogfs.pipeline.arrays.fields import RecordFields

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


class Kind(Enum):
    TEXT = "string"
    NUMBER = "int"
    TIME = "timestamp"


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Picklable."""

    text: str
    """As written."""
    column: str
    kind: Kind
    field: str
    """A field of RecordFields; for a text the beginning of two such names, or a property's name in capitals."""
    unit_ms: int = 1
    """Times are counted in whole units since 1970 (UTC)."""

    def spans(self, data: "Bytes", fields: "RecordFields") -> "tuple[Longs, Longs]":
        """Start and length of each row's text; length -1 where the row has none."""
        if not self.field.isupper():
            return getattr(fields, f"{self.field}_start"), getattr(fields, f"{self.field}_length")
        from commitlogfs.pipeline.arrays.properties import find_property

        return find_property(data, fields.properties_start, fields.properties_length, self.field.encode())

    def numbers(self, fields: "RecordFields") -> "Longs":
        """Each row's number; of a time, the number of whole units."""
        values: Longs = getattr(fields, self.field)
        return values if self.unit_ms == 1 else values // self.unit_ms

    def readable(self, value: "Value") -> str | int | None:
        """A value as people read it: texts as Java decodes them, times in milliseconds since 1970."""
        if isinstance(value, bytes):
            from commitlogfs.pipeline.arrays.java_text import well_formed_text

            return well_formed_text(value)
        return value if value is None else value * self.unit_ms


def _times() -> dict[str, GroupKey]:
    keys = {}
    for unit, unit_ms in (("minute", MINUTE_MS), ("hour", HOUR_MS), ("day", DAY_MS)):
        for name, field in (("storeTimestamp", "store_ms"), ("bornTimestamp", "born_ms")):
            text = f"{unit}({name})"
            column = f"{name.removesuffix('Timestamp')}{unit.capitalize()}"
            keys[text] = GroupKey(text, column, Kind.TIME, field, unit_ms)
    return keys


KEYS: Final = {
    "topic": GroupKey("topic", "topic", Kind.TEXT, "topic"),
    "tags": GroupKey("tags", "tags", Kind.TEXT, "TAGS"),
    "queueId": GroupKey("queueId", "queueId", Kind.NUMBER, "queue_id"),
    **_times(),
}
"""Every key, by its text."""


def parse_keys(text: str) -> tuple[GroupKey, ...]:
    """Keys from a comma list; case and blanks do not matter. Raises ValueError with the rule that it breaks."""
    known = {name.lower(): key for name, key in KEYS.items()}
    found: list[GroupKey] = []
    for part in text.split(","):
        name = "".join(part.split()).lower()
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {known[close[0]].text}?" if close else f"the keys are {', '.join(KEYS)}"
            raise ValueError(f"the key {part.strip() or '(none)'} is unknown; {hint}")
        if known[name] in found:
            raise ValueError(f"the key {known[name].text} occurs twice")
        found.append(known[name])
    return tuple(found)


Value = bytes | int | None
"""A text as stored, a number, or None for an absent text."""


def grouped(
    keys: Sequence[GroupKey], data: "Bytes", fields: "RecordFields"
) -> "tuple[Longs, list[tuple[Value, ...]]]":
    """A group number for each row, and the values of the keys of each group."""
    from commitlogfs.pipeline.arrays.groups import group_rows

    texts = {key: key.spans(data, fields) for key in keys if key.kind is Kind.TEXT}
    numbers = {key: key.numbers(fields) for key in keys if key.kind is not Kind.TEXT}
    groups, firsts = group_rows(data, len(fields.total_size), list(texts.values()), list(numbers.values()))
    columns: list[list[Value]] = []
    for key in keys:
        if key in numbers:
            columns.append(numbers[key][firsts].tolist())
            continue
        starts, lengths = (values[firsts].tolist() for values in texts[key])
        spans = zip(starts, lengths, strict=True)
        columns.append([data[at : at + size].tobytes() if size >= 0 else None for at, size in spans])
    return groups, list(zip(*columns, strict=True))
