"""Thousands of damaged logs: each message is read or reported, and nothing that was cut off is read."""

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.clocks import SHORT_WAITS, RecordedWaits
from support.in_process_spark import InProcessSpark
from support.messages import message
from support.mutated_logs import MutatedLog, make_mutated_log
from support.stream_offsets import offset_at
from support.written_logs import WrittenLog, sized, write_log

from commitlogfs.pipeline.jobs.audit import audit
from commitlogfs.pipeline.jobs.export import ExportRequest, plan_export
from commitlogfs.pipeline.jobs.findings import Kind
from commitlogfs.pipeline.jobs.rebuild import rebuild
from commitlogfs.pipeline.jobs.stats import stats
from commitlogfs.pipeline.log.errors import DamagedLogError
from commitlogfs.pipeline.log.losses import missing_ranges
from commitlogfs.pipeline.log.scanner import Chunk, DamageMode, scan_split
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import SETTLE_S, find_end
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.log.unread_end import Unread, find_unread
from commitlogfs.pipeline.source.options import ReadOptions, parse_options
from commitlogfs.pipeline.source.reader import plan_batch
from commitlogfs.pipeline.source.selection import Bounds
from commitlogfs.pipeline.source.stream_reader import CommitlogStreamReader
from commitlogfs.store.clock import Clock, SystemClock

SEGMENT = 1 << 16
WHOLE_SEGMENTS = 1 << 30
Range = tuple[int, int]


def reads(
    listing: LogListing,
    start: int,
    end: int,
    *,
    split_size: int = WHOLE_SEGMENTS,
    mode: DamageMode = DamageMode.PERMISSIVE,
    exact_start: bool = False,
) -> tuple[list[int], list[Range]]:
    """Where the messages of [start, end) begin, and the ranges that are reported as damaged."""
    found: list[int] = []
    damages: list[Range] = []
    for split in plan_splits(listing, end, start_offset=start, exact_start=exact_start, split_size=split_size):
        for part in scan_split(split, mode):
            if isinstance(part, Chunk):
                found += (part.offset + part.positions).tolist()
            else:
                damages.append((part.offset, part.offset + part.length))
    return found, damages


def reported(listing: LogListing, end: int) -> list[Range]:
    """Reports about the log's end: a truncated file, and data that is not read."""
    unread = find_unread(listing, end, settle_s=0)
    lost = missing_ranges(listing, listing.begin_offset, expected_end(listing, end))
    return [*lost, *((one.offset, one.offset + one.length) for one in unread)]


def batch_faults(mutated: MutatedLog, seed: int) -> list[str]:
    """Problems in the rows that a batch reads from the log, in both modes."""
    listing = list_segments(str(mutated.log.directory), mutated.log.segment_size)
    end = find_end(listing, settle_s=0)
    found, damages = reads(listing, 0, end, split_size=(WHOLE_SEGMENTS, 1000)[seed % 2])
    faults = mutated.faults(found, [*damages, *reported(listing, end)])
    try:
        strictly, _ = reads(listing, 0, end, mode=DamageMode.FAILFAST)
    except DamagedLogError:
        return faults if damages else [*faults, "FAILFAST fails, PERMISSIVE reports nothing"]
    return faults if (strictly, damages) == (found, []) else [*faults, "FAILFAST reads over damage"]


def stream_faults(mutated: MutatedLog, seed: int) -> list[str]:
    """The same for a stream whose log was damaged while it read: it had come to the middle of the log."""
    listing = list_segments(str(mutated.log.directory), mutated.log.segment_size)
    known = mutated.log.offsets[seed % len(mutated.log.offsets)]
    end = find_end(listing, known=known, settle_s=0, search_bytes=1 << 20)
    found, damages = reads(listing, known, end, exact_start=True)
    return mutated.faults(found, [*damages, *reported(listing, end), (0, known)])


def faults_of(directory: Path, seeds: Iterable[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for seed in seeds:
        mutated = make_mutated_log(directory / "log", seed)
        faults = batch_faults(mutated, seed)
        if mutated.log.offsets:
            faults += [f"stream: {fault}" for fault in stream_faults(mutated, seed)]
        if faults:
            found[seed] = faults
        shutil.rmtree(directory / "log")
    return found


def test_mutated_logs_are_read_or_reported(tmp_path: Path) -> None:
    """Some of these seeds were chosen: earlier versions lost messages of theirs, or read old ones."""
    assert faults_of(tmp_path, [*range(300), *(448, 506, 516, 603, 751, 896, 5264)]) == {}


@pytest.mark.soak
def test_many_mutated_logs_are_read_or_reported(tmp_path: Path) -> None:
    assert faults_of(tmp_path, range(300, 20_000)) == {}


# --- the faults, one by one ------------------------------------------------------------------------------


def end_and_unread(log: WrittenLog) -> tuple[int, list[tuple[int, Unread]]]:
    listing = list_segments(str(log.directory), log.segment_size)
    end = find_end(listing, settle_s=0)
    return end, [(one.offset, one.kind) for one in find_unread(listing, end, settle_s=0)]


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, [message(number) for number in range(100)])


def damage(log: WrittenLog, index: int) -> None:
    log.write_at(log.offsets[index] + 4, b"\0\0\0\0")


def set_store_time(log: WrittenLog, index: int, stored_ms: int) -> None:
    log.write_at(log.offsets[index] + 56, stored_ms.to_bytes(8, "big"))


def test_a_low_store_time_after_damage_does_not_end_the_log(log: WrittenLog) -> None:
    damage(log, 90)
    set_store_time(log, 91, 1)
    assert end_and_unread(log) == (log.end, [])


def test_a_high_store_time_some_records_before_damage_is_ignored(log: WrittenLog) -> None:
    damage(log, 90)
    set_store_time(log, 87, 1 << 50)
    assert end_and_unread(log) == (log.end, [])


def test_a_high_store_time_just_before_damage_is_reported(log: WrittenLog) -> None:
    """It cannot be distinguished from the first message after a truncation of the log."""
    damage(log, 90)
    set_store_time(log, 89, 1 << 50)
    end, unread = end_and_unread(log)
    assert (end, [offset for offset, _ in unread]) == (log.offsets[90], [log.offsets[90]])


@pytest.mark.parametrize("at", [0, 4, 84])
def test_a_damaged_last_message_is_reported(log: WrittenLog, at: int) -> None:
    log.write_at(log.offsets[-1] + at, b"\x7f\x7f\x7f\x7f")
    assert end_and_unread(log) == (log.offsets[-1], [(log.offsets[-1], Unread.MESSAGE)])


def test_a_last_message_that_ends_in_zero_is_reported(log: WrittenLog) -> None:
    log.write_at(log.end - 1, b"\0")
    assert end_and_unread(log) == (log.offsets[-1], [(log.offsets[-1], Unread.MESSAGE)])


def test_a_last_message_without_a_header_is_reported(log: WrittenLog) -> None:
    log.write_at(log.offsets[-1], bytes(60))
    assert end_and_unread(log) == (log.offsets[-1], [(log.offsets[-1], Unread.BYTES)])


def test_old_messages_after_the_end_are_reported(log: WrittenLog) -> None:
    log.end, log.offsets = log.offsets[50], log.offsets[:50]
    log.append(message(50, stored_ms=1_800_000_000_000, body=b"new" * 50))
    assert end_and_unread(log) == (log.end, [(log.end, Unread.EARLIER)])


def test_an_old_blank_record_does_not_end_the_segment(tmp_path: Path) -> None:
    """After a log was cut back its last message may end inside the last old one, which the old blank follows."""
    log = write_log(tmp_path / "log", SEGMENT, [sized(3000)] * 25)
    log.segment_at(SEGMENT).unlink()
    log.offsets = [offset for offset in log.offsets if offset < SEGMENT]
    log.end = log.offsets[-1]
    log.append(message(1, stored_ms=1_800_000_000_000))
    assert end_and_unread(log) == (log.end, [(log.end, Unread.BYTES)])


def test_a_segment_whose_first_megabytes_are_damaged_is_read(tmp_path: Path) -> None:
    size = 4 << 20
    log = write_log(tmp_path / "log", size, [sized(30_000)] * 250)
    first = next(offset for offset in log.offsets if offset >= size)
    log.write_at(first, bytes(2 << 20))
    assert end_and_unread(log) == (log.end, [])


def test_nothing_is_reported_of_whole_logs(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [sized(3000)] * 60)
    assert end_and_unread(log) == (log.end, [])
    ahead = log.segment_at(log.end + SEGMENT)
    ahead.write_bytes(bytes(SEGMENT))
    assert end_and_unread(log) == (log.end, [])


def test_a_log_that_grows_meanwhile_has_no_unread_end(log: WrittenLog) -> None:
    listing = list_segments(str(log.directory), log.segment_size)
    end = log.end
    log.append(message(100))
    assert find_unread(listing, end, settle_s=0) == ()


# --- who reports -----------------------------------------------------------------------------------------


def options(log: WrittenLog, *, streaming: bool, **given: str) -> ReadOptions:
    return parse_options({"path": str(log.directory), **given}, streaming=streaming)


def stream(log: WrittenLog, clock: Clock = SHORT_WAITS) -> CommitlogStreamReader:
    given = options(log, streaming=True, startingOffsets="earliest")
    return CommitlogStreamReader(given, cast("Any", None), clock=clock)


def follow(log: WrittenLog, clock: Clock = SHORT_WAITS) -> None:
    """Two triggers, between which the log does not grow."""
    reader = stream(log, clock)
    for _ in range(2):
        reader.latestOffset(offset_at(log, log.offsets[-1]), ReadAllAvailable())


def begin(log: WrittenLog, clock: Clock) -> None:
    """A stream with Trigger.AvailableNow."""
    reader = stream(log, clock)
    reader.initialOffset()
    reader.prepareForTriggerAvailableNow()


def beside(log: WrittenLog, name: str) -> Path:
    return log.directory.parent / name


READERS: dict[str, Callable[[WrittenLog, SparkSession, Clock], object]] = {
    "batch": lambda log, _, clock: plan_batch(options(log, streaming=False), Bounds(), clock=clock),
    "stream": lambda log, _, clock: follow(log, clock),
    "stats": lambda log, spark, clock: stats(spark, str(log.directory), clock=clock),
    "export": lambda log, _, clock: plan_export(
        ExportRequest(str(log.directory), str(beside(log, "exported"))), clock=clock
    ),
    "rebuild": lambda log, spark, clock: rebuild(spark, str(log.directory), beside(log, "rebuilt"), clock=clock),
}
OTHERS: dict[str, Callable[[WrittenLog, SparkSession, Clock], object]] = {
    "audit": lambda log, spark, clock: audit(spark, str(log.directory), clock=clock),
    "begin of a stream": lambda log, _, clock: begin(log, clock),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_reports_what_it_leaves_unread(
    job_spark: SparkSession, log: WrittenLog, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(log, -1)
    with caplog.at_level(logging.WARNING):
        READERS[reader](log, job_spark, SHORT_WAITS)
    (line,) = [line for line in caplog.messages if "are not read" in line]
    assert line.startswith(f"segment {0:020d}, log offset {log.offsets[-1]}: ")


@pytest.mark.parametrize("reader", [*READERS, *OTHERS])
def test_each_reader_waits_by_its_clock(log: WrittenLog, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the last message, and for what follows it."""
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: pytest.fail("waits by another clock"))
    damage(log, -1)
    clock = RecordedWaits()
    (READERS | OTHERS)[reader](log, cast("Any", InProcessSpark()), clock)
    assert {seconds for seconds in clock.waits_s if seconds} == {SETTLE_S}


def test_an_audit_finds_a_damaged_last_message(job_spark: SparkSession, log: WrittenLog) -> None:
    damage(log, -1)
    findings = audit(job_spark, str(log.directory), clock=SHORT_WAITS).findings
    (found,) = [one for one in findings.all_shown() if one.kind is Kind.UNREAD_END]
    assert found.offset == log.offsets[-1]


def test_an_audit_notes_old_messages_after_the_end(job_spark: SparkSession, log: WrittenLog) -> None:
    log.end, log.offsets = log.offsets[50], log.offsets[:50]
    log.append(message(50, stored_ms=1_800_000_000_000, body=b"new" * 50))
    report = audit(job_spark, str(log.directory), clock=SHORT_WAITS)
    assert Kind.UNREAD_END not in report.findings.counts
    assert [note for note in report.notes if f"log offset {log.end}: " in note]


def test_available_now_reads_past_long_damage(tmp_path: Path) -> None:
    """A stream that asks again comes to the rest of it later, but this one asks once."""
    log = write_log(tmp_path / "log", 8 << 20, [sized(30_000)] * 200)
    log.write_at(log.offsets[20], bytes(3 << 20))
    reader = stream(log)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(offset_at(log, 0), ReadAllAvailable()) == offset_at(log, log.end)


def test_a_stream_warns_of_no_bytes_that_show_no_message(log: WrittenLog, caplog: pytest.LogCaptureFixture) -> None:
    """A broker with writeWithoutMmap leaves such after every message."""
    log.write_at(log.end, b"\7" * 300)
    with caplog.at_level(logging.WARNING):
        follow(log)
    assert caplog.messages == []
    plan_batch(options(log, streaming=False), Bounds(), clock=SHORT_WAITS)
    assert len(caplog.messages) == 1
