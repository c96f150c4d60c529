"""A degraded mount whose missing disk held the oldest segments lists a shorter log: every reader says so."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.messages import message
from support.pools import PoolMount
from support.refusals import degrade
from support.stream_offsets import offset_at
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.audit import audit
from commitlogfs.pipeline.jobs.export import ExportRequest, export, plan_export
from commitlogfs.pipeline.jobs.rebuild import RebuildRefusedError, rebuild
from commitlogfs.pipeline.jobs.stats import stats
from commitlogfs.pipeline.log.losses import DataLossError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.source.options import parse_options
from commitlogfs.pipeline.source.reader import plan_batch
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader

pytestmark = [pytest.mark.mounted, pytest.mark.full]

SEGMENT = 1 << 20
COUNT = 60


@dataclass(frozen=True)
class Degraded:
    """Two of three segments are served."""

    pool: PoolMount
    log: WrittenLog
    gone: Path
    """The path of the disk with the first segment."""
    aside: Path
    """Where that disk is."""

    @property
    def path(self) -> str:
        return str(self.pool.mountpoint)

    @property
    def told(self) -> str:
        return f"{self.path}: disk {self.gone} is missing; its messages before log offset {SEGMENT} are not read"

    @property
    def left(self) -> int:
        """Messages that are served."""
        return sum(offset >= SEGMENT for offset in self.log.offsets)

    def bring_back(self) -> None:
        self.pool.stop()
        self.gone.rmdir()
        self.aside.rename(self.gone)
        self.pool.start()


def store(pool: PoolMount, log: WrittenLog, numbers: range) -> None:
    """Copy segments of `log` into the mount."""
    pool.make_segments(numbers, fill=False)
    for number in numbers:
        with pool.path(number).open("r+b") as file:
            file.write(log.segment_at(number * SEGMENT).read_bytes())
            os.fsync(file.fileno())


def make_log(directory: Path) -> WrittenLog:
    """Three segments."""
    body = bytes(50_000)
    return write_log(directory, SEGMENT, [message(number, body=body) for number in range(COUNT)])


@pytest.fixture
def degraded(make_pool: Callable[..., PoolMount]) -> Degraded:
    pool = make_pool(2, segment_size=SEGMENT)
    log = make_log(pool.workdir / "source")
    pool.start()
    store(pool, log, range(1))
    gone = Path(pool.disks[pool.disk_of(0)])
    pool.stop()
    pool.disk_settings[pool.disks.index(gone)] = {"readonly": "true"}
    pool.start()
    store(pool, log, range(1, 3))
    pool.stop()
    aside = gone.with_name("aside")
    gone.rename(aside)
    gone.mkdir()
    degrade(pool)
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(1).name, pool.path(2).name]
    return Degraded(pool, log, gone, aside)


def count(spark: SparkSession, path: str, **options: str | int | bool) -> int:
    source = spark.read.format("commitlog").schema("commitLogOffset long").options(**options)
    return source.load(path).count()


def planned(path: str, **options: str) -> int:
    return len(plan_batch(parse_options({"path": path, **options}, streaming=False), Bounds()))


def stream(path: str, **options: str) -> CommitlogStreamReader:
    return CommitlogStreamReader(parse_options({"path": path, **options}, streaming=True), cast("Any", None))


def test_a_batch_without_the_oldest_segment_is_an_error(spark: SparkSession, degraded: Degraded) -> None:
    with pytest.raises(PySparkException) as failed:
        count(spark, degraded.path)
    assert f"DataLossError: {degraded.told}" in str(failed.value)
    assert f"startingOffsets={SEGMENT}" in str(failed.value)
    assert count(spark, degraded.path, startingOffsets=SEGMENT) == degraded.left
    assert count(spark, degraded.path, failOnDataLoss="false") == degraded.left
    degraded.bring_back()
    assert count(spark, degraded.path) == COUNT


def test_a_batch_that_may_lose_rows_warns_of_the_disk(degraded: Degraded, caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"failOnDataLoss": "false"}, {"startingOffsets": str(SEGMENT)}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert planned(degraded.path, **options)
        assert caplog.messages == [degraded.told], options
    with pytest.raises(DataLossError, match=f"the log begins at {SEGMENT}; .*disk {degraded.gone} is missing"):
        planned(degraded.path, startingOffsets="0")


def test_a_stream_from_the_beginning_is_an_error(spark: SparkSession, degraded: Degraded) -> None:
    source = spark.readStream.format("commitlog").schema("topic string").option("startingOffsets", "earliest")
    writer = source.load(degraded.path).writeStream.format("noop").trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(PySparkException, match=f"DataLossError: {re.escape(degraded.told)}"):
        query.awaitTermination()


def test_a_stream_that_goes_on_warns_of_the_disk_once(degraded: Degraded, caplog: pytest.LogCaptureFixture) -> None:
    """The query continues at a known offset, so a missing part shows as a gap."""
    with caplog.at_level(logging.WARNING):
        reader = stream(degraded.path)
        for _ in range(2):
            reached = reader.latestOffset(offset_at(degraded.path, SEGMENT), ReadAllAvailable())
            assert reached == offset_at(degraded.path, degraded.log.end)
        assert caplog.messages == [degraded.told]
        caplog.clear()
        lenient = stream(degraded.path, startingOffsets="earliest", failOnDataLoss="false")
        assert lenient.initialOffset() == offset_at(degraded.path, SEGMENT)
        assert stream(degraded.path, startingOffsets="latest").initialOffset() == offset_at(
            degraded.path, degraded.log.end
        )
        assert caplog.messages == [degraded.told] * 2
    with pytest.raises(DataLossError, match=f"the log begins at {SEGMENT}"):
        reader.latestOffset(offset_at(degraded.path, 0), ReadAllAvailable())
    with pytest.raises(DataLossError, match=re.escape(degraded.told)):
        stream(degraded.path, startingTimestamp="1").initialOffset()


def test_statistics_and_audit_name_the_missing_disk(spark: SparkSession, degraded: Degraded) -> None:
    found = stats(spark, degraded.path)
    assert found.as_json()["not_served"] == [degraded.told]
    assert found.total is not None
    assert found.total.messages == degraded.left
    report = audit(spark, degraded.path)
    assert not report.is_whole
    (finding,) = [one for one in report.findings.all_shown() if one.kind == "not-served"]
    assert (finding.where, finding.detail) == (degraded.path, f"disk {degraded.gone} is missing")


def test_the_statistics_verb_exits_with_1(degraded: Degraded) -> None:
    command = [sys.executable, "-m", "commitlogfs.pipeline", "stats", degraded.path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert f"missing: {degraded.told}" in ran.stderr.splitlines()


def test_a_rebuild_is_refused_or_names_the_missing_disk(
    spark: SparkSession, degraded: Degraded, tmp_path: Path
) -> None:
    with pytest.raises(RebuildRefusedError, match=re.escape(degraded.told)):
        rebuild(spark, degraded.path, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    result = rebuild(spark, degraded.path, tmp_path / "rebuilt", mode=DamageMode.PERMISSIVE)
    assert (result.records, result.not_served) == (degraded.left, (degraded.told,))


def test_an_export_of_the_beginning_is_refused_or_reported(
    spark: SparkSession, degraded: Degraded, tmp_path: Path
) -> None:
    request = ExportRequest(degraded.path, str(tmp_path / "out"))
    with pytest.raises(DataLossError, match=re.escape(degraded.told)):
        plan_export(request)
    lenient = {"failOnDataLoss": "false"}
    assert plan_export(request, lenient).as_json()["not_served"] == [degraded.told]
    result = export(spark, request, lenient)
    assert (result.rows, result.not_served) == (degraded.left, (degraded.told,))
    assert plan_export(request).not_served == ()  # continues after what is exported
    degraded.bring_back()
    again = export(spark, request)
    assert (again.rows, again.not_served) == (COUNT - degraded.left, ())


@pytest.mark.soak
def test_the_export_verb_exits_with_1(degraded: Degraded, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "commitlogfs.pipeline", "--json", "export", "--no-fail-on-data-loss"]
    command += [degraded.path, str(tmp_path / "out")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert json.loads(ran.stdout)["not_served"] == [degraded.told]


def test_a_missing_disk_with_the_middle_is_named_at_the_gap(
    make_pool: Callable[..., PoolMount], caplog: pytest.LogCaptureFixture
) -> None:
    """A log that begins at 0 has nothing older."""
    pool = make_pool(2, segment_size=SEGMENT)
    log = make_log(pool.workdir / "source")
    pool.start()
    store(pool, log, range(3))
    gone = Path(pool.disks[pool.disk_of(1)])
    pool.stop()
    gone.rename(gone.with_name("aside"))
    degrade(pool)
    pool.start()
    path = str(pool.mountpoint)
    with pytest.raises(DataLossError, match=f"{SEGMENT} to {2 * SEGMENT}: .*disk {gone} is missing"):
        planned(path)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert planned(path, startingOffsets=str(2 * SEGMENT))
    assert caplog.messages == [f"{path}: disk {gone} is missing; its messages are not read"]


def test_the_oldest_segment_of_a_wrong_size_is_reported(make_pool: Callable[..., PoolMount]) -> None:
    """A degraded mount leaves it out, too."""
    pool = make_pool(1, segment_size=SEGMENT)
    log = make_log(pool.workdir / "source")
    pool.start()
    store(pool, log, range(3))
    pool.stop()
    os.truncate(Path(pool.disks[0]) / pool.path(0).name, SEGMENT // 2)
    degrade(pool)
    pool.start()
    told = (
        f"{pool.mountpoint}: segment {pool.path(0).name} on {pool.disks[0]} is not served (size {SEGMENT // 2} "
        f"instead of {SEGMENT}); its messages before log offset {SEGMENT} are not read"
    )
    with pytest.raises(DataLossError, match=re.escape(told)):
        planned(str(pool.mountpoint))
    pool.path(1).unlink()  # as a broker does with its oldest segment
    assert planned(str(pool.mountpoint), startingOffsets=str(2 * SEGMENT))


def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commitlogfs.pipeline", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_loss_that_was_accepted_is_a_note_for_the_statistics_and_the_export(
    make_pool: Callable[..., PoolMount], spark: SparkSession, tmp_path: Path
) -> None:
    """Through the mount and through its bare disks; a further gap is an error again."""
    pool = make_pool(3, segment_size=SEGMENT)
    body = bytes(50_000)
    log = write_log(pool.workdir / "source", SEGMENT, [message(number, body=body) for number in range(115)])
    pool.start()
    store(pool, log, range(6))
    place_of_gone = pool.disk_of(1)
    gone = Path(pool.disks[place_of_gone])
    lost = [
        {"start_offset": number * SEGMENT, "end_offset": (number + 1) * SEGMENT}
        for number in range(6)
        if pool.disk_of(number) == place_of_gone
    ]
    kept = [one for one in log.offsets if not any(gap["start_offset"] <= one < gap["end_offset"] for gap in lost)]
    pool.stop()
    gone.rename(gone.with_name("aside"))
    given_up = pool.cli("disk", "remove", place_of_gone + 1, pool.config, "--lost", "--yes")
    assert given_up.status == 0, given_up.err
    pool.disks = [disk for disk in pool.disks if Path(disk) != gone]
    pool.start()
    bare = ",".join(map(str, pool.disks))
    for number, place in enumerate((str(pool.mountpoint), bare)):
        assert count(spark, place) == len(kept)
        found = stats(spark, place)
        assert (found.missing, found.as_json()["accepted_losses"]) == ((), lost)
        report = audit(spark, place)
        assert {one.kind for one in report.findings.all_shown()} == {"queue-jump"}  # what the gap held is missing
        assert [note for note in report.notes if note.startswith("accepted loss: log offsets")]
        ran = pipeline("export", place, str(tmp_path / f"out{number}"))
        assert ran.returncode == 0, ran.stderr
        result = json.loads(ran.stdout)
        assert (result["rows"], result["lost"], result["accepted_losses"]) == (len(kept), [], lost)
    counted = pipeline("stats", str(pool.mountpoint))
    assert counted.returncode == 0, counted.stderr
    also_gone = next(number for number in (2, 3) if pool.path(number).exists())
    pool.stop()
    (Path(pool.disks[pool.disk_of(also_gone)]) / pool.path(also_gone).name).rename(tmp_path / "segment")
    assert stats(spark, bare).missing == ((also_gone * SEGMENT, (also_gone + 1) * SEGMENT),)
    assert pipeline("export", bare, str(tmp_path / "out2")).returncode == 4
