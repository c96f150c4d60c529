"""An export as the source: the same messages, in the same order, as from the log itself."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from support import s3_server
from support.compressed import BATCH, LZ4, ZLIB, batch_body, compressed
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.written_logs import WrittenLog, write_log

from commitlogfs.console.errors import RefusedError, UsageError, UserError
from commitlogfs.pipeline.jobs.export import ExportRequest, export
from commitlogfs.pipeline.log.errors import DamagedLogError, LocationError, PipelineError
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.replay import exported
from commitlogfs.pipeline.replay.exported import Export, ExportSource
from commitlogfs.pipeline.replay.frames import Row
from commitlogfs.pipeline.replay.logged import LogSource
from commitlogfs.pipeline.replay.position import Position
from commitlogfs.pipeline.replay.run import ReplayRequest, count, plan
from commitlogfs.pipeline.source.columns import COLUMNS

pytestmark = pytest.mark.full

SEGMENT = 1 << 16
DAY_MS = 86_400_000
INNER = batch_body((b"one", 1, b"KEYS\x01k1\x02"), (b"two", 2, b"KEYS\x01k2\x02own\x01v\x02"))
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def log(base_directory: Path) -> WrittenLog:
    """Several segments, topics, days and kinds of messages."""
    makers = messages(600)
    makers[100] = message(100, body=compressed(b"large " * 1000, ZLIB), sys_flag=ZLIB)
    makers[101] = message(101, body=INNER, sys_flag=BATCH)
    makers[102] = message(102, body=compressed(INNER, LZ4), sys_flag=BATCH | LZ4)
    makers[103] = message(103, topic=b"TBW102")
    makers[104] = message(104, sys_flag=0b0100)
    makers[105] = message(105, topic="größe/a=b".encode())
    makers += [message(number, stored_ms=FIRST_MS + DAY_MS + number) for number in range(600, 1200)]
    return write_log(base_directory / "log", SEGMENT, makers)


@pytest.fixture(scope="module")
def make(spark: SparkSession, log: WrittenLog, base_directory: Path) -> Make:
    """Exports the log."""

    def run(name: str, options: dict[str, str] | None = None, **wanted: Any) -> Path:
        output = base_directory / name
        export(spark, ExportRequest(str(log.directory), str(output), range_size=SEGMENT, **wanted), options)
        return output

    return run


@pytest.fixture(scope="module")
def output(make: Make) -> Path:
    return make("export", {"includeSystemTopics": "true", "includeHalfMessages": "true"})


def request(place: object, **options: str) -> ReplayRequest:
    return ReplayRequest.of({"path": str(place), **options}, "none:1", {}, None)


def source(place: object, position: int | None = None, /, **options: str) -> ExportSource:
    found = Export.find(str(place))
    assert found is not None
    return ExportSource.plan(found, request(place, **options).options, position)


def content(rows: Iterator[Row]) -> list[tuple[Any, ...]]:
    """Without the size, which is that of a part for a message of a batch in a log."""
    return [(*row._replace(size=0, properties=[]), sorted(row.properties)) for row in rows]


def of_log(log: WrittenLog, position: int | None = None, /, **options: str) -> list[tuple[Any, ...]]:
    return content(LogSource.plan(request(log.directory, **options).options, position).rows())


def test_the_messages_of_the_log_in_its_order(log: WrittenLog, output: Path) -> None:
    assert len({path.parent for path in output.rglob("*.parquet")}) > 4
    assert len(list((output / "_commitlogfs" / "ranges").iterdir())) > 2
    expected = of_log(log)
    assert len(expected) == 1200  # two batches of two; a topic of the broker and an undecided message are left out
    assert content(source(output).rows()) == expected


def test_an_export_of_another_log_is_refused(log: WrittenLog, output: Path) -> None:
    """It was exported again, with --replace, after the log was wiped."""
    found = Export.find(str(output))
    assert found is not None
    position = log.offsets[700]
    last = source(output).fingerprint(position)
    assert last is not None
    assert last.offset < position
    planned = partial(ExportSource.plan, found, request(output).options, position)
    assert planned(last).ranges == source(output, position).ranges
    with pytest.raises(RefusedError, match=f"has other messages now than those before the position {position}"):
        planned(replace(last, digest="of another message"))


@pytest.mark.parametrize(
    ("name", "wanted", "options"),
    [
        ("plain", {"partition_by": ()}, {}),
        ("whole", {"whole_files": True}, {}),
        ("decompressed", {}, {"decompress": "true"}),
        ("without-topic", {"columns": tuple(name for name in COLUMNS.names if name != "topic")}, {}),
        ("small", {"columns": (*exported.NEEDED,), "partition_by": ("date",), "file_size": 1 << 14}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_exports_of_other_layouts(
    log: WrittenLog, make: Make, name: str, wanted: dict[str, Any], options: dict[str, str]
) -> None:
    assert content(source(make(name, options, **wanted)).rows()) == of_log(log)


def test_batches_that_are_small_are_merged_alike(
    log: WrittenLog, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported, "_MOST_ROWS", 7)
    assert content(source(output).rows()) == of_log(log)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "Topic1"},
        {"topicPattern": "Topic[12]|gr.*"},
        {"startingOffsets": "70000", "endingOffsets": "150000"},
        {"startingTimestamp": str(FIRST_MS + 90 * STEP_MS), "endingTimestamp": str(FIRST_MS + 110 * STEP_MS)},
        {"startingTimestamp": str(FIRST_MS + DAY_MS)},
        {"endingTimestamp": str(FIRST_MS + DAY_MS)},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_selection_is_that_of_the_log(log: WrittenLog, output: Path, options: dict[str, str]) -> None:
    expected = of_log(log, None, **options)
    assert 0 < len(expected) < 1200
    assert content(source(output, None, **options).rows()) == expected


def test_from_a_position_on(log: WrittenLog, output: Path) -> None:
    middle = log.offsets[700]
    found = source(output, middle)
    assert (found.ranges[0][0], found.ranges[-1][1]) == (middle, log.end)
    assert content(found.rows()) == of_log(log, middle)
    assert content(source(output, middle, startingOffsets="0").rows()) == of_log(log, middle)
    assert list(source(output, log.end).rows()) == []


def test_only_files_that_are_needed_are_read(output: Path) -> None:
    """Files of other days and topics may even be missing."""
    found = source(output, topic="Topic1", startingTimestamp=str(FIRST_MS + DAY_MS))
    expected = len(list(found.rows()))
    hidden = [path for path in output.rglob("*.parquet") if "topic=Topic1/" not in str(path)]
    for path in hidden:
        path.rename(path.with_suffix(".hidden"))
    try:
        assert len(list(found.rows())) == expected
    finally:
        for path in hidden:
            path.with_suffix(".hidden").rename(path)


def test_the_count_is_that_of_the_log(log: WrittenLog, output: Path) -> None:
    both = [
        count(wanted, plan(wanted, Position(), Export.find(str(place))))
        for place in (log.directory, output)
        for wanted in [request(place)]
    ]
    assert both[0].as_json() == both[1].as_json()
    assert both[0].messages == 1200


def test_a_log_is_not_an_export(log: WrittenLog, tmp_path: Path) -> None:
    assert Export.find(str(log.directory)) is None
    assert Export.find(str(log.segment_at(0))) is None
    assert Export.find(str(tmp_path / "nowhere")) is None
    assert Export.find(f"{log.directory},{tmp_path}") is None


def test_columns_that_are_missing_are_named(make: Make) -> None:
    place = make("few", columns=("queueId", "commitLogOffset", "body"), partition_by=())
    with pytest.raises(
        RefusedError,
        match="was exported without topic, storeSize, flag, properties, bornTimestamp, storeTimestamp, sysFlag,",
    ):
        source(place)


def test_columns_that_only_later_ranges_have(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    for columns, end in (tuple(exported.NEEDED[:-1]), SEGMENT), (exported.NEEDED, log.end):
        wanted = ExportRequest(str(log.directory), str(tmp_path / "out"), columns=columns)
        export(spark, wanted, {"endingOffsets": str(end)})
    with pytest.raises(RefusedError, match="was exported without sysFlag,"):
        list(source(tmp_path / "out").rows())
    assert content(source(tmp_path / "out", SEGMENT).rows()) == of_log(log, SEGMENT)


def test_a_topic_that_was_not_exported_is_refused(make: Make) -> None:
    place = make("one-topic", {"topic": "Topic1"})
    assert {row.topic for row in source(place).rows()} == {"Topic1"}
    with pytest.raises(UsageError, match="--topic Topic2: was not exported"):
        source(place, topic="Topic2")


def test_a_gap_between_ranges_is_an_error(log: WrittenLog, make: Make) -> None:
    place = make("gap")
    second = sorted((place / "_commitlogfs" / "ranges").iterdir())[1]
    gone = json.loads(second.read_text())
    second.unlink()
    with pytest.raises(DataLossError, match=f"log offsets {gone['start']} to {gone['end']}: not in the export"):
        source(place)
    assert content(source(place, endingOffsets=str(gone["start"])).rows()) == of_log(
        log, endingOffsets=str(gone["start"])
    )
    assert content(source(place, startingOffsets=str(gone["end"])).rows()) == of_log(log, gone["end"])


def test_a_start_outside_of_the_export(log: WrittenLog, make: Make) -> None:
    place = make("later", {"startingOffsets": str(SEGMENT)})
    with pytest.raises(DataLossError, match=f"log offsets 0 to {SEGMENT}: not in the export"):
        source(place, startingOffsets="0")
    with pytest.raises(LocationError, match=f"the export ends at {log.end}, before startingOffsets = 9999999"):
        source(place, startingOffsets="9999999")
    with pytest.raises(RefusedError, match="ends before the position 9999999 that the replay has reached"):
        source(place, 9999999)


def test_an_export_without_ranges(output: Path, tmp_path: Path) -> None:
    (tmp_path / "_commitlogfs").mkdir()
    settings = (output / "_commitlogfs" / "export.json").read_bytes()
    (tmp_path / "_commitlogfs" / "export.json").write_bytes(settings)
    with pytest.raises(LocationError, match="has no finished range"):
        source(tmp_path)


def keep_one_row(path: Path) -> None:
    parquet.write_table(parquet.read_table(path, partitioning=None)[:1], path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def replace_rows(path: Path, order: list[int]) -> None:
    table = parquet.read_table(path, partitioning=None)
    parquet.write_table(table.take(order + list(range(len(order), len(table)))), path)


@pytest.mark.parametrize(
    ("harm", "error", "text"),
    [
        (Path.unlink, DataLossError, "does not exist, though its range is finished"),
        (cut, LocationError, "cannot be read"),
        (lambda path: replace_rows(path, [1, 0]), PipelineError, "is not in the order of the log"),
        (keep_one_row, PipelineError, "has 1 rows instead"),
    ],
    ids=["removed", "cut", "disordered", "fewer"],
)
def test_a_file_that_was_changed_is_one_line(
    make: Make, harm: Callable[[Path], object], error: type[UserError], text: str, request: pytest.FixtureRequest
) -> None:
    place = make(f"changed-{request.node.callspec.id}", partition_by=("topic",))
    harm(min(place.rglob("topic=Topic1/*.parquet")))
    with pytest.raises(error, match=text) as raised:
        list(source(place).rows())
    assert "\n" not in str(raised.value)


def test_damage_that_the_export_has_skipped(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(50))
    log.write_at(log.offsets[20] + 4, b"\xff" * 4)
    wanted = ExportRequest(str(log.directory), str(tmp_path / "out"))
    export(spark, wanted, {"mode": "PERMISSIVE"})
    with pytest.raises(DamagedLogError, match=f"log offset {log.offsets[20]}"):
        source(tmp_path / "out")
    found = source(tmp_path / "out", mode="PERMISSIVE")
    assert [row.offset for row in found.rows()] == log.offsets[:20] + log.offsets[21:]
    assert [damage.offset for damage in found.damages] == [log.offsets[20]]
    assert source(tmp_path / "out", log.offsets[21]).damages == []


@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"not zlib", ZLIB, "the body is not a zlib stream"),
        (INNER[:-1], BATCH, "the body is not a batch of whole messages"),
        (INNER + b"\x00\x00\x00\x05", BATCH, "the body is not a batch of whole messages"),
    ],
    ids=["compressed", "cut-batch", "longer-batch"],
)
def test_a_body_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path, body: bytes, sys_flag: int, reason: str
) -> None:
    makers = messages(10)
    makers[5] = message(5, body=body, sys_flag=sys_flag)
    log = write_log(tmp_path / "log", SEGMENT, makers)
    export(spark, ExportRequest(str(log.directory), str(tmp_path / "out")))
    with pytest.raises(DamagedLogError, match=rf"segment {0:020d}, log offset {log.offsets[5]}: {reason}"):
        list(source(tmp_path / "out").rows())
    found = source(tmp_path / "out", mode="PERMISSIVE")
    assert [row.offset for row in found.rows()] == log.offsets[:5] + log.offsets[6:]
    assert [(damage.offset, damage.reason[: len(reason)]) for damage in found.damages] == [(log.offsets[5], reason)]


@pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack())
def test_an_export_in_a_bucket(spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    """A server that ends meanwhile is one line."""
    with s3_server.s3_server(tmp_path) as endpoint:
        s3_server.bucket_of(endpoint).create_dir("lake")
        place = s3_server.uri(endpoint, "lake", "out")
        export(spark, ExportRequest(str(log.directory), place, range_size=SEGMENT))
        assert Export.find(s3_server.uri(endpoint, "lake", "other")) is None
        assert content(source(place).rows()) == of_log(log)
        rows = source(place).rows()
        assert next(rows).offset == 0
    with pytest.raises(LocationError, match=r"cannot be read .*Could not connect to server") as raised:
        list(rows)
    assert "\n" not in str(raised.value)
    with pytest.raises(LocationError, match="Could not connect to server"):
        Export.find(place)
