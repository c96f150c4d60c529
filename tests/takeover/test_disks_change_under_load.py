"""A disk joins, is drained and leaves again and again while a process writes, syncs, reads and removes segments: it
meets no error, and the content of every segment stays."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import Ran
from support.kept import KeptMount
from support.pools import PoolMount, segment_bytes
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

SIZE = 256 * 1024
KEPT = 30
STEP = 32 * 1024
"""Bytes of a segment between two stores."""
_BROKER = """
import mmap, os, sys, time
directory, size, kept, step = sys.argv[1], *map(int, sys.argv[2:])
path = lambda index: f"{directory}/{index * size:020d}"
word = lambda index: b"%020d|" % index
index = 0
while True:
    fd = os.open(path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as mapped:
        for position in range(0, size, step):
            mapped[position : position + 21] = word(index)
            mapped.flush()
    os.fsync(fd)
    os.close(fd)
    for older in range(max(0, index - kept + 2), index):
        with open(path(older), "rb") as file:
            assert file.read(21) == word(older), older
    if index >= kept:
        os.unlink(path(index - kept))
    index += 1
    print(index, flush=True)
    time.sleep(0.05)
"""


class Load:
    def __init__(self, pool: PoolMount, log: Path) -> None:
        self._log = log
        numbers = map(str, (pool.segment_size, KEPT, STEP))
        command = [sys.executable, "-c", _BROKER, str(pool.mountpoint), *numbers]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def require_running(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-2000:]

    def made(self) -> int:
        self.require_running()
        return self._log.read_text().count("\n")

    def await_more(self, count: int) -> None:
        before = self.made()
        eventually(lambda: self.made() >= before + count)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def loaded(pool: PoolMount) -> Iterator[Load]:
    load = Load(pool, pool.workdir / "load.log")
    try:
        yield load
        load.require_running()
    finally:
        load.stop()


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_no_error_and_nothing_lost(keep: Callable[..., KeptMount], mode: str, rounds: int) -> None:
    kept = keep(3, segment_size=SIZE, settings={"passthrough": f'"{mode}"'})
    pool = kept.pool
    new = pool.workdir / "new"
    with loaded(pool) as load:
        load.await_more(KEPT)
        for number in range(4, 4 + rounds):
            require_done(pool.cli("disk", "add", new, pool.name))
            eventually(lambda: segments_on(new) > 2, shown=load.require_running)
            require_done(pool.cli("disk", "drain", number, pool.name, "--rate", "1GiB"))
            eventually(lambda: segments_on(new) == 0, shown=load.require_running)
            eventually(lambda number=number: removed(pool, number), shown=load.require_running)
            load.await_more(4)
            assert len(pool.status()["disks"]) == 3
    assert pool.status()["segments"]["gaps"] == []
    listed = sorted(int(name) // SIZE for name in os.listdir(pool.mountpoint))
    assert listed == list(range(listed[0], listed[-1] + 1))
    for index in listed[:-1]:
        content = pool.path(index).read_bytes()
        words = [content[position : position + 21] for position in range(0, SIZE, STEP)]
        assert words == [segment_bytes(index, 21)] * len(words)
        assert pool.disk_of(index) in (0, 1, 2)


def segments_on(directory: Path) -> int:
    return sum(name.isdecimal() for name in os.listdir(directory))


def removed(pool: PoolMount, number: int) -> bool:
    """Whether the command succeeds; it is refused while a moved segment is still open."""
    return pool.cli("disk", "remove", number, pool.name).status == 0


def require_done(ran: Ran) -> None:
    assert ran.status == 0, ran.err
