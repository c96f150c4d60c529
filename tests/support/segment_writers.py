"""A process that writes segments one after the other, as a broker that syncs does, and removes the oldest."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.pools import PoolMount

KEPT = 40
"""Segments that are there at a time."""

_WRITER = """
import contextlib, os, sys
directory, size, kept = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
index = 0
while True:
    fd = os.open(f"{directory}/{index * size:020d}", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, size)
    except OSError:  # given up, because the disk has not answered in time: another one takes it
        os.close(fd)
        continue
    for part in range(8):
        os.pwrite(fd, os.urandom(32768), part * 32768)
        os.fdatasync(fd)
    os.close(fd)
    index += 1
    if index >= kept:
        with contextlib.suppress(OSError):  # it has not answered in time, and removes it later
            os.unlink(f"{directory}/{(index - kept) * size:020d}")
"""


@contextmanager
def written(pool: PoolMount) -> Iterator[None]:
    """The process runs meanwhile. It bears a disk that is too slow for the deadlines of removals and resizes."""
    command = [sys.executable, "-c", _WRITER, str(pool.mountpoint), str(pool.segment_size), str(KEPT)]
    writer = subprocess.Popen(command)
    try:
        yield
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


def newest(pool: PoolMount) -> int:
    """Base offset of the newest segment."""
    return max(int(path.name) for path in pool.mountpoint.iterdir() if path.name.isdigit())
