"""A broker is killed at each step of a roll: nothing of it stays open, and the segments that it made ahead stay."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.pools import MIB, PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = pytest.mark.mounted

STEPS_OF_A_SEGMENT = 5
AHEAD = 2
_BROKER = """
import mmap, os, signal, sys
directory, size, first, left, number = sys.argv[1], *map(int, sys.argv[2:])

def step():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), number)

mapped = []
for name in sorted(name for name in os.listdir(directory) if name.isdigit()):
    mapped.append(mmap.mmap(os.open(f"{directory}/{name}", os.O_RDWR), size))
for index in range(first, first + 3):
    fd = os.open(f"{directory}/{index * size:020d}", os.O_RDWR | os.O_CREAT, 0o644)
    step()
    os.ftruncate(fd, size)
    step()
    mapped.append(mmap.mmap(fd, size))
    step()
    mapped[-1][:21] = b"%020d|" % index
    step()
    mapped[-1].flush()
    step()
"""


def descriptors(pool: PoolMount) -> int:
    assert pool.daemon is not None
    return len(os.listdir(f"/proc/{pool.daemon.pid}/fd"))


def listed(pool: PoolMount) -> list[int]:
    """Indexes of the listed segments, each of which is whole."""
    for path in pool.mountpoint.iterdir():
        assert path.stat().st_size == MIB, path.name
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS], ids=["killed", "SIGBUS"])
def test_nothing_stays_open_and_segments_made_ahead_stay(
    make_pool: Callable[..., PoolMount], mode: str, number: signal.Signals
) -> None:
    pool = make_pool(3, settings={"passthrough": f'"{mode}"'})
    pool.start()
    before = descriptors(pool)
    first = 0
    for step in range(1, AHEAD * STEPS_OF_A_SEGMENT + 1):
        arguments = (pool.mountpoint, pool.segment_size, first, step, int(number))
        ran = subprocess.run([sys.executable, "-c", _BROKER, *map(str, arguments)], check=False)
        assert ran.returncode == -number
        eventually(lambda: descriptors(pool) <= before)
        opened, within = divmod(step - 1, STEPS_OF_A_SEGMENT)
        last = first + opened - (within == 0)  # a segment without a size is not listed
        assert listed(pool) == list(range(last + 1))
        first = last + 1
    assert pool.status()["segments"]["retired"] == 0
    for index in range(first):
        assert pool.path(index).read_bytes()[:21] in (segment_bytes(index, 21), bytes(21))
        pool.path(index).unlink()
    eventually(lambda: pool.status()["daemon"]["passthrough_files"] == 0)
    eventually(lambda: not [name for disk in pool.disks for name in os.listdir(disk)])
