"""Arrow columns hold what `store.record` decodes, record by record, whatever the bytes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import V1, V2, make_record
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log.errors import PipelineError
from commitlogfs.pipeline.log.scanner import Chunk, scan_split
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.source.columns import COLUMNS, Projection
from commitlogfs.store import record as reference

SEGMENT = 1 << 18


def read_table(log: WrittenLog, names: list[str]) -> list[dict[str, Any]]:
    projection = Projection(names)
    rows: list[dict[str, Any]] = []
    for split in plan_splits(list_segments(str(log.directory)), log.end):
        for chunk in scan_split(split):
            assert isinstance(chunk, Chunk)
            batch = projection.to_batch(chunk)
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def expected_row(log: WrittenLog, offset: int) -> dict[str, Any]:
    segment = log.segment_at(offset)
    one = reference.decode(segment.read_bytes()[offset % log.segment_size :], offset)
    return {
        "topic": one.topic,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "commitLogOffset": offset,
        "storeSize": one.total_size,
        "body": one.body,
        "properties": one.properties,
        "tags": one.properties.get("TAGS"),
        "keys": one.properties.get("KEYS"),
        "uniqKey": one.properties.get("UNIQ_KEY"),
        "transactionId": one.properties.get("__transactionId__"),
        "flag": one.flag,
        "sysFlag": one.sys_flag,
        "bornTimestamp": one.born_timestamp_ms,
        "storeTimestamp": one.store_timestamp_ms,
        "bornHost": str(one.born_host),
        "storeHost": str(one.store_host),
        "reconsumeTimes": one.reconsume_times,
        "preparedTransactionOffset": one.prepared_transaction_offset,
        "bodyCRC": one.body_crc,
        "magicCode": (0xDAA320A7 if one.version == 1 else 0xDAA320AB) - (1 << 32),
        "segment": segment.name,
    }


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    milliseconds: dict[str, Any] = {
        name: round(row[name].timestamp() * 1000) for name in ("bornTimestamp", "storeTimestamp") if name in row
    }
    maps: dict[str, Any] = {"properties": dict(row["properties"])} if "properties" in row else {}
    return {**row, **milliseconds, **maps}


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
PROPERTIES = st.lists(
    st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "__transactionId__", "a", "", "TAG", "TAGSX"]), TEXT),
    max_size=6,
)


@st.composite
def makers(draw: st.DrawFn) -> Any:
    pairs = draw(PROPERTIES)
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + draw(
        st.sampled_from(["", "\x02", "\x02\x02"])
    )
    fields: dict[str, Any] = {
        "properties": text.encode(),
        "body": draw(st.binary(max_size=40)),
        "topic": draw(TEXT).encode(),
        "magic": draw(st.sampled_from([V1, V2])),
        "queue_id": draw(st.integers(-(2**31), 2**31 - 1)),
        "queue_offset": draw(st.integers(-(2**63), 2**63 - 1)),
        "born": draw(st.sampled_from([("1.2.3.4", 5), ("::1", -1), ("255.0.0.255", 2**31 - 1)])),
        "stored": draw(st.sampled_from([("1.2.3.4", 5), ("fe80::1", 10911)])),
    }
    return lambda offset: make_record(offset, **fields)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(makers(), min_size=1, max_size=8))
def test_every_column_is_what_the_reference_decoder_says(
    tmp_path_factory: pytest.TempPathFactory, made: Any
) -> None:
    log = write_log(tmp_path_factory.mktemp("log"), SEGMENT, made)
    rows = [comparable(row) for row in read_table(log, COLUMNS.names)]
    assert rows == [expected_row(log, offset) for offset in log.offsets]


def test_columns_come_in_the_order_asked_for_and_alone(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [make_record] * 3)
    assert [list(row) for row in read_table(log, ["tags", "queueId"])] == [["tags", "queueId"]] * 3


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(PipelineError, match=r"column topics is unknown; the columns are topic, queueId"):
        Projection(["topics"])


def test_a_batch_survives_the_buffer_it_was_read_from(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [make_record] * 100)
    split = plan_splits(list_segments(str(log.directory)), log.end)[0]
    for chunk in scan_split(split):
        assert isinstance(chunk, Chunk)
        batch = Projection(COLUMNS.names).to_batch(chunk)
        before = batch.to_pylist()
        chunk.data[:] = 0xFF
        assert batch.to_pylist() == before


def test_malformed_text_is_replaced_as_java_does(tmp_path: Path) -> None:
    log = write_log(
        tmp_path, SEGMENT, [lambda at: make_record(at, topic=b"a\xed\xa0\x80b", properties=b"TAGS\x01\xff\x02")]
    )
    (row,) = read_table(log, ["topic", "tags"])
    assert row == {"topic": "a\ufffdb", "tags": "\ufffd"}


def test_a_time_that_no_calendar_has_is_null(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [make_record] * 2)
    log.write_at(log.offsets[1] + 40, (2**63 - 1).to_bytes(8, "big"))
    first, second = read_table(log, ["bornTimestamp"])
    assert first["bornTimestamp"] is not None
    assert second["bornTimestamp"] is None


def test_thousands_of_properties_of_one_record_are_parsed_in_time(tmp_path: Path) -> None:
    names = [b"%x" % number for number in range(3000)]
    text = b"".join(name + b"\x01v\x02" for name in [*names, *names])
    log = write_log(tmp_path, SEGMENT, [lambda at: make_record(at, properties=text[:32760])])
    (row,) = read_table(log, ["properties"])
    assert dict(row["properties"]) == reference.parse_properties(text[:32760])
    assert len(row["properties"]) == len(dict(row["properties"]))


def test_a_selection_of_rows(tmp_path: Path) -> None:
    import numpy as np

    log = write_log(tmp_path, SEGMENT, [lambda at, n=n: make_record(at, queue_id=n) for n in range(10)])
    split = plan_splits(list_segments(str(log.directory)), log.end)[0]
    chunk = next(scan_split(split))
    assert isinstance(chunk, Chunk)
    batch = Projection(["queueId"]).to_batch(chunk, selection=np.array([2, 5, 9]))
    assert batch.column(0) == pa.array([2, 5, 9], pa.int32())
