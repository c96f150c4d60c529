"""Places with copies of segments, whose files change while they are used."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlogfs.mount.restoring.places import Entry, Place, UnreadablePlaceError, find_place
from commitlogfs.store.segment import BaseOffset

SIZE = 4096
NAME, BASE = f"{SIZE:020d}", BaseOffset(SIZE)


@pytest.fixture
def place(workdir: Path) -> Place:
    (workdir / NAME).write_bytes(bytes(SIZE))
    (workdir / "another").write_bytes(b"x")
    place = find_place(str(workdir), SIZE)
    assert place.segments() == {BASE: Entry(SIZE)}
    return place


@contextmanager
def refused(place: Place, said: str) -> Iterator[None]:
    """Neither call waits for a writer."""
    yield
    with pytest.raises(UnreadablePlaceError, match=said):
        place.head(BASE, 10)
    with pytest.raises(UnreadablePlaceError, match=said), place.open(BASE, None, lambda _: None):
        pass


def test_a_fifo_that_has_replaced_a_file_is_refused(place: Place, workdir: Path) -> None:
    with refused(place, f"{NAME}: is not a regular file"):
        (workdir / NAME).unlink()
        os.mkfifo(workdir / NAME)


def test_a_file_that_has_gone_is_named(place: Place, workdir: Path) -> None:
    with refused(place, f"{NAME}: No such file or directory"):
        (workdir / NAME).unlink()


def test_a_link_that_has_replaced_a_file_is_not_followed(place: Place, workdir: Path) -> None:
    with refused(place, f"{NAME}: Too many levels of symbolic links"):
        (workdir / NAME).rename(workdir / "original")
        (workdir / NAME).symlink_to("original")
