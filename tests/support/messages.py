"""Numbered messages for logs written by hand: body, topic, queue and store time follow from the number."""

import struct

from support.records import make_record
from support.written_logs import Maker

FIRST_MS = 1_700_000_000_000
"""Store time of message 0; each later one is stored STEP_MS after."""
STEP_MS = 100
TOPICS = 3
_STORED_AT = 56
"""Where STORETIMESTAMP lies behind an IPv4 host."""


def message(number: int, *, stored_ms: int | None = None, **fields: object) -> Maker:
    """Message `number`, 40 of them to 5 KiB; `fields` are make_record's and win."""
    given = {
        "topic": b"Topic%d" % (number % TOPICS),
        "queue_id": number % 2,
        "queue_offset": number // 2,
        "body": b"message %08d" % number,
        **fields,
    }

    def make(offset: int) -> bytes:
        record = bytearray(make_record(offset, **given))  # type: ignore[arg-type]
        stored = FIRST_MS + number * STEP_MS if stored_ms is None else stored_ms
        record[_STORED_AT : _STORED_AT + 8] = struct.pack(">q", stored)
        return bytes(record)

    return make


def messages(count: int, first: int = 0) -> list[Maker]:
    return [message(number) for number in range(first, first + count)]
