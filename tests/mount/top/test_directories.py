"""Directories of disks, asked by processes of their own."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

from commitlogfs.mount.top.directories import Directories

NOW_S = 100.0


@pytest.fixture
def directories() -> Iterator[Directories]:
    made = Directories()
    yield made
    made.close()


def answered(directories: Directories, paths: list[str], *, counts: bool) -> None:
    directories.ask(paths, NOW_S, counts=counts)

    def all_known() -> bool:
        select.select([directories], [], [], 0.1)
        directories.receive(NOW_S)
        return all(directories[path].asked_s is None for path in paths)

    eventually(all_known)


def test_segments_are_counted_and_usage_is_measured(directories: Directories, tmp_path: Path) -> None:
    for name in ("00000000000000000000", "00000000000001048576", ".commitlogfs", "00000000000000000001.tmp"):
        (tmp_path / name).touch()
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    path = str(link)
    assert directories[path].resolved == path
    answered(directories, [path], counts=True)
    found = directories[path]
    assert (found.resolved, found.segments, found.error) == (str(tmp_path), 2, "")
    assert found.usage is not None
    assert found.usage.total_bytes > 0


def test_an_absent_directory_has_an_error(directories: Directories, tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    answered(directories, [path], counts=True)
    assert (directories[path].segments, directories[path].error) == (None, "No such file or directory")


def test_a_directory_is_not_asked_again_at_once(directories: Directories, tmp_path: Path) -> None:
    path = str(tmp_path)
    answered(directories, [path], counts=True)
    directories.ask([path], NOW_S + 1, counts=False)
    assert directories[path].asked_s is None


def test_a_disk_without_an_answer_is_silent_after_a_while(directories: Directories) -> None:
    directories.ask(["/"], 100.0, counts=True)
    assert not directories["/"].is_silent(100.5)
    assert directories.is_any_awaited(100.5)
    assert directories["/"].is_silent(101.5)
    assert not directories.is_any_awaited(101.5)
