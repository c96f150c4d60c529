"""A message that is still at its place proves the log before it; another log is recognized by few reads."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest
from support.messages import message, messages
from support.written_logs import WrittenLog, sized, write_log

from commitlogfs.pipeline.arrays.array_types import Bytes
from commitlogfs.pipeline.log import identity
from commitlogfs.pipeline.log.identity import (
    Fingerprint,
    fingerprint_before,
    fingerprints_of_range,
    first_difference,
    is_same,
)
from commitlogfs.pipeline.log.segments import LogListing, SegmentReader, list_segments, read_at

SEGMENT = 1 << 14


def listing_of(log: WrittenLog) -> LogListing:
    return list_segments(str(log.directory), log.segment_size)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return write_log(tmp_path / "log", SEGMENT, messages(300))


def test_the_last_message_before_each_place_is_found(log: WrittenLog) -> None:
    listing = listing_of(log)
    for before, place in zip(log.offsets, [*log.offsets[1:], log.end], strict=True):
        found = fingerprint_before(listing, place)
        assert found is not None
        assert found.offset == before
        assert is_same(listing, found)
    assert fingerprint_before(listing, 0) is None


@pytest.mark.parametrize("body_bytes", [10, 5_000, 70_000, 1_200_000])
def test_before_the_end_of_a_segment_it_is_the_one_before_the_blank(tmp_path: Path, body_bytes: int) -> None:
    """Both may be longer than what is read at first."""
    log = write_log(tmp_path / "log", 4 << 20, [sized(body_bytes), sized(3_000_000), sized(body_bytes)])
    if log.end < 4 << 20:
        log.append(sized(2_000_000))
    listing = listing_of(log)
    last = max(offset for offset in log.offsets if offset < 4 << 20)
    found = fingerprint_before(listing, 4 << 20)
    assert found is not None
    assert found.offset == last


def test_records_after_the_blank_record_are_of_an_earlier_use(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [sized(3_000)] * 6)
    last = max(offset for offset in log.offsets if offset < SEGMENT)
    log.write_at(SEGMENT - 500, message(1)(SEGMENT - 500))
    found = fingerprint_before(listing_of(log), SEGMENT)
    assert found is not None
    assert found.offset == last


def test_bytes_that_are_no_message_still_identify_a_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(20))
    log.write_at(0, b"\7" * log.end)
    found = fingerprint_before(listing_of(log), log.end)
    assert found is not None
    assert is_same(listing_of(log), found)
    log.write_at(log.end - 1, b"\6")
    assert is_same(listing_of(log), found) is False


def test_a_fingerprint_comes_back_from_json(log: WrittenLog) -> None:
    for one in fingerprints_of_range(listing_of(log), 0, log.end):
        assert Fingerprint.of_json(asdict(one)) == one


def test_messages_that_were_deleted_are_no_difference(log: WrittenLog) -> None:
    remembered = fingerprints_of_range(listing_of(log), 0, log.end)
    log.segment_at(0).unlink()
    listing = listing_of(log)
    assert [is_same(listing, one) for one in remembered] == [None, True]
    assert first_difference(listing, log.end, remembered) is None
    log.segment_at(log.end).unlink()
    assert first_difference(listing, log.end, remembered) is None, "deleted after the log was listed"
    listing = listing_of(log)
    assert first_difference(listing, listing.segments[-1].end_offset, remembered) is None


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[WrittenLog, list[Fingerprint]]:
    """A log of as many messages, and the fingerprint of each."""
    log = write_log(tmp_path_factory.mktemp("old"), 1 << 21, messages(10_000))
    data = log.segment_at(0).read_bytes()
    ends = [*log.offsets[1:], log.end]
    pieces = [(start, data[start : min(end, start + 256)]) for start, end in zip(log.offsets, ends, strict=True)]
    return log, [Fingerprint(start, len(piece), sha256(piece).hexdigest()) for start, piece in pieces]


@pytest.mark.parametrize("different", [0, 1, 4_321, 9_998, 9_999])
def test_ten_thousand_places_cost_one_read_and_a_difference_few(
    tmp_path: Path,
    ten_thousand: tuple[WrittenLog, list[Fingerprint]],
    different: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, remembered = ten_thousand
    reads: list[int] = []

    def counted(reader: SegmentReader, position: int, length: int) -> Bytes:
        reads.append(position)
        return read_at(reader, position, length)

    monkeypatch.setattr(identity, "read_at", counted)
    assert first_difference(listing_of(log), log.end, remembered) is None
    assert len(reads) == 1
    reads.clear()
    content = bytearray(log.segment_at(0).read_bytes())
    for number in range(different, len(log.offsets)):
        content[log.offsets[number] + 88] ^= 1
    (tmp_path / log.segment_at(0).name).write_bytes(content)
    found = first_difference(list_segments(str(tmp_path)), log.end, remembered)
    assert found == remembered[different]
    assert len(reads) <= 16
