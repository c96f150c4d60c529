"""The growth that `status` shows: what is written, not what is reserved; and since when a log is idle."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount
from support.waiting import eventually

pytestmark = pytest.mark.mounted
BOTH_MODES = True

RECORD = b"a message".ljust(64 * 1024, b".")
STEP_S = 0.1


@pytest.mark.timing
def append(pool: PoolMount, index: int, seconds: float) -> tuple[int, float]:
    """As a broker appends to a mapped segment, flushing each time; how much, and the bytes per second."""
    fd = os.open(pool.path(index), os.O_RDWR)
    started, written = time.monotonic(), 0
    with mmap.mmap(fd, pool.segment_size) as mapped:
        while time.monotonic() - started < seconds:
            mapped[written : written + len(RECORD)] = RECORD
            mapped.flush(written, len(RECORD))
            written += len(RECORD)
            if written == 3 * len(RECORD):
                pool.ask("status")  # measured once near the beginning
            time.sleep(STEP_S)
    os.close(fd)
    return written, written / (time.monotonic() - started)


def test_the_end_of_the_log_on_reserved_segments(shared: PoolMount) -> None:
    """Three segments at once, as a broker makes them, and a few records in the first."""
    shared.make_segments(range(3), fill=False)
    empty = shared.ask("status")
    assert (empty["written_to"], empty["ingest_bytes_per_second"], empty["idle_since"]) == (None, 0.0, None)

    with shared.path(0).open("r+b") as segment, mmap.mmap(segment.fileno(), shared.segment_size) as mapped:
        for count in range(1, 5):
            mapped[(count - 1) * len(RECORD) : count * len(RECORD)] = RECORD
            mapped.flush()
            document = shared.ask("status")
            assert document["written_to"] == count * len(RECORD)
            assert document["idle_since"] is None

    # The next segment is written: the offset goes on there.
    with open(shared.path(1), "r+b") as segment:
        segment.write(b"x" * 1000)
        os.fsync(segment.fileno())
    assert shared.ask("status")["written_to"] == MIB + 1000


@pytest.mark.timing
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_the_rate_of_a_slow_writer_on_reserved_segments(make_pool: Callable[..., PoolMount], mode: str) -> None:
    pool = make_pool(3, settings={"passthrough": f'"{mode}"'})
    pool.start()
    pool.make_segments(range(3), fill=False)
    # Fewer bytes than the segment has: 64 KiB in 0.1 s at most.
    written, rate = append(pool, 0, 1.2)
    document = pool.ask("status")
    assert document["written_to"] == written
    assert 0.3 * rate < document["ingest_bytes_per_second"] < 2 * rate
    assert document["idle_since"] is None
    for disk in document["disks"]:
        if disk["eta_seconds"]:
            missing = disk["thresholds"][disk["next_threshold"]] / 100 * disk["total_bytes"]
            assert disk["eta_seconds"] < missing / document["ingest_bytes_per_second"] * 3


@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_a_log_that_nobody_writes_is_idle_since_then(make_pool: Callable[..., PoolMount], mode: str) -> None:
    """Also for a daemon that has just been started."""
    pool = make_pool(3, settings={"passthrough": f'"{mode}"'})
    pool.start()
    pool.make_segments(range(2))
    backing = Path(pool.disks[pool.disk_of(1)]) / pool.path(1).name
    before = time.time() - 3600
    pool.stop()
    os.utime(backing, (before, before))
    pool.start()
    document = eventually(lambda: pool.ask("status"))
    assert document["idle_since"] == pytest.approx(before, abs=0.01)
    assert document["ingest_bytes_per_second"] == 0.0
    assert all(disk["eta_seconds"] in (None, 0) for disk in document["disks"])
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(before))
    assert f", idle since {since}." in pool.cli("status", pool.name).out
