"""Messages in frames: what is sent before the position of a replay is recorded. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.replay.records import encode

Properties = list[tuple[str, str]]

COLUMNS: Final = (
    *("topic", "queueId", "commitLogOffset", "storeSize", "flag", "body", "properties"),
    *("bornTimestamp", "storeTimestamp"),
)
"""Columns of the table that a replay needs."""
FRAME_MESSAGES: Final = 1000
FRAME_BYTES: Final = 1 << 20
"""A frame ends when it has this size: a broker takes batches of up to 4 MiB."""
RETRY_PREFIX: Final = "%RETRY%"
GROUP_PREFIXES: Final = (RETRY_PREFIX, "%DLQ%")
"""Topics of consumer groups: further deliveries of messages that are in topics of their own."""


class Row(NamedTuple):
    """A message as a consumer gets it; the fields are those of COLUMNS, with times in milliseconds since 1970."""

    topic: str
    queue_id: int
    offset: int
    size: int
    flag: int
    body: bytes
    properties: Properties
    born_ms: int
    stored_ms: int


class Queue(NamedTuple):
    """A queue of the source, and the topic that its messages are sent to."""

    topic: str
    queue_id: int
    target: str


@dataclass(slots=True)
class Frame:
    """Consecutive messages of the log, by queue, in their order."""

    records: dict[Queue, list[bytes]] = field(default_factory=dict)
    end_offset: int = 0
    """Log offset after the last message."""
    messages: int = 0
    size: int = 0
    """Bytes of the records."""
    left_out: int = 0
    """Messages that no client can send: those without a body, and those of consumer groups."""

    @property
    def is_full(self) -> bool:
        return self.messages >= FRAME_MESSAGES or self.size >= FRAME_BYTES


def frames(rows: Iterable[Row], names: Mapping[str, str], chosen: frozenset[str]) -> Iterator[Frame]:
    """The messages in frames. `names` has the target topics that differ; topics of consumer groups are left out
    unless `chosen`.

    The messages of one record are never in two frames. Raises PipelineError for a message that no broker takes,
    after the frame of those before it.
    """
    frame, last = Frame(), -1
    for topic, queue_id, offset, size, flag, body, properties, born_ms, stored_ms in rows:
        if frame.is_full and offset != last:
            yield frame
            frame = Frame()
        if not body or (topic.startswith(GROUP_PREFIXES) and topic not in chosen):
            frame.left_out += 1
            frame.end_offset, last = offset + size, offset
            continue
        target = names.get(topic, topic)
        try:
            record = encode(target, queue_id, flag, body, properties, (offset, born_ms, stored_ms))
        except PipelineError as error:
            if frame.end_offset:  # what lies before it is sent, so that an operator can leave this one out
                yield frame
            raise PipelineError(f"{error}; --starting-offsets {offset + size} continues after it") from None
        frame.end_offset, last = offset + size, offset
        frame.records.setdefault(Queue(topic, queue_id, target), []).append(record)
        frame.messages += 1
        frame.size += len(record)
    if frame.end_offset:
        yield frame


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch that has COLUMNS."""
    plain = [batch.column(name).to_pylist() for name in COLUMNS[:6]]
    times = [_milliseconds(batch.column(name)) for name in COLUMNS[7:]]
    return map(Row._make, zip(*plain, _properties(batch.column("properties")), *times, strict=True))


def _milliseconds(column: pa.Array) -> list[int]:
    """0 for a time that the column cannot show: only a damaged record has one."""
    return [0 if value is None else value // 1000 for value in column.cast(pa.int64()).to_pylist()]


def _properties(column: pa.MapArray) -> Iterator[Properties]:
    """The pairs of each row. A map's own to_pylist takes several times as long."""
    pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
    bounds = column.offsets.to_pylist()
    return (pairs[begin:end] for begin, end in pairwise(bounds))
