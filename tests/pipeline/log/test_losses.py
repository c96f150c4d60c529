"""Missing parts of a range, and their messages."""

import logging

import pytest

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.losses import DataLossError, missing_ranges, require_complete
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile
from commitlogfs.pipeline.log.splits import plan_splits


def listing(*bases: int) -> LogListing:
    return LogListing(100, tuple(SegmentFile(base, 100, "none") for base in bases))


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
