"""An export that continues in its output, after the log was replaced, cut back and written anew, or cleaned: the
output has the messages of one log only."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from support.in_process_spark import InProcessSpark
from support.messages import message, messages
from support.settled_logs import export, plan_export
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs.export import ExportRequest, ExportResult, _Run
from commitlogfs.pipeline.jobs.export_directory import ExportDirectory, ExportInterruptedError, ExportRefusedError

SEGMENT = 1 << 14
COUNT = 300
OTHERS = 10_000
"""Number of the first message that the former log does not have."""
GO_ON = {"failOnDataLoss": "false"}

NEW_LOGS = {
    "a shorter log": messages(100, OTHERS),
    "a longer log": messages(500, OTHERS),
    "another end": [*messages(250), *messages(200, OTHERS)],
}


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, messages(COUNT))


def replaced(log: WrittenLog, makers: list[Any]) -> WrittenLog:
    shutil.rmtree(log.directory)
    return write_log(log.directory, SEGMENT, makers)


def request(directory: Path, **wanted: Any) -> ExportRequest:
    return ExportRequest(str(directory / "log"), str(directory / "out"), **wanted)


def run(directory: Path, options: dict[str, str] | None = None, **wanted: Any) -> ExportResult:
    spark = cast("Any", InProcessSpark())
    return export(spark, request(directory, **wanted), {"splitSize": "5k", **(options or {})})


def exported(directory: Path) -> list[tuple[int, bytes]]:
    """Log offset and body of all rows."""
    rows: list[tuple[int, bytes]] = []
    for path in (directory / "out").rglob("*.parquet"):
        table = pq.ParquetFile(path).read(["commitLogOffset", "body"])
        rows += zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    return sorted(rows)


def bodies(log: WrittenLog, numbers: list[int]) -> list[tuple[int, bytes]]:
    return [(offset, b"message %08d" % n) for offset, n in zip(log.offsets, numbers, strict=True)]


@pytest.mark.parametrize("range_size", [None, 1])
@pytest.mark.parametrize("options", [{}, GO_ON])
@pytest.mark.parametrize("new", NEW_LOGS)
def test_the_ranges_of_another_log_end_the_run(
    tmp_path: Path, log: WrittenLog, new: str, options: dict[str, str], range_size: int | None
) -> None:
    run(tmp_path, range_size=range_size)
    end, before = log.end, exported(tmp_path)
    first = 0 if range_size is None or new != "another end" else log.offsets[250] // SEGMENT * SEGMENT
    replaced(log, NEW_LOGS[new])
    told = rf"is not the log that was exported: .*the finished ranges from {first} to {end} .*--replace"
    with pytest.raises(ExportRefusedError, match=told) as caught:
        run(tmp_path, options)
    assert "\n" not in str(caught.value)
    assert exported(tmp_path) == before


@pytest.mark.parametrize("range_size", [None, 1])
@pytest.mark.parametrize("new", NEW_LOGS)
def test_replace_leaves_no_row_of_another_log(
    tmp_path: Path, log: WrittenLog, new: str, range_size: int | None
) -> None:
    run(tmp_path, range_size=range_size)
    log = replaced(log, NEW_LOGS[new])
    plan = plan_export(request(tmp_path, replace=True))
    assert plan.as_json()["removed"][-1]["end_offset"] == plan.removed[-1].end > plan.removed[0].start
    result = run(tmp_path, replace=True)
    assert (result.removed, result.kept) == (plan.removed, ())
    numbers = [*range(250), *range(OTHERS, OTHERS + 200)] if new == "another end" else []
    assert exported(tmp_path) == bodies(log, numbers or [*range(OTHERS, OTHERS + len(log.offsets))])
    assert run(tmp_path).ranges == ()


@pytest.mark.parametrize("deletions", range(4))
def test_a_replacement_that_is_killed_is_refused_until_it_is_repeated(
    tmp_path: Path, log: WrittenLog, deletions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    log = replaced(log, NEW_LOGS["a shorter log"])
    directory = ExportDirectory(str(tmp_path / "out"))
    monkeypatch.setattr(directory, "_fs", _Killed(directory._fs, deletions))
    with pytest.raises(KeyboardInterrupt):
        export(cast("Any", InProcessSpark()), request(tmp_path, replace=True), directory=directory)
    with pytest.raises(ExportRefusedError, match="is not the log that was exported"):
        run(tmp_path)
    run(tmp_path, replace=True)
    assert exported(tmp_path) == bodies(log, [*range(OTHERS, OTHERS + 100)])


class _Killed:
    """A filesystem whose process ends at a deletion."""

    def __init__(self, real: Any, deletions: int) -> None:
        self._real, self._left = real, deletions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def delete_file(self, path: str) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self._real.delete_file(path)


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("range_size", [None, 1])
def test_a_log_that_was_cleaned_is_the_same(
    tmp_path: Path, log: WrittenLog, range_size: int | None, gone: int
) -> None:
    """Its beginning moves forward, at most up to the end of what was exported."""
    run(tmp_path, range_size=range_size)
    for number in range(gone):
        log.segment_at(number * SEGMENT).unlink()
    assert run(tmp_path, range_size=range_size).ranges == ()
    for make in messages(400, COUNT):
        log.append(make)
    result = run(tmp_path, range_size=range_size)
    assert (result.rows, result.has_findings) == (400, False)
    assert exported(tmp_path) == bodies(log, [*range(COUNT + 400)])


def test_a_log_whose_exported_part_was_deleted_is_the_same(tmp_path: Path, log: WrittenLog) -> None:
    while log.end < 3 * SEGMENT:
        log.append(message(len(log.offsets)))
    run(tmp_path, {"endingOffsets": str(2 * SEGMENT)})
    for number in range(2):
        log.segment_at(number * SEGMENT).unlink()
    assert not run(tmp_path).has_findings
    assert exported(tmp_path) == bodies(log, [*range(len(log.offsets))])


def test_a_part_that_is_read_again_is_of_the_same_log(tmp_path: Path, log: WrittenLog) -> None:
    """In any order, with gaps between the ranges."""
    run(tmp_path, {"startingOffsets": str(log.offsets[200]), "endingOffsets": str(log.offsets[220])})
    run(tmp_path, {"startingOffsets": str(log.offsets[20]), "endingOffsets": str(log.offsets[40])})
    replaced(log, [*messages(150), *messages(200, OTHERS)])
    with pytest.raises(ExportRefusedError, match=rf"ranges from {log.offsets[200]} to {log.offsets[220]} "):
        run(tmp_path)


@pytest.mark.parametrize("replace", [False, True])
def test_an_output_without_identity_is_refused(tmp_path: Path, log: WrittenLog, replace: bool) -> None:
    run(tmp_path)
    settings = tmp_path / "out/_commitlogfs/export.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"format": 1}))
    with pytest.raises(
        ExportRefusedError, match=r"did not record the log's identity.*into another output"
    ) as caught:
        run(tmp_path, replace=replace)
    assert "\n" not in str(caught.value)
    assert exported(tmp_path) == bodies(log, [*range(COUNT)])


def test_a_log_that_is_replaced_during_the_run_ends_it(
    tmp_path: Path, log: WrittenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = _Run.export_range

    def replacing(self: _Run, start: int, end: int) -> Any:
        if start:
            replaced(log, NEW_LOGS["a longer log"])
        return real(self, start, end)

    monkeypatch.setattr(_Run, "export_range", replacing)
    with pytest.raises(ExportInterruptedError, match="the log was replaced meanwhile"):
        run(tmp_path, range_size=1)
    monkeypatch.undo()
    with pytest.raises(ExportRefusedError, match=f"the finished ranges from 0 to {SEGMENT} "):
        run(tmp_path)


def test_a_log_that_ends_before_what_was_exported_is_reported(
    tmp_path: Path, log: WrittenLog, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false its missing end may come back, so nothing is refused before other messages are
    there."""
    run(tmp_path)
    replaced(log, messages(250))
    with caplog.at_level(logging.WARNING):
        assert plan_export(request(tmp_path), GO_ON).todo == ()
    assert [line for line in caplog.messages if f"but was exported up to {log.end}" in line]


def test_the_end_of_a_whole_segment_is_compared(tmp_path: Path, log: WrittenLog) -> None:
    """The broker leaves its last bytes unwritten."""
    run(tmp_path, {"endingOffsets": str(SEGMENT)})
    in_first = sum(offset < SEGMENT for offset in log.offsets)
    replaced(log, [*messages(in_first - 1), *messages(200, OTHERS)])
    with pytest.raises(ExportRefusedError, match=rf"log offset {log.offsets[in_first - 1]} now"):
        run(tmp_path)


@pytest.mark.parametrize("table", ["iceberg", "delta"])
def test_an_output_with_a_table_is_not_to_be_replaced(tmp_path: Path, log: WrittenLog, table: str) -> None:
    run(tmp_path, whole_files=table == "iceberg")
    if table == "delta":
        (tmp_path / "out/_delta_log").mkdir()
    replaced(log, NEW_LOGS["a longer log"])
    with pytest.raises(ExportRefusedError, match=r"export into another output and another table$"):
        run(tmp_path, whole_files=table == "iceberg")


@pytest.mark.parametrize("is_same", [True, False])
def test_where_all_that_was_exported_is_deleted_the_next_message_counts(
    tmp_path: Path, log: WrittenLog, is_same: bool
) -> None:
    """The log begins exactly where the export ended."""
    run(tmp_path, {"endingOffsets": str(SEGMENT)})
    if not is_same:
        log = replaced(log, messages(COUNT, OTHERS))
    log.segment_at(0).unlink()
    if is_same:
        run(tmp_path)
        assert exported(tmp_path) == bodies(log, [*range(COUNT)])
    else:
        with pytest.raises(ExportRefusedError, match=f"the finished ranges from 0 to {SEGMENT} "):
            run(tmp_path)


def test_a_log_that_is_cut_off_where_the_export_ended_is_the_same(tmp_path: Path, log: WrittenLog) -> None:
    run(tmp_path, {"endingOffsets": str(SEGMENT)})
    in_first = sum(offset < SEGMENT for offset in log.offsets)
    log = replaced(log, [*messages(in_first), *messages(100, OTHERS)])
    run(tmp_path)
    assert exported(tmp_path) == bodies(log, [*range(in_first), *range(OTHERS, OTHERS + 100)])
