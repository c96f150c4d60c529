"""The end of a log after a power cut, as the start of its pool reads it from the records of the disks."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from support.member_directories import SIZE, Directories

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.segment import BaseOffset, format_segment_name


class CutLog:
    """A log of four disks, of which the last one joins. One segment is on no disk: those before it hold data, the
    one after it does not."""

    def __init__(self, workdir: Path, gone: int = 3) -> None:
        self.directories = Directories(workdir)
        for index in range(gone):
            self._path(index).write_bytes(b"x" * SIZE)
        self._path(gone + 1).touch()
        os.truncate(self._path(gone + 1), SIZE)

    def _path(self, index: int) -> Path:
        specs = self.directories.specs
        return Path(specs[index % len(specs)].path) / format_segment_name(BaseOffset(index * SIZE)).decode()

    def record(self, *newest: int | None) -> None:
        """Let each disk record this segment as the newest; None as of a log without segments."""
        for spec, index in zip(self.directories.specs, newest, strict=True):
            value = None if index is None else BaseOffset(index * SIZE)
            os.setxattr(spec.path, layout.XATTR_NEWEST, identity.format_newest(value))

    def serves(self, *, joins: bool = False) -> tuple[list[int], set[FindingCode]]:
        """The indexes of the served segments, and what is found at the end of the log."""
        specs = self.directories.specs
        if joins:
            self.directories.mark(self.directories.new, "new")
            specs = (*specs, self.directories.new)
        with closing(self.directories.open(*specs)) as pool:
            codes = {finding.code for finding in pool.findings} & {FindingCode.GAP, FindingCode.EMPTY_LEFTOVER}
            return [segment.base_offset // SIZE for segment in pool.inventory.catalog], codes


@pytest.fixture
def log(workdir: Path) -> CutLog:
    return CutLog(workdir)


SET_ASIDE = [0, 1, 2], {FindingCode.EMPTY_LEFTOVER}
REFUSED = [0, 1, 2, 4], {FindingCode.GAP}


@pytest.mark.parametrize("newest", [(4, 4, 2), (2, 4, 2), (3, 4, 2)])
def test_a_segment_that_some_disk_has_not_recorded_can_be_undone(log: CutLog, newest: tuple[int, ...]) -> None:
    log.record(*newest)
    assert log.serves() == SET_ASIDE


def test_a_segment_that_all_disks_have_recorded_cannot_be_undone(log: CutLog) -> None:
    log.record(4, 4, 3)
    assert log.serves() == REFUSED


def test_a_disk_that_joins_has_recorded_no_segment_and_proves_nothing(log: CutLog) -> None:
    log.record(4, 4, 4)
    assert log.serves(joins=True) == REFUSED
    log.record(4, 4, 2)
    assert log.serves(joins=True) == SET_ASIDE


@pytest.mark.parametrize("lagging", [1, 0, None])
def test_a_record_that_lags_proves_nothing(log: CutLog, lagging: int | None) -> None:
    """A broker makes two segments ahead, so a power cut undoes two. A disk that did not answer lags by more."""
    log.record(4, lagging, 4)
    assert log.serves() == REFUSED


def test_records_that_all_lag_behind_the_files_prove_nothing(workdir: Path) -> None:
    log = CutLog(workdir, gone=6)
    log.record(2, 2, 2)
    assert log.serves() == ([0, 1, 2, 3, 4, 5, 7], {FindingCode.GAP})


def test_without_any_record_nothing_is_known_to_be_undone(log: CutLog) -> None:
    log.record(None, None, None)
    assert log.serves() == REFUSED
