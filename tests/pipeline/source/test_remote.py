"""The log on an S3-compatible server: the same rows, fetched by ranges; what is missing there is said."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import s3_server
from support.messages import messages
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log.errors import LocationError, SegmentGoneError
from commitlogfs.pipeline.log.scanner import Chunk, scan_split
from commitlogfs.pipeline.log.seek import survey
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.reader import plan_batch
from commitlogfs.pipeline.source.selection import Bounds

pytestmark = [pytest.mark.full, pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack())]

SEGMENT = 1 << 16


@pytest.fixture(scope="module")
def log(base_directory: Path) -> WrittenLog:
    return write_log(base_directory / "remote-log", SEGMENT, messages(2000))


@pytest.fixture(scope="module")
def endpoint(base_directory: Path) -> Iterator[str]:
    directory = base_directory / "s3"
    directory.mkdir()
    with s3_server.s3_server(directory) as address:
        yield address


@pytest.fixture(scope="module")
def stored(endpoint: str, log: WrittenLog) -> str:
    """The URI of a copy of the log."""
    return s3_server.store(endpoint, "archive", "log", log.directory)


def test_every_message_once(stored: str, log: WrittenLog) -> None:
    listing, end = survey(stored, None)
    assert end == log.end
    assert [segment.base_offset for segment in listing.segments] == list(range(0, log.end, SEGMENT))
    found: list[int] = []
    for split in plan_splits(listing, end, split_size=10_000):
        for part in scan_split(split):
            assert isinstance(part, Chunk)
            found += (part.offset + part.positions).tolist()
    assert found == log.offsets


def test_as_a_table(spark: SparkSession, stored: str, log: WrittenLog) -> None:
    frame = spark.read.format("commitlog").schema("commitLogOffset long, body binary").load(stored)
    assert [row["commitLogOffset"] for row in frame.collect()] == log.offsets
    ranged = (
        spark.read.format("commitlog")
        .schema("commitLogOffset long")
        .options(startingOffsets=SEGMENT, endingOffsets=2 * SEGMENT)
    )
    assert ranged.load(stored).count() == sum(SEGMENT <= offset < 2 * SEGMENT for offset in log.offsets)


def test_what_is_not_there(endpoint: str, stored: str) -> None:
    with pytest.raises(LocationError, match="nowhere"):
        survey(s3_server.uri(endpoint, "nowhere", "log"), None)
    with pytest.raises(LocationError):
        survey(s3_server.uri(endpoint, "archive", "another"), None)


def test_a_prefix_above_the_log_is_an_error_that_names_it(endpoint: str, log: WrittenLog) -> None:
    bucket = s3_server.bucket_of(endpoint)
    bucket.create_dir("backup")
    with bucket.open_output_stream(f"backup/store/commitlog/{0:020d}") as file:
        file.write(log.segment_at(0).read_bytes())
    likely = re.escape(
        f"holds no segments; the log is probably {s3_server.uri(endpoint, 'backup', 'store/commitlog')}"
    )
    for above in ("store", ""):
        with pytest.raises(LocationError, match=likely):
            survey(s3_server.uri(endpoint, "backup", above), None)


def test_an_empty_prefix_is_an_error(endpoint: str) -> None:
    s3_server.bucket_of(endpoint).create_dir("bare")
    for fail in ("true", "false"):
        options = parse_options({"path": s3_server.uri(endpoint, "bare", ""), "failOnDataLoss": fail})
        if fail == "false":
            assert plan_batch(options, Bounds()) == []
            continue
        with pytest.raises(LocationError, match=r"holds no segments; check that the log is mounted there"):
            plan_batch(options, Bounds())


def test_a_segment_that_is_deleted_meanwhile(endpoint: str, log: WrittenLog) -> None:
    bucket = s3_server.bucket_of(endpoint)
    with bucket.open_output_stream(f"archive/other/{0:020d}") as file:
        file.write(log.segment_at(0).read_bytes())
    listing, end = survey(s3_server.uri(endpoint, "archive", "other"), None)
    bucket.delete_file(f"archive/other/{0:020d}")
    (split,) = plan_splits(listing, end)
    with pytest.raises(SegmentGoneError, match=f"segment {0:020d}: was deleted after the log was listed"):
        list(scan_split(split))
