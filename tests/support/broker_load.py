"""The load of a broker whose disks are in trouble, and what is seen of it from outside."""

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commitlogfs.bench.rocketmq import Broker

_CREATED = re.compile(r"create mappedFile spent time\(ms\) (\d+)")


class Acknowledgements:
    """The times of acknowledgements: reads the size of the sender's list all the time."""

    LOOK_S = 0.02

    def __init__(self, acked: Path) -> None:
        self._acked = acked
        self._times: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def longest_gap_s(self, begin_s: float, end_s: float) -> float:
        return max(self._gaps(begin_s, end_s))

    def silence_s(self, begin_s: float, end_s: float, ordinary_s: float) -> float:
        """All time in gaps longer than `ordinary_s`."""
        return sum(gap for gap in self._gaps(begin_s, end_s) if gap > ordinary_s)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _gaps(self, begin_s: float, end_s: float) -> list[float]:
        times = [begin_s, *(one for one in self._times if begin_s < one < end_s), end_s]
        return [after - before for before, after in itertools.pairwise(times)]

    def _watch(self) -> None:
        size = 0
        while not self._ended.wait(self.LOOK_S):
            now = self._acked.stat().st_size
            if now > size:
                size = now
                self._times.append(time.monotonic())


class Creates:
    """How long a broker waited for its segments, by its own log: it names those above 10 ms."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen = 0

    def slowest_ms(self) -> float:
        """Since this was asked last."""
        text = self._broker.log_text(all_starts=True)
        new, self._seen = text[self._seen :], len(text)
        return max((float(ms) for ms in _CREATED.findall(new)), default=0.0)


@contextmanager
def repeated(work: Callable[[], object], pause_s: float = 0.2) -> Iterator[None]:
    """In a thread, again and again; an error shows at the end."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.wait(pause_s):
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not errors, errors


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that only keep the machine busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def hash_cold(files: Sequence[Path]) -> None:
    """As somebody who verifies a backup, from the disks."""
    _forget(files)
    subprocess.run(["sha256sum", *map(str, files)], check=True, capture_output=True)


def copy_cold(files: Sequence[Path], target: Path) -> None:
    """As a backup, from the disks."""
    _forget(files)
    command = ["rsync", "-a", "--ignore-times", *map(str, files), f"{target}/"]
    subprocess.run(command, check=True, capture_output=True)


def read_cold(path: Path) -> None:
    """A file that was not open before, and a page that is not in memory."""
    _forget([path])
    with path.open("rb", buffering=0) as file:
        assert file.read(1)


def _forget(files: Sequence[Path]) -> None:
    """Their pages leave the cache, so that the next reader goes to the disk."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
