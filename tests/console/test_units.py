import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.console.units import (
    LARGEST,
    UnitError,
    format_duration_ms,
    format_size,
    parse_duration_ms,
    parse_size,
)

SIZES = [
    ("1GiB", 2**30),
    ("64 MiB", 2**26),
    ("500MB", 500_000_000),
    ("4kB", 4000),
    ("4KB", 4000),
    ("4096B", 4096),
    ("4096", 4096),
    (4096, 4096),
    ("0", 0),
    ("2TiB", 2**41),
]
BAD_SIZES = [
    ("1G", '"1GiB" (powers of 1024) or "1GB" (powers of 1000)'),
    ("1k", '"1KiB" (powers of 1024) or "1kB" (powers of 1000)'),
    ("1gib", '"1GiB"'),
    ("5b", '"5B"'),
    ("10 parsecs", "the unit 'parsecs' is not known"),
    ("10 rows", "the unit 'rows' is not known"),
    ("1.5GiB", "whole number"),
    ("", "whole number"),
    ("1  GiB", "whole number"),
    (" 1GiB", "whole number"),
    ("-1", "whole number"),
    ("1_000", "whole number"),
    ("\u0661GiB", "whole number"),
    ("1GiB\n", "whole number"),
    (-1, "is negative"),
    (True, "is not a size"),
    (1.5, "is not a size"),
    (None, "is not a size"),
    ("9999999999PiB", "is too large"),
    (2**63, "is too large"),
]
DURATIONS = [
    ("100ms", 100),
    ("30s", 30_000),
    ("5 m", 300_000),
    ("72h", 259_200_000),
    ("2d", 172_800_000),
    ("0s", 0),
]
BAD_DURATIONS = [
    ("30", "it has no unit"),
    ("30sec", "the unit 'sec' is not known"),
    ("30S", "the unit 'S' is not known"),
    ("1.5h", "whole number"),
    ("", "whole number"),
    ("-1s", "whole number"),
    (30, "in quotes"),
    (True, "in quotes"),
    (None, "in quotes"),
    ("99999999999999999999d", "is too large"),
]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_parse_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "advice"), BAD_SIZES)
def test_bad_sizes_say_what_to_write(text, advice):
    with pytest.raises(UnitError) as caught:
        parse_size(text)
    message = str(caught.value)
    assert advice in message
    assert repr(text) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1000, "1kB"),
        (4096, "4KiB"),
        (2**30, "1GiB"),
        (500_000_000, "500MB"),
        (5 * 10**12, "5TB"),
        (2**31 - 4096, "2097148KiB"),
        (128_000, "128kB"),
    ],
)
def test_format_size(size, text):
    assert format_size(size) == text


@given(st.integers(0, LARGEST))
def test_size_round_trip(size):
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 2**10), st.sampled_from(["KiB", "MiB", "GiB", "TiB", "PiB", "kB", "MB", "GB", "TB", "PB"]))
def test_size_text_never_grows(number, unit):
    text = f"{number}{unit}"
    assert len(format_size(parse_size(text))) <= len(text)


@pytest.mark.parametrize(("text", "milliseconds"), DURATIONS)
def test_parse_duration(text, milliseconds):
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(("text", "advice"), BAD_DURATIONS)
def test_bad_durations_say_what_to_write(text, advice):
    with pytest.raises(UnitError) as caught:
        parse_duration_ms(text)
    message = str(caught.value)
    assert advice in message
    assert repr(text) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (100, "100ms"), (1500, "1500ms"), (90_000, "90s"), (259_200_000, "3d")],
)
def test_format_duration(milliseconds, text):
    assert format_duration_ms(milliseconds) == text


@given(st.integers(0, LARGEST))
def test_duration_round_trip(milliseconds):
    assert parse_duration_ms(format_duration_ms(milliseconds)) == milliseconds
