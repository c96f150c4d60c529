"""Which records become rows, judged from their headers."""

import pickle

import numpy as np
import pytest
from support.messages import FIRST_MS, STEP_MS, message
from support.records import V2, make_record

from commitlogfs.pipeline.arrays.array_types import Bytes
from commitlogfs.pipeline.arrays.fields import RecordFields, record_fields
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.selection import Bounds, RecordFilter


def laid_out(*records: bytes) -> tuple[Bytes, RecordFields]:
    data = np.frombuffer(b"".join(records), np.uint8)
    positions = np.cumsum([0, *map(len, records)])[:-1].astype(np.int64)
    return data, record_fields(data, positions)


def selected(wanted: RecordFilter, *records: bytes) -> list[int]:
    data, fields = laid_out(*records)
    rows = wanted.select(data, fields)
    return list(range(len(records))) if rows is None else rows.tolist()


def of(**options: str) -> RecordFilter:
    return RecordFilter.of(parse_options({"path": "/log", **options}))


TEN = tuple(message(number)(0) for number in range(10))


def with_topics(*topics: bytes) -> tuple[bytes, ...]:
    return tuple(make_record(0, topic=topic) for topic in topics)


def test_all_messages_are_wanted_unless_said_otherwise() -> None:
    data, fields = laid_out(*TEN)
    assert of().select(data, fields) is None


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"topic": "Topic1"}, [1, 4, 7]),
        ({"topic": "Topic1,Topic2"}, [1, 2, 4, 5, 7, 8]),
        ({"topic": "Topic"}, []),
        ({"topicPattern": "Topic[02]"}, [0, 2, 3, 5, 6, 8, 9]),
        ({"topicPattern": "Topic"}, []),
        ({"queueId": "1"}, [1, 3, 5, 7, 9]),
        ({"queueId": "1,0"}, list(range(10))),
        ({"topic": "Topic1", "queueId": "1"}, [1, 7]),
        ({"startingTimestamp": str(FIRST_MS + 3 * STEP_MS)}, [3, 4, 5, 6, 7, 8, 9]),
        ({"startingTimestamp": str(FIRST_MS + 3 * STEP_MS + 1)}, [4, 5, 6, 7, 8, 9]),
        ({"endingTimestamp": str(FIRST_MS + 3 * STEP_MS)}, [0, 1, 2]),
    ],
)
def test_options(options: dict[str, str], rows: list[int]) -> None:
    assert selected(of(**options), *TEN) == rows


def test_the_brokers_own_topics_are_left_out() -> None:
    topics = (b"A", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_wheel_timer", b"TBW102", b"%RETRY%g", b"%DLQ%g", b"rmq_")
    records = with_topics(*topics)
    assert selected(of(), *records) == [0, 4, 5, 6]
    assert selected(of(includeSystemTopics="true"), *records) == list(range(7))
    assert selected(of(topic="SCHEDULE_TOPIC_XXXX"), *records) == [1], "named, so meant"
    assert selected(of(topicPattern=".*TOPIC.*"), *records) == []


@pytest.mark.parametrize("prefix", [b"RMQ_SYS_", b"RMQ_SYS_ROCKSDB_"])
def test_half_messages_are_left_out(prefix: bytes) -> None:
    """PREPARED 4, COMMIT 8, ROLLBACK 12: only what a consumer would see. With transRocksDBEnable, the topics have
    other names."""
    records = (
        *with_topics(b"A", prefix + b"TRANS_HALF_TOPIC", prefix + b"TRANS_OP_HALF_TOPIC"),
        *(make_record(0, sys_flag=state | 1) for state in (4, 8, 12)),
    )
    assert selected(of(), *records) == [0, 4]
    assert selected(of(includeSystemTopics="true"), *records) == [0, 4]
    assert selected(of(includeHalfMessages="true"), *records) == [0, 1, 2, 3, 4, 5]
    assert selected(of(topic=(prefix + b"TRANS_HALF_TOPIC").decode()), *records) == [1]


LONG = b"%RETRY%" + b"g" * 290
NAMES = [
    b"",
    b"A",
    b"B",
    b"AB",
    b"BA",
    LONG,
    LONG + b"g",
    b"TBW102",
    b"TBW103",
    b"rmq_sys_",
    b"rmq_sys_x",
    b"rmq_sys",
]


@pytest.mark.parametrize("wanted", [(b"",), (b"A", b"BA"), (LONG,), (b"TBW102", b"rmq_sys_x"), ()])
def test_topics_by_name(wanted: tuple[bytes, ...]) -> None:
    """Told by first byte and length alone where these suffice, which must not be seen."""
    records = tuple(make_record(0, topic=name, magic=V2) for name in NAMES)
    named = [number for number, name in enumerate(NAMES) if name in wanted]
    assert selected(RecordFilter(topics=frozenset(wanted)), *records) == named
    unsystematic = [number for number in named if NAMES[number] not in (b"TBW102", b"rmq_sys_", b"rmq_sys_x")]
    assert selected(RecordFilter(only_topics=frozenset(wanted)), *records) == unsystematic
    assert selected(RecordFilter(), *records) == [0, 1, 2, 3, 4, 5, 6, 8, 11]


def test_a_querys_conditions_only_narrow() -> None:
    """A system topic in a condition must not bring in what the query would not have without pushdown."""
    records = with_topics(b"A", b"TBW102", b"B")
    assert selected(of().narrowed(Bounds(topics=frozenset({b"TBW102", b"A"}))), *records) == [0]
    assert selected(of(topic="A").narrowed(Bounds(topics=frozenset({b"B"}))), *records) == []
    narrowed = of(queueId="0,1").narrowed(Bounds(queue_ids=frozenset({1, 2}), start_ms=FIRST_MS + 4 * STEP_MS))
    assert selected(narrowed, *TEN) == [5, 7, 9]


def test_bounds_add_up() -> None:
    one = Bounds(topics=frozenset({b"A", b"B"}), start_ms=5, end_offset=100)
    other = Bounds(topics=frozenset({b"B", b"C"}), start_ms=7, end_ms=9, end_offset=50, queue_ids=frozenset({1}))
    both = Bounds(frozenset({b"B"}), frozenset({1}), 7, 9, None, 50)
    assert one.and_also(other) == both == other.and_also(one)
    assert one.and_also(Bounds()) == one == Bounds().and_also(one)


def test_a_filter_travels() -> None:
    wanted = of(topic="Topic1")
    selected(wanted, *TEN)
    assert selected(pickle.loads(pickle.dumps(wanted)), *TEN) == [1, 4, 7]  # noqa: S301
