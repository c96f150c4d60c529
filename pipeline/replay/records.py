"""A message as bytes that RocketMQ's client decodes (MessageDecoder#decodes): a record without its place."""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.store.record_layout import BODY_AT, LARGEST_V1_TOPIC_BYTES, MAGIC_V1, PHYSICAL_OFFSET_AT

ORIGIN_LOG_OFFSET: Final = "ORIGIN_LOG_OFFSET"
ORIGIN_BORN_TIMESTAMP: Final = "ORIGIN_BORN_TIMESTAMP"
ORIGIN_STORE_TIMESTAMP: Final = "ORIGIN_STORE_TIMESTAMP"
"""Properties that a replayed message has besides its own, because a client cannot set these fields: the log offset,
and the times in milliseconds since 1970. The log offset also shows which messages were sent twice."""

NOT_SENT: Final = frozenset(
    {
        # How the producer has sent it: a batch is sent as one, and each of its messages is delivered at once.
        *("WAIT", "DELAY", "INNER_NUM", "INNER_BASE", "TRACE_ON", "CLUSTER", "MSG_REGION"),
        # A delay that has passed.
        *("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELAY_LEVEL", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *(
            "TIMER_ENQUEUE_MS",
            "TIMER_DEQUEUE_MS",
            "TIMER_ROLL_TIMES",
            "TIMER_DEL_UNIQKEY",
            "REAL_TOPIC",
            "REAL_QID",
        ),
        # A transaction that is decided: with TRAN_MSG, the broker would take the message for an undecided one.
        *("TRAN_MSG", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        # Of the broker that has stored it, or of a consumer that got it.
        *("__CRC32#", "MIN_OFFSET", "MAX_OFFSET", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "CONSUME_START_TIME"),
        "INNER_MULTI_QUEUE_OFFSET",
    }
)
"""Properties (MessageConst) that say how the message was sent or stored, and would be wrong or even harmful."""

_BEFORE_BODY: Final = struct.Struct(">iI4xii8xqiq8xq8x12xi")
assert _BEFORE_BODY.size == BODY_AT
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_LONGEST_PROPERTIES: Final = 32767 - 64
"""A property takes up to 32767 bytes, of which the client may need some for a UNIQ_KEY."""


def encode(
    topic: str, queue_id: int, flag: int, body: bytes, properties: Iterable[tuple[str, str]], times: Sequence[int]
) -> bytes:
    """The record; `times` are the log offset, the born and the store time. `body` is not compressed.

    Raises PipelineError if the topic or the properties are too long for a broker.
    """
    offset, born_ms, stored_ms = times
    name = topic.encode()
    if not 0 < len(name) <= LARGEST_V1_TOPIC_BYTES:
        raise PipelineError(
            f"log offset {offset}: topic {topic}: has {len(name)} bytes, a topic has 1 to {LARGEST_V1_TOPIC_BYTES}"
        )
    kept = [(key, value) for key, value in properties if key not in NOT_SENT]
    origin = zip((ORIGIN_LOG_OFFSET, ORIGIN_BORN_TIMESTAMP, ORIGIN_STORE_TIMESTAMP), map(str, times), strict=True)
    text = "".join(f"{key}\x01{value}\x02" for key, value in (*kept, *origin)).encode()
    if len(text) > _LONGEST_PROPERTIES:
        raise PipelineError(
            f"log offset {offset}: topic {topic}: its properties have {len(text)} bytes with those that a replay "
            f"adds, a message has at most {_LONGEST_PROPERTIES}"
        )
    size = BODY_AT + len(body) + 1 + len(name) + _SHORT.size + len(text)
    head = _BEFORE_BODY.pack(size, MAGIC_V1, queue_id, flag, offset, 0, born_ms, stored_ms, len(body))
    return b"".join((head, body, bytes((len(name),)), name, _SHORT.pack(len(text)), text))


def log_offset(record: bytes) -> int:
    """Log offset of the message from which `encode` has made this record."""
    (offset,) = _LONG.unpack_from(record, PHYSICAL_OFFSET_AT)
    return int(offset)
