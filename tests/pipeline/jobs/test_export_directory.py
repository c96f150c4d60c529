"""The directory of an export: whatever the moment of a kill, the next open finds a range once or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.mortal_filesystem import Killed, Mortal

from commitlogfs.pipeline.jobs.export_directory import (
    OWN,
    ExportDirectory,
    ExportRefusedError,
    FinishedFile,
    FinishedRange,
    partition_directory,
)
from commitlogfs.pipeline.log.errors import OutputError
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.log.scanner import Damage

SETTINGS: dict[str, Any] = {"format": 1, "columns": ["body"]}


def make(
    directory: ExportDirectory, start: int, end: int, names: list[str]
) -> tuple[FinishedRange, dict[str, str]]:
    made, files = {}, []
    for name in names:
        path, stream = directory.new_file("x")
        with stream:
            stream.write(f"{start}-{end} {name}".encode())
        final = f"topic={name}/{start}-{end}.parquet"
        made[final] = path
        files.append(FinishedFile(final, 3, directory.finish_file(path)))
    damages = (Damage(start, 5, "why", "0"),)
    return FinishedRange(start, end, 3 * len(names), tuple(files), damages, (Fingerprint(start, 9, "ab"),)), made


def visible(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and OWN not in path.parts
    )


def test_what_is_committed_is_there_and_said(tmp_path: Path) -> None:
    with ExportDirectory(str(tmp_path / "out")).open(SETTINGS) as directory:
        finished, made = make(directory, 0, 100, ["a", "b"])
        assert visible(tmp_path / "out") == []
        directory.commit(finished, made)
        assert directory.finished() == [finished]
    assert visible(tmp_path / "out") == ["topic=a/0-100.parquet", "topic=b/0-100.parquet"]
    assert ExportDirectory(str(tmp_path / "out")).finished() == [finished]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("replacing", [False, True])
def test_a_commit_killed_at_any_step_is_finished_or_forgotten(
    tmp_path: Path, replacing: bool, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order a filesystem lists what is left."""
    listed = ExportDirectory._list

    def in_order(directory: ExportDirectory, below: str) -> list[Any]:
        return sorted(listed(directory, below), key=lambda info: info.path, reverse=backwards)

    monkeypatch.setattr(ExportDirectory, "_list", in_order)
    whole = ["topic=a/0-100.parquet", "topic=b/0-100.parquet"]
    outcomes = set()
    for step in range(30):
        root = tmp_path / f"out{step}"
        with ExportDirectory(str(root)).open(SETTINGS) as directory:
            before = None
            if replacing:
                before, made = make(directory, 0, 100, ["a", "old"])
                directory.commit(before, made)
            finished, made = make(directory, 0, 100, ["a", "b"])
            directory._fs = Mortal(directory._fs, step)
            try:
                directory.commit(finished, made, before)
            except Killed:
                ended = False
            else:
                ended = True
        with ExportDirectory(str(root)).open(SETTINGS) as directory:
            known = [[file.path for file in one.files] for one in directory.finished()]
            outcomes.add(str(known))
            assert visible(root) == sorted(known[0]) if known else not visible(root)
            assert list((root / OWN / "building").iterdir()) == []
            assert [path.suffix for path in (root / OWN / "ranges").iterdir()] == [".json"] * len(known)
        if ended:
            assert known == [whole]
            break
    else:
        pytest.fail("never committed")
    assert step > 5
    assert len(outcomes) == 2


def test_only_one_export_writes_at_a_time(tmp_path: Path) -> None:
    with (
        ExportDirectory(str(tmp_path)).open(SETTINGS),
        pytest.raises(ExportRefusedError, match="another export is writing"),
    ):
        ExportDirectory(str(tmp_path)).open(SETTINGS)
    ExportDirectory(str(tmp_path)).open(SETTINGS).close()


def test_other_settings_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    ExportDirectory(str(tmp_path / "out")).open(SETTINGS).close()
    with pytest.raises(ExportRefusedError, match=r'with columns = \["body"\], not \["topic"\]'):
        ExportDirectory(str(tmp_path / "out")).check({**SETTINGS, "columns": ["topic"]})
    with pytest.raises(ExportRefusedError, match=r"holds other files \(out\)"):
        ExportDirectory(str(tmp_path)).open(SETTINGS)
    (tmp_path / "file").touch()
    with pytest.raises(ExportRefusedError, match="is a file"):
        ExportDirectory(str(tmp_path / "file")).open(SETTINGS)
    with pytest.raises(ExportRefusedError, match=r"cannot be written \("):
        ExportDirectory("/proc/nowhere").open(SETTINGS)
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("out", "file")] == []


def test_columns_may_be_added_and_then_stay(tmp_path: Path) -> None:
    more = {**SETTINGS, "columns": ["topic", *SETTINGS["columns"]]}
    ExportDirectory(str(tmp_path)).open(SETTINGS).close()
    ExportDirectory(str(tmp_path)).open(more).close()
    ExportDirectory(str(tmp_path)).open(more).close()
    with pytest.raises(ExportRefusedError, match=r'with columns = \["topic", "body"\], not \["body"\]'):
        ExportDirectory(str(tmp_path)).open(SETTINGS)


def test_an_output_of_an_iceberg_table_stays_one(tmp_path: Path) -> None:
    ExportDirectory(str(tmp_path)).open({**SETTINGS, "whole_files": True}).close()
    with pytest.raises(ExportRefusedError, match="was exported with --iceberg; do so again"):
        ExportDirectory(str(tmp_path)).check(SETTINGS)


def test_a_file_that_the_storage_has_lost_is_an_error(tmp_path: Path) -> None:
    with ExportDirectory(str(tmp_path)).open(SETTINGS) as directory:
        path, stream = directory.new_file("a")
        stream.close()
        directory._is_local = False  # as on a server that confirms what it does not store
        (tmp_path / path).unlink()
        with pytest.raises(OutputError, match="is not there although it was written"):
            directory.finish_file(path)


def test_ranges_of_another_process_are_seen(tmp_path: Path) -> None:
    """Although the finished ranges are read only once."""
    mine, other = ExportDirectory(str(tmp_path)), ExportDirectory(str(tmp_path))
    with other.open(SETTINGS):
        first, made = make(other, 0, 9, ["a"])
        other.commit(first, made)
        assert mine.finished() == [first]
        again, made = make(other, 0, 9, ["b"])
        other.commit(again, made, first)
        second, made = make(other, 9, 20, ["a"])
        other.commit(second, made)
    assert mine.finished() == [again, second]


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    ExportDirectory(str(tmp_path)).open(SETTINGS).close()
    (tmp_path / OWN / "ranges" / "1-2.json").write_text("{")
    with pytest.raises(ExportRefusedError, match=r"ranges/1-2\.json: is damaged"):
        ExportDirectory(str(tmp_path)).finished()


def test_a_file_that_somebody_took_away_is_not_passed_over(tmp_path: Path) -> None:
    with ExportDirectory(str(tmp_path)).open(SETTINGS) as directory:
        finished, made = make(directory, 0, 100, ["a"])
        directory._fs = Mortal(directory._fs, 2)  # the manifest is written, nothing else
        with pytest.raises(Killed):
            directory.commit(finished, made)
    for path in (tmp_path / OWN / "building").iterdir():
        path.unlink()
    with pytest.raises(ExportRefusedError, match="was removed before its range was finished"):
        ExportDirectory(str(tmp_path)).open(SETTINGS)


def test_a_uri_means_the_same_directory(tmp_path: Path) -> None:
    with ExportDirectory(f"file://{tmp_path}/out").open(SETTINGS) as directory:
        directory.commit(*make(directory, 0, 9, ["a"]))
    assert visible(tmp_path / "out") == ["topic=a/0-9.parquet"]
    assert json.loads((tmp_path / "out" / OWN / "export.json").read_text()) == SETTINGS


@pytest.mark.parametrize(
    ("topic", "directory"),
    [
        ("plain-Topic_1", "topic=plain-Topic_1"),
        ("%RETRY%group", "topic=%25RETRY%25group"),
        ("a/b=c:d", "topic=a%2Fb%3Dc%3Ad"),
        ("主题", "topic=主题"),
        ("", "topic=__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_directories_are_named_as_spark_names_them(topic: str, directory: str) -> None:
    assert partition_directory([("topic", topic), ("date", "2026-11-21")]) == f"{directory}/date=2026-11-21"


def test_a_topic_too_long_for_a_directory_is_refused() -> None:
    with pytest.raises(ExportRefusedError, match="too long for the name of a directory"):
        partition_directory([("topic", "t" * 250)])
