from collections.abc import Callable

import pytest
import xxhash
from support.records import make_blank, make_record

from commitlogfs.store import sealed_segment
from commitlogfs.store.sealed_segment import SealedSegment, UnsoundSegmentError, check_sealed
from commitlogfs.store.segment import BaseOffset

SIZE = 64 << 10
BASE = BaseOffset(3 * SIZE)


def sealed(*, bodies: int = 40, property_crc: bool = False) -> bytearray:
    content = bytearray()
    for number in range(bodies):
        body = bytes([number]) * (100 + 37 * number)
        content += make_record(BASE + len(content), body=body, store_ms=1000 + number, property_crc=property_crc)
    return bytearray((content + make_blank(SIZE - len(content))).ljust(SIZE, b"\xee"))


def check(content: bytes) -> SealedSegment:
    return check_sealed(lambda position, length: content[position : position + length], BASE, SIZE)


@pytest.mark.parametrize("window", [8, 100, 4096, 1 << 20])
@pytest.mark.parametrize("property_crc", [False, True])
def test_a_sound_segment_passes_with_its_digest(
    window: int, property_crc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_segment, "WINDOW_BYTES", window)
    content = bytes(sealed(property_crc=property_crc))
    assert check(content) == SealedSegment(40, 1039, xxhash.xxh3_128(content).digest())


def test_a_segment_that_is_only_blank_passes() -> None:
    content = make_blank(SIZE).ljust(SIZE, b"\0")
    assert check(content) == SealedSegment(0, 0, xxhash.xxh3_128(content).digest())


def test_progress_counts_every_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_segment, "WINDOW_BYTES", 10_000)
    content, seen = bytes(sealed()), list[int]()
    check_sealed(lambda position, length: content[position : position + length], BASE, SIZE, seen.append)
    assert seen == [*range(10_000, SIZE, 10_000), SIZE]


def test_every_flipped_byte_of_the_first_record_body_is_found() -> None:
    content = sealed()
    first = content.index(bytes(100))
    for position in range(first, first + 100):
        content[position] ^= 0x10
        with pytest.raises(UnsoundSegmentError, match=f"log offset {BASE}: the checksum"):
            check(bytes(content))
        content[position] ^= 0x10


def test_a_record_of_another_offset_is_found() -> None:
    content = sealed()
    second = len(make_record(BASE, body=bytes(100)))
    content[second + 35] ^= 1
    with pytest.raises(UnsoundSegmentError, match=f"log offset {BASE + second}: an old record"):
        check(bytes(content))


def test_a_segment_that_is_still_written_is_refused() -> None:
    content = make_record(BASE)
    with pytest.raises(UnsoundSegmentError, match=f"log offset {BASE + len(content)}: nothing is written"):
        check(content.ljust(SIZE, b"\0"))


def test_a_blank_record_that_ends_elsewhere_is_refused() -> None:
    content = make_record(BASE)
    with pytest.raises(UnsoundSegmentError, match="a blank record of 100 bytes"):
        check((content + make_blank(100)).ljust(SIZE, b"\0"))


def test_a_record_longer_than_the_segment_is_refused() -> None:
    content = sealed()
    content[0] = 0x7F
    with pytest.raises(UnsoundSegmentError, match="an incomplete record"):
        check(bytes(content))


def test_a_file_that_is_cut_is_refused() -> None:
    with pytest.raises(UnsoundSegmentError, match=f"ends at {SIZE - 1} instead of {SIZE}"):
        check(bytes(sealed())[:-1])


def early(*, records: int = 3) -> bytes:
    """A segment whose rest was never written."""
    content = bytearray()
    for number in range(records):
        content += make_record(BASE + len(content), body=bytes([number]) * 300, store_ms=1000 + number)
    return bytes(content.ljust(SIZE, b"\0"))


def read_of(content: bytes) -> Callable[[int, int], bytes]:
    return lambda position, length: content[position : position + length]


@pytest.mark.parametrize("window", [8, 4096, 1 << 20])
def test_the_right_digest_suffices_without_a_right_chain(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_segment, "WINDOW_BYTES", window)
    broken = sealed()
    broken[len(make_record(BASE, body=bytes(100))) + 100] ^= 1
    for content, messages in ((early(), 3), (bytes(broken), 1)):
        digest = xxhash.xxh3_128(content).digest()
        found = check_sealed(read_of(content), BASE, SIZE, right=digest)
        assert (found.digest, found.messages) == (digest, messages)
        assert found.fault.startswith("log offset ")
        with pytest.raises(UnsoundSegmentError, match="log offset"):
            check_sealed(read_of(content), BASE, SIZE, right=bytes(16))


@pytest.mark.parametrize("window", [8, 4096, 1 << 20])
def test_zeros_after_the_last_record_are_named(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_segment, "WINDOW_BYTES", window)
    content, end = early(), 3 * len(make_record(BASE, body=bytes(300)))
    expected = SealedSegment(3, 1002, xxhash.xxh3_128(content).digest(), end)
    assert check_sealed(read_of(content), BASE, SIZE, may_end_early=True) == expected
    for position in (end, end + 1, SIZE - 1):
        changed = bytearray(content)
        changed[position] = 1
        with pytest.raises(UnsoundSegmentError, match=f"log offset {BASE + end}: "):
            check_sealed(read_of(bytes(changed)), BASE, SIZE, may_end_early=True)
