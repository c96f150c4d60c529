"""Records found split by split: each exactly once, damage never silently, nothing read out of bounds."""

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import BLANK, V1, V2, make_blank, make_record
from support.written_logs import WrittenLog, sized, write_log

from commitlogfs.pipeline.arrays.fields import record_fields
from commitlogfs.pipeline.arrays.walk import REASONS, Ended, find, walk
from commitlogfs.pipeline.log.errors import AmbiguousSplitError, DamagedLogError, LocationError, SegmentGoneError
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.store import record as reference

SEGMENT = 1 << 16


def read(
    log: WrittenLog, mode: DamageMode = DamageMode.FAILFAST, split_size: int = SEGMENT, end: int | None = None
) -> tuple[list[int], list[Damage]]:
    """Log offsets of all records, and what was skipped."""
    listing = list_segments(str(log.directory))
    end = find_end(listing, settle_s=0) if end is None else end
    offsets: list[int] = []
    damages: list[Damage] = []
    for split in plan_splits(listing, end, split_size=split_size):
        for part in scan_split(split, mode):
            if isinstance(part, Damage):
                damages.append(part)
            else:
                assert all(part.positions[:-1] < part.positions[1:])
                offsets += (part.positions + part.offset).tolist()
    return offsets, damages


@pytest.mark.parametrize("split_size", [100, 999, 4096, SEGMENT - 1, SEGMENT, 10 * SEGMENT])
def test_every_record_is_found_exactly_once_whatever_the_splits(tmp_path: Path, split_size: int) -> None:
    bodies = random.Random(1).choices([0, 1, 40, 300, 5000, 20000], k=200)  # noqa: S311
    log = write_log(tmp_path, SEGMENT, [sized(size) for size in bodies])
    assert read(log, split_size=split_size) == (log.offsets, [])


def test_the_kinds_of_records_are_all_walked(tmp_path: Path) -> None:
    kinds = [
        sized(10),
        sized(10, magic=V2, topic=b"t" * 300),
        sized(10, born=("2001:db8::1", 1)),
        sized(10, stored=("2001:db8::2", 1)),
        sized(10, born=("2001:db8::1", 1), stored=("2001:db8::2", 1), magic=V2),
        sized(0, topic=b"", properties=b""),
        sized(5, property_crc=True),
    ]
    log = write_log(tmp_path, SEGMENT, kinds * 30)
    assert read(log)[0] == log.offsets


def test_a_record_larger_than_a_window(tmp_path: Path) -> None:
    size = 8 << 20
    log = write_log(tmp_path, size, [sized(100), sized(5 << 20), sized(100), sized(7 << 20), sized(1)])
    for split_size in (size, 1 << 20):
        assert read(log, split_size=split_size)[0] == log.offsets


def test_a_log_need_not_begin_at_zero(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(500)] * 300, first=7 * SEGMENT)
    assert read(log)[0] == log.offsets


def test_a_range_begins_and_ends_where_it_is_reported(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(700)] * 300)
    listing = list_segments(str(log.directory))
    first, last = log.offsets[37], log.offsets[211]
    for split_size in (1000, SEGMENT):
        found = [
            offset
            for split in plan_splits(listing, last, start_offset=first, split_size=split_size)
            for chunk in scan_split(split)
            if isinstance(chunk, Chunk)
            for offset in (chunk.positions + chunk.offset).tolist()
        ]
        assert found == log.offsets[37:211]


# --- damage ----------------------------------------------------------------------------------------------


def broken_log(directory: Path, *, at: int = 100, count: int = 200) -> WrittenLog:
    """One record of many has lost its magic."""
    log = write_log(directory, SEGMENT, [sized(400)] * count)
    log.write_at(log.offsets[at] + 4, b"\0\0\0\0")
    return log


def test_damage_is_named_with_segment_and_offset(tmp_path: Path) -> None:
    log = broken_log(tmp_path)
    segment = log.segment_at(log.offsets[100]).name
    with pytest.raises(DamagedLogError, match=rf"^segment {segment}, log offset {log.offsets[100]}: "):
        read(log)


@pytest.mark.parametrize("split_size", [100, 1000, SEGMENT])
def test_permissive_goes_on_at_the_next_record_and_reports_the_rest(tmp_path: Path, split_size: int) -> None:
    log = broken_log(tmp_path)
    offsets, damages = read(log, DamageMode.PERMISSIVE, split_size)
    assert offsets == log.offsets[:100] + log.offsets[101:]
    lengths = {damage.offset: damage.length for damage in damages}
    assert lengths == {log.offsets[100]: log.offsets[101] - log.offsets[100]}


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, struct.pack(">i", -5)),
        (0, struct.pack(">i", 2**31 - 1)),
        (0, struct.pack(">i", 90)),
        (4, struct.pack(">I", BLANK)),
        (28, struct.pack(">q", 12345)),
        (36, struct.pack(">i", 0x30)),
        (84, struct.pack(">i", -1)),
        (84, struct.pack(">i", 2**31 - 1)),
        (84, struct.pack(">i", 399)),
    ],
)
def test_any_field_that_does_not_fit_is_damage(tmp_path: Path, at: int, data: bytes) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 50)
    log.write_at(log.offsets[20] + at, data)
    offsets, damages = read(log, DamageMode.PERMISSIVE)
    assert offsets == log.offsets[:20] + log.offsets[21:]
    assert [damage.offset for damage in damages] == [log.offsets[20]]


def test_a_hole_in_a_finished_segment_is_damage(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 300)
    log.write_at(log.offsets[10], bytes(SEGMENT - log.offsets[10]))
    offsets, damages = read(log, DamageMode.PERMISSIVE)
    assert offsets == log.offsets[:10] + [offset for offset in log.offsets if offset >= SEGMENT]
    assert [(damage.offset, damage.length) for damage in damages] == [(log.offsets[10], SEGMENT - log.offsets[10])]
    assert "nothing is written" in damages[0].reason


def test_bytes_after_the_blank_record_do_not_matter(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(3000)] * 40)
    left = (
        SEGMENT - max(offset for offset in log.offsets if offset < SEGMENT) - len(make_record(0, body=b"x" * 3000))
    )
    log.write_at(SEGMENT - left + 8, random.Random(2).randbytes(left - 8))  # noqa: S311
    assert read(log)[0] == log.offsets
    assert read(log, split_size=512)[0] == log.offsets


@pytest.mark.parametrize("where", ["body", "blank"])
def test_what_looks_like_a_record_inside_another_is_never_taken_for_one(tmp_path: Path, where: str) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(9000)] * 12)
    # 7 records of 9 kB in a segment of 64 kB; the body of the sixth and the blank lie across a border of splits.
    inner = log.offsets[5] + 4000 if where == "body" else SEGMENT - 300
    log.write_at(inner, make_record(inner, body=b"trap"))
    assert read(log)[0] == log.offsets, "whole segments are walked from their beginning"
    split_size = inner - 64
    with pytest.raises(AmbiguousSplitError, match="splitSize"):
        read(log, DamageMode.PERMISSIVE, split_size)


def test_a_reader_that_begins_inside_the_log_is_not_led_astray(tmp_path: Path) -> None:
    """Nobody has read what lies before, so it walks there itself."""
    log = write_log(tmp_path, SEGMENT, [sized(9000)] * 12)
    inner = log.offsets[5] + 4000
    log.write_at(inner, make_record(inner, body=b"trap"))
    listing = list_segments(str(log.directory))
    for start in (inner, inner - 100, log.offsets[5] + 1):
        found = [
            offset
            for split in plan_splits(listing, log.end, start_offset=start, split_size=SEGMENT)
            for chunk in scan_split(split)
            if isinstance(chunk, Chunk)
            for offset in (chunk.positions + chunk.offset).tolist()
        ]
        assert found == log.offsets[6:]


def test_bytes_that_claim_to_be_huge_records_cost_nothing(tmp_path: Path) -> None:
    size = 64 << 20
    log = write_log(tmp_path, size, [sized(400), sized(3 << 20), sized(400)])
    inside = log.offsets[1] + 1000
    for number in range(2000):
        at = inside + 200 * number
        seeming = make_record(at, body=b"")
        log.write_at(at, struct.pack(">I", size - 1000 - at) + seeming[4:84] + struct.pack(">i", size - 1200 - at))
    listing = list_segments(str(log.directory))
    tracemalloc.start()
    found = [
        offset
        for split in plan_splits(listing, log.end, split_size=inside)
        for chunk in scan_split(split)
        if isinstance(chunk, Chunk)
        for offset in (chunk.positions + chunk.offset).tolist()
    ]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == log.offsets
    assert most < 16 << 20


def test_a_header_that_claims_to_be_huge_costs_nothing(tmp_path: Path) -> None:
    """Where a record must begin, not inside one: in a walk, on the way to a place, and at the log's end."""
    size = 96 << 20
    log = write_log(tmp_path, size, [sized(400)] * 20)
    seeming = make_record(log.offsets[10], body=b"")
    huge = struct.pack(">I", 80 << 20) + seeming[4:84] + struct.pack(">i", (80 << 20) - 5000)
    log.write_at(log.offsets[10], huge)
    tracemalloc.start()
    offsets, damages = read(log, DamageMode.PERMISSIVE, size)
    begin = log.offsets[15]
    (late,) = plan_splits(list_segments(str(log.directory)), log.end, start_offset=begin, split_size=size)
    found = [part for part in scan_split(late) if isinstance(part, Chunk)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert offsets == log.offsets[:10] + log.offsets[11:]
    assert [(damage.offset, damage.reason) for damage in damages] == [(log.offsets[10], REASONS[Ended.BROKEN])]
    assert found[0].offset + int(found[0].positions[0]) == begin
    assert most < 32 << 20


@pytest.mark.parametrize("into", [1, 200, 400])
@pytest.mark.parametrize("broken", [range(30, 31), range(30, 33)])
def test_damage_in_which_a_range_begins_is_reported(tmp_path: Path, into: int, broken: range) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 100)
    for number in broken:
        log.write_at(log.offsets[number] + 4, b"\0\0\0\0")
    listing = list_segments(str(log.directory))
    begin, end = log.offsets[broken[0]], log.offsets[broken[-1] + 1]
    for split_size in (300, SEGMENT):
        splits = plan_splits(listing, log.end, start_offset=begin + into, split_size=split_size)
        with pytest.raises(DamagedLogError, match=f"log offset {begin}: no record begins here"):
            list(scan_split(splits[0]))
        parts = [part for split in splits for part in scan_split(split, DamageMode.PERMISSIVE)]
        damages = [(part.offset, part.length) for part in parts if isinstance(part, Damage)]
        assert damages == [(begin, end - begin)]
    for start in (end, end + 1):  # behind it: it is none of the range's
        splits = plan_splits(listing, log.end, start_offset=start, split_size=SEGMENT)
        assert not [part for split in splits for part in scan_split(split) if isinstance(part, Damage)]


def test_a_name_beyond_what_a_log_can_have_is_no_segment(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 3)
    (tmp_path / "10000000000000000000").write_bytes(b"junk")
    assert len(list_segments(str(log.directory)).segments) == 1


def test_a_segment_that_is_gone_or_shorter_than_listed(tmp_path: Path) -> None:
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 300)
    splits = plan_splits(list_segments(str(log.directory)), log.end)
    with log.segment_at(0).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(LocationError, match="but had 65536 when the log was listed"):
        list(scan_split(splits[0]))
    log.segment_at(0).unlink()
    with pytest.raises(SegmentGoneError):
        list(scan_split(splits[0]))


@pytest.mark.parametrize("mode", DamageMode)
def test_a_split_after_the_end_of_a_segment_that_was_truncated(tmp_path: Path, mode: DamageMode) -> None:
    """It is not taken for one where nothing was written, whose place the file system knows."""
    log = write_log(tmp_path, SEGMENT, [sized(400)] * 100)
    splits = plan_splits(list_segments(str(log.directory)), log.end, split_size=SEGMENT // 8)
    assert len(splits) > 4
    with log.segment_at(0).open("r+b") as file:
        file.truncate(SEGMENT // 8 + 1000)
    for split in splits[1:]:
        with pytest.raises(LocationError, match="but had 65536 when the log was listed"):
            list(scan_split(split, mode))


# --- hostile bytes ---------------------------------------------------------------------------------------


def reference_walk(data: bytes, offset: int, room: int) -> list[int]:
    """Offsets that `store.record`, which decodes one record for people, finds from the beginning."""
    found, at = [], 0
    while room - at >= 8:
        try:
            one = reference.decode(data[at:room], offset + at)
        except reference.RecordError:
            break
        if one.total_size > room - at - 8:
            break
        found.append(at)
        at += one.total_size
    return found


@st.composite
def damaged_bytes(draw: st.DrawFn) -> tuple[bytes, int]:
    """A few records, then bytes of them changed at random."""
    offset = draw(st.sampled_from([0, 1 << 30, (1 << 62) - (1 << 62) % 4096]))
    data = b""
    for _ in range(draw(st.integers(1, 5))):
        data += make_record(
            offset + len(data),
            body=draw(st.binary(max_size=60)),
            topic=draw(st.binary(max_size=127)),
            properties=draw(st.binary(max_size=60)),
            magic=draw(st.sampled_from([V1, V2])),
            born=draw(st.sampled_from([("1.2.3.4", 5), ("::1", 5)])),
            stored=draw(st.sampled_from([("1.2.3.4", 5), ("::1", 5)])),
        )
    data += draw(st.sampled_from([b"", make_blank(50)[:8] + bytes(42), bytes(100)]))
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        changed[at : at + 4] = draw(st.sampled_from([b"\xff", b"\0", b"\x7f\xff\xff\xff", b"\xda\xa3\x20\xa7"]))
    return bytes(changed[: len(data)]), offset


@given(damaged_bytes(), st.integers(0, 300))
def test_the_walk_agrees_with_the_reference_decoder_on_any_bytes(case: tuple[bytes, int], cut: int) -> None:
    data, offset = case
    room = len(data)
    positions = np.empty(room // 91 + 1, np.int64)
    array = np.frombuffer(data, np.uint8)
    walked = walk(array, offset, 0, room, room, positions)
    assert positions[: walked.records].tolist() == reference_walk(data, offset, room)
    # Of a shorter buffer, the same records as far as they are in it, and then the need for more or the same end.
    part = walk(array[: max(0, room - cut)].copy(), offset, 0, room, room, positions)
    assert part.records <= walked.records
    assert part.ended is Ended.MORE or part[1:3] == walked[1:3]


@given(st.binary(max_size=400), st.integers(0, 50))
def test_random_bytes_are_searched_without_a_find(data: bytes, start: int) -> None:
    array = np.frombuffer(data, np.uint8)
    result = find(array, 1 << 40, min(start, len(data)), len(data), len(data))
    assert not result.found


@given(damaged_bytes(), st.integers(0, 600), st.integers(0, 200))
def test_a_search_finds_the_first_place_that_proves_to_be_a_record(
    case: tuple[bytes, int], start: int, cut: int
) -> None:
    data, offset = case
    start = min(start, len(data))
    expected = next((at for at in range(start, len(data)) if begins_at(data, offset, at)), None)
    array = np.frombuffer(data, np.uint8)
    result = find(array, offset, start, len(data), len(data))
    assert (result.position if result.found else None) == expected
    short = find(array[: max(0, len(data) - cut)].copy(), offset, start, len(data), len(data))
    assert short.found or expected is None or short.position <= expected


def begins_at(data: bytes, offset: int, at: int) -> bool:
    left = len(data) - at
    if left < 8:
        return False
    if struct.unpack_from(">II", data, at) == (left, BLANK):
        return True
    return bool(reference_walk(data[at:], offset + at, left))


@given(damaged_bytes())
def test_fields_are_those_of_the_reference_decoder(case: tuple[bytes, int]) -> None:
    data, offset = case
    array = np.frombuffer(data, np.uint8)
    places = reference_walk(data, offset, len(data))
    fields = record_fields(array, np.array(places, np.int64))
    for row, at in enumerate(places):
        one = reference.decode(data[at:], offset + at)
        span = {
            name: data[getattr(fields, f"{name}_start")[row] :][: getattr(fields, f"{name}_length")[row]]
            for name in ("body", "topic", "properties")
        }
        assert span == {"body": one.body, "topic": one.topic_bytes, "properties": one.properties_bytes}
        assert fields.total_size[row] == one.total_size
        assert fields.version[row] == one.version
        assert fields.body_crc[row] == one.body_crc
        assert fields.queue_id[row] == one.queue_id
        assert fields.flag[row] == one.flag
        assert fields.queue_offset[row] == one.queue_offset
        assert fields.physical_offset[row] == one.physical_offset
        assert fields.sys_flag[row] == one.sys_flag
        assert fields.born_ms[row] == one.born_timestamp_ms
        assert fields.store_ms[row] == one.store_timestamp_ms
        assert fields.reconsume_times[row] == one.reconsume_times
        assert fields.prepared_offset[row] == one.prepared_transaction_offset
