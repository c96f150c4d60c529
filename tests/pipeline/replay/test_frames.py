"""Frames: consecutive messages by queue, never a part of a record, and nothing that a client cannot send."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.replay import frames as module
from commitlogfs.pipeline.replay.frames import COLUMNS, Frame, Queue, frames, rows_of
from commitlogfs.pipeline.replay.records import log_offset
from commitlogfs.pipeline.source.columns import ALL_COLUMNS
from commitlogfs.store import record

SCHEMA = pa.schema([ALL_COLUMNS.field(name) for name in COLUMNS])


def row(offset: int, topic: str = "T", queue_id: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "queueId": queue_id,
        "commitLogOffset": offset,
        "storeSize": 100,
        "flag": 0,
        "body": b"b",
        "properties": [("KEYS", f"k{offset}"), *fields.pop("more", [])],
        "bornTimestamp": 1_700_000_000_123_000,
        "storeTimestamp": 1_700_000_000_456_000,
    } | fields


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def framed(
    batches: list[pa.RecordBatch], names: dict[str, str], chosen: frozenset[str] = frozenset()
) -> Iterator[Frame]:
    return frames(chain.from_iterable(map(rows_of, batches)), names, chosen)


def keys(records: list[bytes]) -> list[str]:
    return [record.decode(data, log_offset(data)).properties["KEYS"] for data in records]


def test_messages_by_queue_in_their_order() -> None:
    first = batch(row(0), row(100, "U", 1), row(200))
    (frame,) = framed([first, batch(row(300), row(400, "U", 2))], {"U": "V"})
    assert {queue: keys(records) for queue, records in frame.records.items()} == {
        Queue("T", 0, "T"): ["k0", "k200", "k300"],
        Queue("U", 1, "V"): ["k100"],
        Queue("U", 2, "V"): ["k400"],
    }
    assert (frame.end_offset, frame.messages, frame.left_out) == (500, 5, 0)
    assert frame.size == sum(len(data) for records in frame.records.values() for data in records)


def test_properties_of_a_part_of_a_batch() -> None:
    """A slice's map refers to the pairs of the whole batch."""
    part = batch(row(0, more=[("a", "1"), ("b", "2")]), row(100), row(200, more=[("c", "3")])).slice(1)
    (frame,) = framed([part], {})
    records = frame.records[Queue("T", 0, "T")]
    assert [record.decode(data, log_offset(data)).properties.get("c") for data in records] == [None, "3"]
    assert keys(frame.records[Queue("T", 0, "T")]) == ["k100", "k200"]


def test_a_frame_ends_between_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of an unfolded batch share their record's log offset."""
    monkeypatch.setattr(module, "FRAME_MESSAGES", 2)
    rows = [row(0), row(100), row(100), row(100), row(200)]
    found = list(framed([batch(*rows)], {}))
    assert [(frame.end_offset, frame.messages) for frame in found] == [(200, 4), (300, 1)]


def test_a_frame_has_a_limited_size() -> None:
    rows = [row(100 * n, body=b"x" * (600 << 10)) for n in range(3)]
    assert [frame.messages for frame in framed([batch(*rows)], {})] == [2, 1]


def test_messages_that_no_client_sends_are_counted() -> None:
    rows = [row(0, body=b""), row(100, "%RETRY%group"), row(200, "%DLQ%group"), row(300)]
    (frame,) = framed([batch(*rows)], {})
    assert (frame.messages, frame.left_out, frame.end_offset) == (1, 3, 400)
    (frame,) = framed([batch(*rows)], {}, frozenset({"%DLQ%group"}))
    assert (frame.messages, frame.left_out) == (2, 2)


def test_a_message_that_no_broker_takes_comes_after_those_before_it() -> None:
    rows = [row(0), row(100), row(200, more=[("p", "x" * 40_000)]), row(300)]
    found = framed([batch(*rows)], {})
    before = next(found)
    assert (before.end_offset, before.messages) == (200, 2)
    with pytest.raises(PipelineError, match=r"log offset 200: .*; --starting-offsets 300 continues after it"):
        next(found)


def test_nothing_is_no_frame() -> None:
    assert list(framed([], {})) == []
    assert list(framed([batch()], {})) == []
