import math
import os

from hypothesis import given
from hypothesis import strategies as st
from support.java import used_percent

from commitlogfs.store.files.usage import DiskUsage, measure_usage

MAX_BYTES = 2**63 // 100 - 1
"""Beyond this RocketMQ's own multiplication overflows a long (92 PB)."""


@st.composite
def usages(draw):
    total = draw(st.integers(1, MAX_BYTES))
    free = draw(st.integers(0, total))
    return DiskUsage(total, free, draw(st.integers(0, free)))


@given(usages())
def test_the_ratio_rounded_up_is_rocketmqs_percent(usage):
    theirs = used_percent(usage.total_bytes, usage.free_bytes, usage.available_bytes)
    if usage.entire_bytes == 0:
        assert theirs == -1
        assert usage.used_ratio == 1
    else:
        assert math.ceil(usage.used_ratio * 100) == theirs


@given(usages(), st.integers(0, 100))
def test_at_or_above_is_exact(usage, percent):
    if usage.entire_bytes:
        assert usage.is_at_or_above(percent) == (usage.used_bytes * 100 >= percent * usage.entire_bytes)


def test_one_byte_decides():
    assert DiskUsage(100_000, 15_000, 15_000).is_at_or_above(85)
    assert not DiskUsage(100_000, 15_001, 15_001).is_at_or_above(85)


def test_roots_reserve_counts_as_neither_used_nor_available():
    usage = DiskUsage(total_bytes=1000, free_bytes=500, available_bytes=450)
    assert usage.used_bytes == 500
    assert usage.entire_bytes == 950
    assert usage.used_percent == 500 / 950 * 100


@given(usages(), st.integers(-10, MAX_BYTES))
def test_pending_space_counts_as_free_and_never_as_more_than_is_used(usage, pending):
    after = usage.with_pending_free(pending)
    assert after.entire_bytes == usage.entire_bytes
    assert after.total_bytes == usage.total_bytes
    assert 0 <= after.used_bytes <= usage.used_bytes
    assert usage.used_bytes - after.used_bytes == max(0, min(pending, usage.used_bytes))
    assert after.available_bytes - usage.available_bytes == usage.used_bytes - after.used_bytes


def test_a_measurement_is_what_the_system_says(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        usage = measure_usage(fd)
    finally:
        os.close(fd)
    st_now = os.statvfs(tmp_path)
    assert usage.total_bytes == st_now.f_blocks * st_now.f_frsize
    assert 0 <= usage.available_bytes <= usage.free_bytes <= usage.total_bytes
