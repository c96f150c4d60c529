"""Missing parts of a range, and their messages."""

import logging
import os
from pathlib import Path

import pytest

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.losses import (
    DataLossError,
    accepted_lines,
    missing_ranges,
    require_complete,
    sort_missing,
)
from commitlogfs.pipeline.log.mount_status import AcceptedLosses
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.store import layout
from commitlogfs.store.disks.identity import DiskIdentity, format_identity
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.disks.membership import DiskNumber, Member, Membership


def listing(*bases: int, accepted: tuple[Run, ...] = ()) -> LogListing:
    segments = tuple(SegmentFile(base, 100, "none") for base in bases)
    return LogListing(100, segments, accepted=AcceptedLosses("pool", 1, 100, (Loss(2, "/data2", 5, accepted),)))


def test_parts_without_number_are_refused() -> None:
    large = LogListing(1 << 30, tuple(SegmentFile(number << 30, 1 << 30, "none") for number in range(100)))
    with pytest.raises(OptionError, match=r"some 1,073,741,[0-9]+ splits.* set a larger splitSize"):
        plan_splits(large, 100 << 30, split_size=100)
    assert len(plan_splits(large, 100 << 30, start_offset=(100 << 30) - 1000, split_size=100)) == 10


@pytest.mark.parametrize(
    ("bases", "start", "end", "missing"),
    [
        ((0, 100, 200), 0, 300, []),
        ((0, 100, 200), 150, 250, []),
        ((200, 300), 0, 400, [(0, 200)]),
        ((200, 300), 250, 400, []),
        ((0, 300), 0, 400, [(100, 300)]),
        ((0, 300), 150, 250, [(150, 250)]),
        ((0, 200, 400), 50, 450, [(100, 200), (300, 400)]),
        ((0,), 50, 150, [(100, 150)]),
        ((), 0, 10, [(0, 10)]),
        ((), 0, 0, []),
        ((100,), 50, 50, []),
    ],
)
def test_ranges(bases: tuple[int, ...], start: int, end: int, missing: list[tuple[int, int]]) -> None:
    assert missing_ranges(listing(*bases), start, end) == missing


@pytest.mark.parametrize(
    ("bases", "told"),
    [
        (
            (200, 300),
            "log offsets 50 to 200: not in the log (the log begins at 200; earlier messages are deleted",
        ),
        ((0, 300), "log offsets 100 to 300: not in the log (a gap between segments"),
        ((0, 100, 200), "log offsets 300 to 400: not in the log (the last segment ends at 300"),
        ((), "log offsets 50 to 400: not in the log (the log has no segments"),
    ],
)
def test_said_as_error_or_as_warning(bases: tuple[int, ...], told: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as refusal:
        require_complete(listing(*bases), 50, 400, fail=True)
    assert str(refusal.value).startswith(told)
    assert str(refusal.value).endswith("; failOnDataLoss=false reads the rest")
    with caplog.at_level(logging.WARNING):
        require_complete(listing(*bases), 50, 400, fail=False)
    (line,) = caplog.messages
    range_and_reason = told.partition(": not in the log (")
    assert line.startswith(f"lost: {range_and_reason[0]} (")
    assert range_and_reason[2] in line


# --- accepted losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bases", "accepted", "ranges", "lost", "left"),
    [
        ((0, 300), (Run(1, 2, 2, 1),), [(100, 300)], (), ((100, 300),)),
        ((0, 300), (Run(1, 1, 1, 1),), [(100, 300)], ((200, 300),), ((100, 200),)),
        ((0, 300), (Run(2, 1, 1, 1),), [(150, 250)], ((150, 200),), ((200, 250),)),
        ((0, 200, 400), (Run(1, 1, 2, 2),), [(100, 200), (300, 400)], (), ((100, 200), (300, 400))),
        ((0, 200, 500), (Run(1, 1, 2, 2),), [(100, 200), (300, 500)], ((400, 500),), ((100, 200), (300, 400))),
        ((0,), (Run(0, 9, 9, 1),), [(50, 100)], ((50, 100),), ()),  # a truncated file is no lost one
        ((0, 200), (), [(100, 200)], ((100, 200),), ()),
    ],
)
def test_which_gaps_are_accepted(
    bases: tuple[int, ...],
    accepted: tuple[Run, ...],
    ranges: list[tuple[int, int]],
    lost: tuple[tuple[int, int], ...],
    left: tuple[tuple[int, int], ...],
) -> None:
    missing = sort_missing(listing(*bases, accepted=accepted), ranges)
    assert (missing.lost, missing.accepted) == (lost, left)


def test_an_accepted_loss_is_told_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_complete(listing(0, 200, accepted=(Run(1, 1, 1, 1),)), 0, 300, fail=True)
        assert caplog.messages == ["accepted loss: log offsets 100 to 200 (their disk was given up)"]
        caplog.clear()
        require_complete(listing(0, 200, accepted=(Run(1, 1, 1, 1),)), 0, 300, fail=True, warn=False)
        assert caplog.messages == []
        with pytest.raises(DataLossError, match="log offsets 300 to 400: not in the log"):
            require_complete(listing(0, 200, 400, accepted=(Run(1, 1, 1, 1),)), 0, 500, fail=True)


def test_few_lines_for_many_accepted_losses() -> None:
    lines = accepted_lines([(number * 200, number * 200 + 100) for number in range(400)])
    assert len(lines) == 6
    assert lines[-1] == "accepted loss: 395 more ranges up to log offset 79900"


def disk(directory: Path, number: int, generation: int, lost: tuple[Run, ...], pool: str = "pool") -> Path:
    """A directory with the identity of a disk and one segment."""
    directory.mkdir()
    members = tuple(Member(DiskNumber(one), f"id{one}", f"/data{one}") for one in (1, 3))
    membership = Membership(members, generation, DiskNumber(3), (Loss(2, "/data2", 5, lost),) if lost else ())
    identity = DiskIdentity(pool, f"id{number}", DiskNumber(number), 100, membership)
    os.setxattr(directory, layout.XATTR_IDENTITY, format_identity(identity))
    (directory / f"{(number - 1) * 100:020d}").write_bytes(bytes(100))
    return directory


def test_bare_disks_say_what_was_given_up(tmp_path: Path) -> None:
    one = disk(tmp_path / "one", 1, 4, (Run(1, 1, 1, 1),))
    other = disk(tmp_path / "other", 3, 4, (Run(1, 1, 1, 1),))
    found = list_segments(f"{one},{other}")
    assert sort_missing(found, found.gaps).accepted == ((100, 200),)


@pytest.mark.parametrize("newer", ["one", "other"])
def test_the_latest_list_of_members_counts(tmp_path: Path, newer: str) -> None:
    """The segment came back and was lost once more, while a disk was away."""
    paths = [
        disk(tmp_path / name, number, 5 if name == newer else 4, () if name == newer else (Run(1, 1, 1, 1),))
        for name, number in (("one", 1), ("other", 3))
    ]
    found = list_segments(",".join(map(str, paths)))
    assert sort_missing(found, found.gaps).lost == ((100, 200),)


def test_disks_of_two_pools_accept_nothing_for_each_other(tmp_path: Path) -> None:
    one = disk(tmp_path / "one", 1, 4, (Run(1, 1, 1, 1),))
    other = disk(tmp_path / "other", 3, 4, (), pool="another")
    found = list_segments(f"{one},{other}")
    assert sort_missing(found, found.gaps).lost == ((100, 200),)


def test_an_identity_that_cannot_be_read_accepts_nothing(tmp_path: Path) -> None:
    one = disk(tmp_path / "one", 1, 4, (Run(1, 1, 1, 1),))
    (one / f"{200:020d}").write_bytes(bytes(100))
    os.setxattr(one, layout.XATTR_IDENTITY, b"?")
    found = list_segments(str(one))
    assert sort_missing(found, found.gaps).lost == ((100, 200),)
