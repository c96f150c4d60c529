"""Reads files that it has open, again and again, from their disks. Runs as a separate process.

    python open_reader.py FILE ...

Each line on its input is answered by a line with the milliseconds that the slowest read has taken since the line
before.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PAUSE_S = 0.005
BLOCK = 4096


class OpenReader:
    """The process, as its user sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def slowest_ms(self) -> float:
        """The slowest read since this was asked last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def reading(files: Sequence[Path]) -> Iterator[OpenReader]:
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield OpenReader(process)
    finally:
        process.kill()
        process.communicate()


class _Slowest:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        with self._lock:
            self._seconds = max(self._seconds, seconds)

    def take(self) -> float:
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


def _read(files: Sequence[str], slowest: _Slowest) -> None:
    luck = random.Random(1)  # noqa: S311
    opened = [os.open(file, os.O_RDONLY) for file in files]
    while True:
        fd = luck.choice(opened)
        offset = luck.randrange(os.fstat(fd).st_size // BLOCK) * BLOCK
        os.posix_fadvise(fd, offset, BLOCK, os.POSIX_FADV_DONTNEED)
        began_s = time.monotonic()
        os.pread(fd, BLOCK, offset)
        slowest.note(time.monotonic() - began_s)
        time.sleep(PAUSE_S)


def _main() -> None:
    slowest = _Slowest()
    threading.Thread(target=_read, args=(sys.argv[1:], slowest), daemon=True).start()
    for _ in sys.stdin:
        print(f"{slowest.take() * 1000:.1f}", flush=True)


if __name__ == "__main__":
    _main()
