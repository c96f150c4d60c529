"""Figures as people read them."""

import pytest

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (10 << 20, "10.0 MiB"),
        (500 << 40, "500 TiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_approximate_size(size, text):
    assert approximate_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d")]
)
def test_approximate_duration(seconds, text):
    assert approximate_duration(seconds) == text


def test_count_of():
    assert [count_of(n, "gap") for n in (0, 1, 60_000)] == ["0 gaps", "1 gap", "60,000 gaps"]
