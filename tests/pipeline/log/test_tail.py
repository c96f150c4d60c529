"""The end of a log that is being written: never inside a record, never before a whole one."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.messages import message
from support.records import make_record
from support.written_logs import sized, write_log

from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.window import WINDOW_BYTES
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock, SystemClock

SEGMENT = 1 << 16
CHANGES = 10


class Meanwhile(SystemClock):
    """Calls a function instead of each sleep."""

    def __init__(self, function: Callable[[float], None]) -> None:
        self._function = function

    def sleep(self, seconds: float) -> None:
        self._function(seconds)


def end_of(directory: Path, known: int = 0, settle_s: float = 0.0, clock: Clock = SYSTEM_CLOCK) -> int:
    return find_end(list_segments(str(directory)), known=known, settle_s=settle_s, clock=clock)


def write_cut_back_log(directory: Path) -> tuple[int, int]:
    """A log with old records after its end; the offset where it was truncated, and its end."""
    log = write_log(directory, SEGMENT, [sized(400)] * 100)
    cut = log.offsets[50]
    newest = message(50, stored_ms=1_800_000_000_000, body=b"new" * 50)(cut)
    log.write_at(cut, newest)
    return cut, cut + len(newest)


def test_the_end_is_behind_the_last_record(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 300)
    assert end_of(tmp_path) == log.end
    assert end_of(tmp_path, known=log.offsets[250]) == log.end
    assert end_of(tmp_path, known=log.end) == log.end


def test_segments_made_ahead_do_not_matter(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 200)
    for ahead in (1, 2):
        path = log.segment_at(log.end + ahead * SEGMENT)
        path.touch()
        with path.open("r+b") as file:
            file.truncate(SEGMENT)
    assert end_of(tmp_path) == log.end


def test_an_empty_log_ends_where_it_begins(tmp_path: Path) -> None:
    assert end_of(tmp_path) == 0
    log = write_log(tmp_path, SEGMENT, [], first=3 * SEGMENT)
    assert end_of(tmp_path) == log.end == 3 * SEGMENT


def test_a_finished_segment_ends_the_log_at_its_edge(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(3000)] * 30)
    log.segment_at(log.end).unlink()
    assert end_of(tmp_path) == SEGMENT


def test_half_a_record_is_not_the_log_yet(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 5)
    record = make_record(log.end, body=b"y" * 500)
    for there in (4, 8, 40, 90, 300, len(record) - 30):
        log.write_at(log.end, record[:there])
        assert end_of(tmp_path) == log.end


def test_the_last_record_counts_once_it_does_not_change(tmp_path: Path) -> None:
    """Its lengths may be there before its last bytes are."""
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 5)
    newest = log.offsets[-1]
    slept: list[float] = []

    def write_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) < CHANGES:
            log.write_at(newest + 100, len(slept).to_bytes(4, "big"))

    assert end_of(tmp_path, settle_s=0.05, clock=Meanwhile(write_meanwhile)) == log.end
    assert slept == [0.05] * CHANGES, "a record that still changes was taken for whole"


def test_a_broker_that_writes_on_and_on_does_not_hold_us_up(tmp_path: Path) -> None:
    log = write_log(tmp_path, 1 << 22, [sized(400)] * 5)
    stop = threading.Event()

    def keep_appending() -> None:
        while not stop.wait(0.001) and log.end < (1 << 22) - 2000:
            log.append(sized(400))

    writer = threading.Thread(target=keep_appending)
    writer.start()
    try:
        end = end_of(tmp_path, settle_s=0.05)
    finally:
        stop.set()
        writer.join()
    assert end in {*log.offsets, log.end}
    assert end > log.offsets[4]


@pytest.mark.parametrize("shift", [0, 1, 7, 4095])
def test_a_log_that_goes_on_far_behind_a_hole_in_the_file(tmp_path: Path, shift: int) -> None:
    """Exactly the unwritten bytes are skipped without reading them."""
    size = 8 * WINDOW_BYTES
    log = write_log(tmp_path, size, [sized(400)] * 3)
    later = (5 * WINDOW_BYTES) - 4096 + shift
    newest = message(3, stored_ms=1_900_000_000_000, body=b"later")(later)
    log.write_at(later, newest)
    assert end_of(tmp_path) == later + len(newest)
    assert log.segment_at(0).stat().st_blocks * 512 < WINDOW_BYTES, "the file has no hole"


def test_records_left_over_after_the_end_are_not_the_log(tmp_path: Path) -> None:
    """A broker that was cut short goes back to its last good record and writes on from there, over old ones."""
    _, end = write_cut_back_log(tmp_path)
    assert end_of(tmp_path) == end


def test_records_left_over_are_not_the_log_for_one_who_asks_again_either(tmp_path: Path) -> None:
    cut, end = write_cut_back_log(tmp_path)
    assert end_of(tmp_path, known=end) == end
    assert end_of(tmp_path, known=cut) == end


def test_a_record_that_is_rewritten_while_it_settles_is_not_read_by_its_new_lengths(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 5)
    newest = log.offsets[-1]
    clock = Meanwhile(lambda _: log.write_at(newest + 84, (0x7F000000).to_bytes(4, "big")))
    assert end_of(tmp_path, settle_s=0.3, clock=clock) == newest


def test_a_segment_whose_first_record_is_damaged_belongs_to_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 200)
    log.write_at(SEGMENT, bytes(8))
    assert end_of(tmp_path) == log.end > SEGMENT


def test_damage_just_before_a_segments_end_does_not_end_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 200)
    log.segment_at(SEGMENT).unlink()
    log.write_at(max(offset for offset in log.offsets if offset < SEGMENT) + 4, b"\0\0\0\0")
    assert end_of(tmp_path) == SEGMENT


def test_damage_before_the_end_does_not_end_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 100)
    log.write_at(log.offsets[50], bytes(300))
    assert end_of(tmp_path) == log.end
