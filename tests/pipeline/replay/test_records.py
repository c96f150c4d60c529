"""Records for the client: every field that a message has, and nothing that would harm it."""

import pytest

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.replay.records import encode, log_offset
from commitlogfs.store import record

TIMES = (5000, 1_700_000_000_123, 1_700_000_000_456)
ORIGIN = {
    "ORIGIN_LOG_OFFSET": "5000",
    "ORIGIN_BORN_TIMESTAMP": "1700000000123",
    "ORIGIN_STORE_TIMESTAMP": "1700000000456",
}


def decoded(properties: list[tuple[str, str]], body: bytes = b"\x00body", topic: str = "Orders") -> record.Record:
    data = encode(topic, 7, -3, body, properties, TIMES)
    found = record.decode(data, TIMES[0])
    assert log_offset(data) == TIMES[0]
    assert found.total_size == len(data)
    return found


def test_the_fields_of_a_message() -> None:
    properties = [("KEYS", "a b"), ("TAGS", "T"), ("own", "größe ✓"), ("UNIQ_KEY", "7F")]
    found = decoded(properties)
    assert (found.topic, found.queue_id, found.flag, found.body) == ("Orders", 7, -3, b"\x00body")
    assert (found.born_timestamp_ms, found.store_timestamp_ms, found.sys_flag) == (*TIMES[1:], 0)
    assert found.properties == dict(properties) | ORIGIN


@pytest.mark.parametrize(
    "name", ["TRAN_MSG", "PGROUP", "DELAY", "TIMER_DELIVER_MS", "WAIT", "__CRC32#", "INNER_NUM"]
)
def test_how_it_was_sent_is_left_out(name: str) -> None:
    assert decoded([(name, "true"), ("KEYS", "k")]).properties == {"KEYS": "k"} | ORIGIN


def test_too_long_properties_name_the_message() -> None:
    assert decoded([("p", "x" * 32_560)]).properties["p"]
    with pytest.raises(PipelineError, match="log offset 5000: topic Orders: its properties have"):
        decoded([("p", "x" * 32_700)])


@pytest.mark.parametrize("topic", ["", "ä" * 64])
def test_a_topic_that_no_broker_takes(topic: str) -> None:
    assert decoded([], topic="x" * 127).topic == "x" * 127
    with pytest.raises(PipelineError, match="a topic has 1 to 127"):
        decoded([], topic=topic)
