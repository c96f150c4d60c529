"""Statistics are those of the records, whatever the splits; the figures of any two parts add up."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.messages import FIRST_MS, STEP_MS, TOPICS, message, messages
from support.settled_logs import grouped_stats, stats
from support.written_logs import write_log

from commitlogfs.pipeline.log.errors import LocationError, PipelineError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.source.group_keys import parse_keys
from commitlogfs.pipeline.source.tally import tally_splits

SEGMENT = 1 << 16
COUNT = 900
LAST_MS = FIRST_MS + (COUNT - 1) * STEP_MS


@pytest.mark.parametrize("split_size", [5000, SEGMENT])
def test_counted_by_topic_and_queue_or_day(tmp_path: Path, split_size: int) -> None:
    log = write_log(tmp_path, SEGMENT, messages(COUNT))
    splits = plan_splits(list_segments(str(tmp_path)), log.end, split_size=split_size)
    by_queue = tally_splits(splits, DamageMode.FAILFAST, parse_keys("topic,queueId"), None).figures
    assert set(by_queue) == {(b"Topic%d" % topic, queue) for topic in range(TOPICS) for queue in range(2)}
    assert {figures.messages for figures in by_queue.values()} == {COUNT // 6}
    assert {figures.body_bytes for figures in by_queue.values()} == {COUNT // 6 * len("message 00000000")}
    first = by_queue[b"Topic0", 0]
    assert (first.first_ms, first.last_ms) == (FIRST_MS, LAST_MS - 5 * STEP_MS)
    by_day = tally_splits(splits, DamageMode.FAILFAST, parse_keys("topic,day(storeTimestamp)"), None).figures
    assert {day for _, day in by_day} == {FIRST_MS // 86_400_000}
    blanks = sum(part.stored_bytes for part in by_day.values())
    assert 0 < log.end - blanks < SEGMENT


def test_statistics_of_a_whole_log(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [*messages(COUNT), message(COUNT, topic=b"big", body=b"x" * 5000)])
    seen: list[tuple[int, int]] = []
    found = stats(spark, str(tmp_path), split_size=20_000, on_progress=lambda *now: seen.append(now))
    assert (found.start_offset, found.end_offset, found.damages, found.missing) == (0, log.end, (), ())
    assert list(found.topics)[-1] == "big"
    assert [topic.messages for topic in found.topics.values()] == [300, 300, 300, 1]
    assert found.total is not None
    assert (found.total.messages, found.total.queues) == (COUNT + 1, 7)
    assert found.total.largest_bytes == found.topics["big"].stored_bytes > 5000
    topic = found.topics["Topic0"]
    assert topic.messages_per_s == pytest.approx(300 / (topic.seconds))
    assert found.topics["big"].messages_per_s is None
    document = found.as_json()
    assert document["total"]["first_stored"] == "2023-11-14T22:13:20.000+00:00"
    assert [row["topic"] for row in document["topics"]] == list(found.topics)
    assert seen[-1][0] == seen[-1][1] > 1


def test_statistics_by_other_keys(job_spark: SparkSession, tmp_path: Path) -> None:
    untagged = message(COUNT, properties=b"KEYS\x01k\x02", stored_ms=FIRST_MS + 7_200_000)
    write_log(tmp_path, SEGMENT, [*messages(COUNT), untagged])
    keys = parse_keys("tags,hour(storeTimestamp)")
    found = grouped_stats(job_spark, str(tmp_path), keys, split_size=20_000)
    hour_ms = FIRST_MS - FIRST_MS % 3_600_000
    assert [(group.values, group.figures.messages) for group in found.groups] == [
        ((None, hour_ms + 7_200_000), 1),
        (("A", hour_ms), COUNT),
    ]
    rows = found.as_json()["groups"]
    assert [(row["tags"], row["storeHour"]) for row in rows] == [
        (None, "2023-11-15T00:00:00.000+00:00"),
        ("A", "2023-11-14T22:00:00.000+00:00"),
    ]
    assert sum(row["stored_bytes"] for row in rows) == sum(
        topic.stored_bytes for topic in stats(job_spark, str(tmp_path)).topics.values()
    )


def test_damage_is_an_error_or_told(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, messages(COUNT))
    log.write_at(log.offsets[100] + 4, b"\0\0\0\0")
    with pytest.raises(PipelineError, match=rf"log offset {log.offsets[100]}: no record begins here"):
        stats(job_spark, str(tmp_path))
    found = stats(job_spark, str(tmp_path), mode=DamageMode.PERMISSIVE)
    assert found.total is not None
    assert (found.total.messages, [damage.offset for damage in found.damages]) == (COUNT - 1, [log.offsets[100]])


def test_a_missing_segment_is_reported(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, messages(2 * COUNT))
    log.segment_at(SEGMENT).unlink()
    assert stats(job_spark, str(tmp_path)).missing == ((SEGMENT, 2 * SEGMENT),)


def test_a_log_without_messages_and_no_log(job_spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "log", SEGMENT, [])
    found = stats(job_spark, str(tmp_path / "log"))
    assert (found.total, found.topics) == (None, {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(LocationError, match="holds no segments"):
        stats(job_spark, str(tmp_path / "empty"))
