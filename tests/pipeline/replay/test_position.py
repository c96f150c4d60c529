"""The position of a replay: durable, locked, and only for the replay that it was made for."""

from pathlib import Path

import pytest

from commitlogfs.console.errors import RefusedError
from commitlogfs.pipeline.log.errors import OutputError
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.replay.position import Position, PositionFile

REPLAY = {"log": "/log", "target": "host:9876", "topics": None}


def test_the_next_process_continues(tmp_path: Path) -> None:
    path = tmp_path / "position"
    with PositionFile(path, REPLAY) as file:
        assert file.position == Position()
        file.record(Position(100, 3))
        file.record(Position(200, 5, {"T": ["b:0", "b:1"]}, Fingerprint(150, 50, "ab")))
    with PositionFile(path, REPLAY) as file:
        assert file.position == Position(200, 5, {"T": ["b:0", "b:1"]}, Fingerprint(150, 50, "ab"))


def test_an_interrupted_record_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "position"
    with PositionFile(path, REPLAY) as file:
        file.record(Position(100, 3))
    (tmp_path / "position.new").write_text('{"format"')
    with PositionFile(path, REPLAY) as file:
        assert file.position == Position(100, 3)
        file.record(Position(200, 5))
    with PositionFile(path, REPLAY) as file:
        assert file.position == Position(200, 5)


def test_another_replay_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "position"
    with PositionFile(path, REPLAY) as file:
        file.record(Position(100, 3))
    with (
        pytest.raises(RefusedError, match="of another replay, whose target is host:9876 instead of other:9876"),
        PositionFile(path, REPLAY | {"target": "other:9876"}),
    ):
        pass
    with PositionFile(path, REPLAY):
        pass  # the refusal has left no lock


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "position"
    with PositionFile(path, REPLAY), pytest.raises(RefusedError, match="another replay uses it"):
        PositionFile(path, REPLAY).__enter__()


WITHOUT_IDENTITY = '{"format": 1, "replay": {}, "next_offset": 7, "messages": 1, "queues": {}}'


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 3}', "null", '{"format": 2, "replay": 3, "last": null}', WITHOUT_IDENTITY],
)
def test_another_file_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "position"
    path.write_text(content)
    with pytest.raises(RefusedError, match="is not the position of a replay"), PositionFile(path, REPLAY):
        pass
    assert path.read_text() == content


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"), PositionFile(tmp_path / "no" / "position", REPLAY):
        pass
