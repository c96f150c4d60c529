"""Places found by time or by amount, compared with what is known of a log written by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.messages import FIRST_MS, STEP_MS, message, messages
from support.settled_logs import survey
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.log import seek
from commitlogfs.pipeline.log.errors import DamagedLogError
from commitlogfs.pipeline.log.scanner import scan_split
from commitlogfs.pipeline.log.seek import _chunks, advance, first_place, narrow_by_time, offset_of_time
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile
from commitlogfs.pipeline.log.splits import Split, plan_splits

SEGMENT = 4096
MINUTE_MS = 60_000


@dataclass(frozen=True)
class Known:
    """A log, its listing, and where it ends."""

    log: WrittenLog
    listing: LogListing
    end: int


@pytest.fixture(scope="module")
def known(base_directory: Path) -> Known:
    log = write_log(base_directory / "places", SEGMENT, messages(200))
    listing, end = survey(str(log.directory), None)
    assert end == log.end
    assert len(listing.segments) > 5
    return Known(log, listing, end)


def test_a_segment_that_a_stopping_broker_unlinks_is_none_of_the_log(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed, and gone when it is to be opened: the segment made ahead."""
    ahead = known.log.segment_at(len(known.listing.segments) * SEGMENT)
    ahead.write_bytes(bytes(SEGMENT))
    real = seek.list_segments

    def list_then_unlink(path: str, segment_size: int | None) -> LogListing:
        listing = real(path, segment_size)
        ahead.unlink(missing_ok=True)
        return listing

    monkeypatch.setattr(seek, "list_segments", list_then_unlink)
    assert survey(str(known.log.directory), None)[1] == known.log.end


# --- by store time ---------------------------------------------------------------------------------------


def fake_splits(count: int) -> list[Split]:
    listing = LogListing(count * 100, (SegmentFile(0, count * 100, "none"),))
    return plan_splits(listing, count * 100, split_size=100)


def narrowed(times: Sequence[int | None], start: int | None, end: int | None) -> list[int]:
    splits = fake_splits(len(times))
    kept = narrow_by_time(splits, start, end, first_ms=lambda split: times[split.start // 100])
    return [split.start // 100 for split in kept]


HOUR = 3_600_000
HOURLY = [n * HOUR for n in range(10)]


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        (None, None, list(range(10))),
        (3 * HOUR + 2 * MINUTE_MS, None, [3, 4, 5, 6, 7, 8, 9]),
        (3 * HOUR, None, [2, 3, 4, 5, 6, 7, 8, 9]),  # a clock may have been a little slow
        (0, None, list(range(10))),
        (99 * HOUR, None, [9]),
        (None, 3 * HOUR - 2 * MINUTE_MS, [0, 1, 2]),
        (None, 3 * HOUR, [0, 1, 2, 3]),
        (None, 99 * HOUR, list(range(10))),
        (2 * HOUR + 2 * MINUTE_MS, 4 * HOUR - 2 * MINUTE_MS, [2, 3]),
        (8 * HOUR, 2 * HOUR, [2]),
    ],
)
def test_splits_that_cannot_hold_a_time_are_left_out(start: int | None, end: int | None, kept: list[int]) -> None:
    assert narrowed(HOURLY, start, end) == kept


def test_splits_without_a_record_count_with_the_next() -> None:
    """A split inside one large record, or after the last record of a segment."""
    times = [0, None, None, HOUR, 2 * HOUR, None]
    assert narrowed(times, HOUR + 2 * MINUTE_MS, None) == [3, 4, 5]
    assert narrowed(times, None, HOUR - 2 * MINUTE_MS) == [0]
    assert narrowed([None, None], 5, 6) == []
    assert narrowed([], 5, 6) == []


def test_few_records_are_checked() -> None:
    asked: list[int] = []

    def first_ms(split: Split) -> int:
        asked.append(split.start)
        return split.start // 100 * HOUR

    kept = narrow_by_time(fake_splits(60_000), 40_000 * HOUR, 40_002 * HOUR, first_ms=first_ms)
    assert len(kept) == 4
    assert len(asked) < 40


def holding(times: Sequence[int], start: int | None, end: int | None) -> set[int]:
    """The splits with messages of that time, each of which goes on for an hour."""
    return {
        number
        for number, time in enumerate(times)
        if (end is None or time < end) and (start is None or time + HOUR > start)
    }


RANGES = [(start, start + 2 * HOUR) for start in range(HOUR // 2, 40 * HOUR, 3 * HOUR)]
SLOWER = " (slower, no message is lost)"
RANGES_AND_EDGES = [pair for start, end in RANGES for pair in ((start, end), (start, None), (None, end))]


@pytest.mark.parametrize("wrong", [0, 17 * HOUR, 9999 * HOUR])
def test_one_wrong_store_time_hides_no_split(wrong: int, caplog: pytest.LogCaptureFixture) -> None:
    right = [n * HOUR for n in range(1, 41)]
    for flipped in range(40):
        times = [*right[:flipped], wrong, *right[flipped + 1 :]]
        for start, end in RANGES_AND_EDGES:
            kept = set(narrowed(times, start, end))
            assert kept >= holding(right, start, end), (flipped, start, end)
            if start is not None and end is not None:
                assert len(kept) <= 8, "the others tell where the time is"
    assert {line.rpartition("; ")[2] for line in caplog.messages} == {f"this part is read completely{SLOWER}"}


@pytest.mark.parametrize("back", [2, 5, 20])
def test_a_clock_that_was_set_back_by_hours_hides_no_split(back: int, caplog: pytest.LogCaptureFixture) -> None:
    for changed in range(1, 40):
        times = [(n + 20 - (back if n >= changed else 0)) * HOUR for n in range(40)]
        for start, end in RANGES_AND_EDGES:
            assert set(narrowed(times, start, end)) >= holding(times, start, end), (changed, start, end)
    told = {line.rpartition("; ")[2] for line in caplog.messages}
    assert told >= ({f"the whole log is read{SLOWER}"} if back > 2 else {f"this part is read completely{SLOWER}"})


def test_a_fall_that_a_search_among_many_comes_by_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    times = [(n - (500 if n >= 600 else 0)) * HOUR for n in range(1000)]
    assert narrowed(times, 450 * HOUR, 460 * HOUR) == list(range(1000))
    assert "store times go back by" in caplog.text


def test_a_split_that_is_kept_for_itself_proves_where_it_begins() -> None:
    times = [n * HOUR for n in range(1, 41)]
    times[30] = 0
    kept = narrow_by_time(fake_splits(40), None, 3 * HOUR, first_ms=lambda split: times[split.start // 100])
    assert [(split.start // 100, split.alone) for split in kept if split.start >= 500] == [(29, True), (30, False)]


def test_messages_of_a_time_are_all_read_although_a_store_time_is_damaged(workdir: Path) -> None:
    times = [FIRST_MS + n * 600_000 for n in range(200)]
    log = write_log(workdir / "log", SEGMENT, [message(n, stored_ms=ms) for n, ms in enumerate(times)])
    listing, end = survey(str(log.directory), None)
    for base in range(0, end, SEGMENT):
        offset = next(one for one in log.offsets if one >= base)
        for wrong in (0, 2**62):
            log.write_at(offset + 56, wrong.to_bytes(8, "big"))
            for first in (3, 60, 100, 170):
                wanted = {log.offsets[n] for n in range(first, first + 12)} - {offset}
                splits = narrow_by_time(plan_splits(listing, end), times[first], times[first + 12])
                found = {
                    at for split in splits for chunk in _chunks(split) for at in chunk.offset + chunk.positions
                }
                assert wanted <= found
                assert offset_of_time(listing, 0, end, times[first]) <= min(wanted)
        log.write_at(offset + 56, times[log.offsets.index(offset)].to_bytes(8, "big"))


@pytest.mark.parametrize("number", [0, 1, 57, 130, 199])
def test_the_first_message_of_a_time(known: Known, number: int) -> None:
    at = offset_of_time(known.listing, 0, known.end, FIRST_MS + number * STEP_MS)
    assert at == known.log.offsets[number]
    between = offset_of_time(known.listing, 0, known.end, FIRST_MS + number * STEP_MS - 1)
    assert between == known.log.offsets[number]


def test_a_time_after_the_log_is_its_end(known: Known) -> None:
    assert offset_of_time(known.listing, 0, known.end, FIRST_MS + 200 * STEP_MS) == known.end


def test_a_clock_that_was_set_back_hides_nothing(workdir: Path) -> None:
    """By 50 s, in the middle of a log: the first message in log order at or after the time is found."""
    times = [FIRST_MS + n * 1000 - (50_000 if n > 100 else 0) for n in range(200)]
    log = write_log(workdir / "log", SEGMENT, [message(n, stored_ms=ms) for n, ms in enumerate(times)])
    listing, end = survey(str(log.directory), None)
    for wanted in times:
        first = next(n for n, ms in enumerate(times) if ms >= wanted)
        assert offset_of_time(listing, 0, end, wanted) == log.offsets[first]


# --- by amount -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 7, 100, 198])
@pytest.mark.parametrize("count", [1, 2, 40, 1000])
def test_so_many_messages(known: Known, start: int, count: int) -> None:
    reached = advance(known.listing, known.log.offsets[start], known.end, max_records=count)
    taken = [offset for offset in known.log.offsets[start:] if offset < reached]
    assert len(taken) == min(count, 200 - start)


@pytest.mark.parametrize("start", [0, 7, 100, 198])
@pytest.mark.parametrize("size", [1, 130, 1000, SEGMENT, 3 * SEGMENT, 1 << 40])
def test_so_many_bytes(known: Known, start: int, size: int) -> None:
    begin = known.log.offsets[start]
    reached = advance(known.listing, begin, known.end, max_bytes=size)
    ends = [offset + len(message(number)(offset)) for number, offset in enumerate(known.log.offsets)]
    fitting = [end for end in ends[start:] if end - begin <= size] or [ends[start]]
    # Behind the last message of a segment, or at the begin of the next one: both are places.
    begun = {number for number, offset in enumerate(known.log.offsets) if offset < reached}
    assert len(begun) == ends.index(fitting[-1]) + 1
    assert reached == fitting[-1] or (reached % SEGMENT == 0 and reached - begin <= size)


def test_both_limits_hold(known: Known) -> None:
    one = advance(known.listing, 0, known.end, max_bytes=SEGMENT, max_records=3)
    assert one == known.log.offsets[3]
    other = advance(known.listing, 0, known.end, max_bytes=300, max_records=30)
    assert other == max(offset for offset in known.log.offsets if offset <= 300)
    assert advance(known.listing, 0, known.end) == known.end


def test_step_by_step_every_message_once(known: Known) -> None:
    """Whatever the limits are, the steps end, meet in places, and miss nothing."""
    for limits in ({"max_bytes": 700}, {"max_records": 11}, {"max_bytes": 5000, "max_records": 90}):
        at, seen = 0, []
        while at < known.end:
            reached = advance(known.listing, at, known.end, **limits)
            assert reached > at
            seen += [offset for offset in known.log.offsets if at <= offset < reached]
            at = reached
        assert seen == known.log.offsets


def test_a_hole_larger_than_the_limit_is_stepped_over(known: Known) -> None:
    segments = tuple(s for s in known.listing.segments if not SEGMENT <= s.base_offset < 4 * SEGMENT)
    listing = LogListing(SEGMENT, segments)
    last_before = max(offset for offset in known.log.offsets if offset < SEGMENT)
    reached = advance(listing, last_before, known.end, max_bytes=500)
    assert reached <= SEGMENT
    assert advance(listing, reached, known.end, max_bytes=500) > 4 * SEGMENT


def test_the_first_place_is_never_a_record_inside_another(workdir: Path) -> None:
    log = write_log(workdir / "log", SEGMENT, [message(n, body=b"x" * 900) for n in range(4)])
    inner = log.offsets[1] + 300
    log.write_at(inner, message(77)(inner))
    listing, end = survey(str(log.directory), None)
    assert {first_place(listing, start, end) for start in (log.offsets[1] + 1, inner - 5, inner)} == {
        log.offsets[2]
    }


def test_the_first_place_inside_damage_is_told_by_who_reads_there(workdir: Path) -> None:
    log = write_log(workdir / "log", SEGMENT, messages(60))
    log.write_at(log.offsets[40] + 4, bytes(4))
    listing, end = survey(str(log.directory), None)
    start = log.offsets[40] + 9
    assert first_place(listing, start, end) == start
    (split, *_) = plan_splits(listing, end, start_offset=start, exact_start=True)
    with pytest.raises(DamagedLogError, match=f"log offset {start}"):
        list(scan_split(split))


def test_the_first_place_from_anywhere(known: Known) -> None:
    ends = [offset + len(message(number)(offset)) for number, offset in enumerate(known.log.offsets)]
    for start in range(0, known.end + 1, 13):
        at = first_place(known.listing, start, known.end)
        assert at in known.log.offsets or at in ends
        assert not [offset for offset in known.log.offsets if start <= offset < at]
