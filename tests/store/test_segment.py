import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.segment import (
    LARGEST_OFFSET,
    format_segment_name,
    looks_like_segment,
    parse_segment_name,
    parse_temporary_name,
)

SIZES = [4096, 65536, 1 << 20, 1 << 30, 3 * 4096]
sizes = st.sampled_from(SIZES)
suffixes = st.text("abcXYZ019_-", min_size=1, max_size=32).map(str.encode)


@st.composite
def sized_offsets(draw):
    size = draw(sizes)
    return size, size * draw(st.integers(0, LARGEST_OFFSET // size - 1))


@given(sized_offsets())
def test_names_survive_the_round_trip(case):
    size, offset = case
    name = format_segment_name(offset)
    assert len(name) == 20
    assert parse_segment_name(name, size) == offset
    assert looks_like_segment(name)
    assert parse_temporary_name(name, size) is None


@given(sized_offsets(), suffixes)
def test_temporaries_survive_the_round_trip(case, suffix):
    size, offset = case
    name = b"." + format_segment_name(offset) + b"." + suffix
    assert parse_temporary_name(name, size) == offset
    assert parse_segment_name(name, size) is None
    assert not looks_like_segment(name)


@given(sized_offsets(), st.data())
def test_an_offset_between_boundaries_is_no_segment(case, data):
    size, offset = case
    name = format_segment_name(offset + data.draw(st.integers(1, size - 1)))
    assert looks_like_segment(name), "a broker would take it for a segment"
    assert parse_segment_name(name, size) is None
    assert parse_temporary_name(b"." + name + b".x", size) is None


@given(st.one_of(st.binary(max_size=40), st.text(max_size=24).map(str.encode)), sizes)
def test_any_bytes_are_a_segment_only_if_they_are_its_very_name(name, size):
    parsed = parse_segment_name(name, size)
    if parsed is not None:
        assert format_segment_name(parsed) == name
        assert parsed % size == 0


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"0" * 19,
        b"0" * 21,
        b"0" * 20 + b"\n",
        b"\n" + b"0" * 20,
        b" " + b"0" * 19,
        b"+" + b"0" * 19,
        b"-" + b"0" * 19,
        b"0000000000000000_000",
        b"0x000000000000000000",
        b"000000000000000000.0",
        "\u0660".encode() * 10,  # 20 bytes of Arabic digits
        "\uff10".encode() * 20,  # full-width digits
        b"\x00" * 20,
        b"\xff" * 20,
        b"../00000000000000000",
        b"9" * 20,  # beyond a signed 64-bit long
        b"%020d" % (LARGEST_OFFSET // 4096 * 4096),  # its last byte would be
    ],
)
def test_hostile_names_are_no_segments(name):
    assert parse_segment_name(name, 4096) is None
    assert parse_temporary_name(b"." + name + b".x", 4096) is None


@pytest.mark.parametrize("suffix", [b"", b".", b"a.b", b"a/b", b"a\n", b"\n", b"a b", b"\xc3\xa4", b"x" * 33])
def test_hostile_suffixes_are_no_temporaries(suffix):
    assert parse_temporary_name(b"." + format_segment_name(0) + b"." + suffix, 4096) is None


def test_the_last_possible_segment():
    for size in SIZES:
        last = (LARGEST_OFFSET - size) // size * size
        assert parse_segment_name(format_segment_name(last), size) == last
        assert parse_segment_name(format_segment_name(last + size), size) is None
