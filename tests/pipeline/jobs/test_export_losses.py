"""An export whose log loses segments meanwhile: no exported row goes, and nothing is passed over unsaid."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.in_process_spark import InProcessSpark
from support.messages import message, messages
from support.settled_logs import export, plan_export
from support.written_logs import WrittenLog, write_log

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.jobs import export_tasks
from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult, _Run
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, ExportInterruptedError
from commitlogfs.pipeline.log.errors import OutputError, PipelineError
from commitlogfs.pipeline.log.losses import DataLossError

SEGMENT = 1 << 14
COUNT = 300
GO_ON = {"failOnDataLoss": "false"}
Removed = Callable[[str, int], None]


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, messages(COUNT))


def request(directory: Path, **wanted: Any) -> ExportRequest:
    return ExportRequest(str(directory / "log"), str(directory / "out"), **wanted)


def run(directory: Path, options: dict[str, str] | None = None, **wanted: Any) -> ExportResult:
    spark = cast("Any", InProcessSpark())
    return export(spark, request(directory, **wanted), {"splitSize": "5k", **(options or {})})


def exported(directory: Path) -> list[int]:
    tables = [pq.ParquetFile(path).read(["commitLogOffset"]) for path in (directory / "out").rglob("*.parquet")]
    return sorted(pa.concat_tables(tables).column(0).to_pylist()) if tables else []


def outside(log: WrittenLog, start: int, end: int) -> list[int]:
    return [offset for offset in log.offsets if not start <= offset < end]


# --- between two runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "0", str(SEGMENT // 2)])
def test_what_was_deleted_before_it_was_exported_is_an_error(tmp_path: Path, log: WrittenLog, start: str) -> None:
    """Wherever the export began."""
    options = {"startingOffsets": start}
    end = run(tmp_path, options).end_offset
    while log.end < 4 * SEGMENT:
        log.append(message(len(log.offsets)))
    for base in range(0, 3 * SEGMENT, SEGMENT):
        log.segment_at(base).unlink()
    with pytest.raises(DataLossError, match=f"log offsets {end} to {3 * SEGMENT}"):
        plan_export(request(tmp_path), options)
    assert run(tmp_path, {**options, **GO_ON}).lost == ((end, 3 * SEGMENT),)


def test_what_the_caller_leaves_out_is_not_missing(tmp_path: Path, log: WrittenLog) -> None:
    run(tmp_path, {"endingOffsets": str(SEGMENT)})
    log.segment_at(0).unlink()
    assert run(tmp_path, {"startingOffsets": str(2 * SEGMENT)}).lost == ()


def test_a_log_that_was_cut_back_is_an_error(tmp_path: Path, log: WrittenLog) -> None:
    """A broker that recovers stores other messages where the exported ones were."""
    run(tmp_path)
    end, cut = log.end, log.offsets[-20]
    log.write_at(cut, b"\0" * (end - cut))
    with pytest.raises(DataLossError, match=f"the log ends at {cut}, but was exported up to {end}"):
        plan_export(request(tmp_path))
    assert plan_export(request(tmp_path), GO_ON).todo == ()


# --- replacing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, GO_ON])
@pytest.mark.parametrize("gone", [0, 1, 2, -1])
def test_a_finished_range_that_is_not_whole_in_the_log_is_left(
    tmp_path: Path, log: WrittenLog, options: dict[str, str], gone: int
) -> None:
    run(tmp_path)
    last = log.end // SEGMENT
    log.segment_at((gone % (last + 1)) * SEGMENT).unlink()
    plan = plan_export(request(tmp_path, replace=True), options)
    assert plan.todo == ()
    result = run(tmp_path, options, replace=True)
    assert [(one.start, one.end) for one in result.kept] == [(0, log.end)]
    assert "are not in the log" in result.kept[0].reason
    assert result.as_json()["kept"][0]["start_offset"] == 0
    assert exported(tmp_path) == log.offsets


def test_other_ranges_are_replaced_all_the_same(tmp_path: Path, log: WrittenLog) -> None:
    run(tmp_path, range_size=1)
    log.segment_at(SEGMENT).unlink()
    result = run(tmp_path, replace=True)
    assert [(one.start, one.end) for one in result.kept] == [(SEGMENT, 2 * SEGMENT)]
    assert len(result.ranges) == log.end // SEGMENT
    assert exported(tmp_path) == log.offsets


def test_a_log_that_ends_earlier_than_before_replaces_nothing_behind_its_end(
    tmp_path: Path, log: WrittenLog
) -> None:
    run(tmp_path)
    log.write_at(log.offsets[-1], b"\0" * (log.end - log.offsets[-1]))
    result = run(tmp_path, replace=True)
    assert [(one.start, one.end) for one in result.kept] == [(0, log.end)]
    assert f"the log ends at {log.offsets[-1]}" in result.kept[0].reason
    assert exported(tmp_path) == log.offsets


def test_ranges_that_are_whole_or_not_asked_for_are_not_reported(tmp_path: Path, log: WrittenLog) -> None:
    run(tmp_path, range_size=1)
    assert run(tmp_path, replace=True).kept == ()
    log.segment_at(0).unlink()
    assert run(tmp_path, {"startingOffsets": str(SEGMENT)}, replace=True).kept == ()
    assert run(tmp_path).kept == ()
    assert exported(tmp_path) == log.offsets


def test_a_replacement_with_fewer_rows_is_not_made(tmp_path: Path, log: WrittenLog) -> None:
    run(tmp_path)
    log.write_at(log.offsets[7] + 4, b"\0\0\0\0")
    result = run(tmp_path, {"mode": "PERMISSIVE"}, replace=True)
    assert result.ranges == ()
    assert result.kept[0].reason == f"the log has fewer messages now ({COUNT - 1}) than were exported ({COUNT})"
    assert exported(tmp_path) == log.offsets


def test_a_range_that_loses_a_segment_while_it_is_replaced_is_left(
    tmp_path: Path, log: WrittenLog, removed: Removed
) -> None:
    run(tmp_path)
    removed("_written", SEGMENT)
    result = run(tmp_path, GO_ON, replace=True)
    assert (result.ranges, result.lost) == ((), ())
    assert [(one.start, one.end) for one in result.kept] == [(0, log.end)]
    assert exported(tmp_path) == log.offsets


# --- lost while it runs ----------------------------------------------------------------------------------


@pytest.fixture
def removed(log: WrittenLog, monkeypatch: pytest.MonkeyPatch) -> Removed:
    """A segment goes when this step of a range begins."""

    def arrange(step: str, offset: int) -> None:
        real = getattr(_Run, step)

        def changed(*arguments: Any) -> Any:
            log.segment_at(offset).unlink(missing_ok=True)
            return real(*arguments)

        monkeypatch.setattr(_Run, step, changed)

    return arrange


@pytest.mark.parametrize("step", ["_planned", "_written"])
def test_a_segment_that_goes_meanwhile_is_reported_and_the_rest_exported(
    tmp_path: Path, log: WrittenLog, removed: Removed, step: str
) -> None:
    kept_aside = log.segment_at(SEGMENT).read_bytes()
    removed(step, SEGMENT)
    result = run(tmp_path, GO_ON)
    assert result.lost == ((SEGMENT, 2 * SEGMENT),)
    rest = outside(log, SEGMENT, 2 * SEGMENT)
    assert (exported(tmp_path), result.rows) == (rest, len(rest))
    assert [(one.start, one.end) for one in result.ranges] == [(0, SEGMENT), (2 * SEGMENT, log.end)]
    # Nothing says that it was finished: when its disk is back, it is exported.
    log.segment_at(SEGMENT).write_bytes(kept_aside)
    assert [(one[0], one[1]) for one in plan_export(request(tmp_path)).todo] == [(SEGMENT, 2 * SEGMENT)]


@pytest.mark.parametrize("step", ["_planned", "_written"])
def test_with_fail_on_data_loss_it_is_an_error(
    tmp_path: Path, log: WrittenLog, removed: Removed, step: str
) -> None:
    removed(step, SEGMENT)
    with pytest.raises(PipelineError, match=log.segment_at(SEGMENT).name):
        run(tmp_path)
    assert exported(tmp_path) == []


def test_rows_that_are_missing_without_a_reason_finish_nothing(
    tmp_path: Path, log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_tasks.Reading, "rows_of", lambda *_: iter(()))
    with pytest.raises(PipelineError, match=f"{COUNT} messages were counted, but 0 exported"):
        run(tmp_path, GO_ON)
    assert plan_export(request(tmp_path)).before == ()


# --- directories ---------------------------------------------------------------------------------------------


def test_topics_that_share_a_directory_share_no_file(tmp_path: Path) -> None:
    topics = [b"", b"__HIVE_DEFAULT_PARTITION__", b"Topic"]
    log = write_log(tmp_path / "log", SEGMENT, [message(n, topic=topics[n % 3]) for n in range(30)])
    assert run(tmp_path).rows == len(log.offsets)
    assert exported(tmp_path) == log.offsets


# --- a full disk -----------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_is_told_and_refused(
    tmp_path: Path, log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "[Errno 28] Error writing bytes to file. Detail: no room")

    monkeypatch.setattr(export_tasks, "_write_file", full)
    with pytest.raises(OutputError, match=r"/out: cannot be written \(No space left on device"):
        run(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(ExportDirectory, "_carry_out", full)
    with pytest.raises(OutputError, match=r"/out: cannot be written \(No space left on device"):
        run(tmp_path)
    monkeypatch.undo()
    run(tmp_path)
    assert exported(tmp_path) == log.offsets
    assert {kind.exit_code for kind in (OutputError, ExportInterruptedError)} == {ExitCode.REFUSED}
