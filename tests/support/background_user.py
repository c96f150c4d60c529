"""Uses a mount as people do, besides a broker, and checks each step. Runs as a separate process.

    python background_user.py MOUNTPOINT SEGMENT_SIZE

It writes segments far after the log's end, and reads those of the log. It runs until its input ends, then removes
its segments, prints the number of rounds and exits with 0. An error ends it at once.
"""

import contextlib
import mmap
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FIRST = 1 << 20
"""Index of its first segment."""


class BackgroundUser:
    def __init__(self, mountpoint: Path, segment_size: int) -> None:
        self._mountpoint = mountpoint
        self._size = segment_size
        self._mine: list[int] = []

    def round(self, index: int) -> None:
        if index % 2:
            self._copy(index)
        else:
            self._make(index)
        self._mine.append(index)
        self._read_some()
        self._check_listing()
        assert os.statvfs(self._mountpoint).f_blocks > 0
        if len(self._mine) > 2:
            self._remove(self._mine.pop(0), held=index % 3 == 0)

    def remove_all(self) -> None:
        while self._mine:
            self._remove(self._mine.pop(), held=False)

    def _path(self, index: int) -> Path:
        return self._mountpoint / f"{index * self._size:020d}"

    def _make(self, index: int) -> None:
        fd = os.open(self._path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(fd, self._size)
            with mmap.mmap(fd, self._size) as mapped:
                mapped[:] = self._content(index)
                mapped.flush()
        finally:
            os.close(fd)

    def _copy(self, index: int) -> None:
        """As rsync does."""
        path = self._path(index)
        copy = path.with_name(f".{path.name}.aB3xYz")
        copy.write_bytes(self._content(index))
        os.utime(copy, (index, index))
        copy.rename(path)
        assert path.stat().st_mtime == index

    def _remove(self, index: int, *, held: bool) -> None:
        path = self._path(index)
        with path.open("rb") if held else contextlib.nullcontext() as file:
            if not held:
                assert path.read_bytes() == self._content(index)
            path.unlink()
            assert not path.exists()
            if file is not None:
                assert file.read() == self._content(index)

    def _read_some(self) -> None:
        """Segments of the log; its oldest may no longer exist."""
        names = [name for name in os.listdir(self._mountpoint) if int(name) < FIRST * self._size]
        for name in random.Random(len(names)).sample(names, min(2, len(names))):  # noqa: S311
            with contextlib.suppress(FileNotFoundError), (self._mountpoint / name).open("rb") as file:
                assert len(file.read(4096)) == 4096

    def _check_listing(self) -> None:
        for name in os.listdir(self._mountpoint):
            with contextlib.suppress(FileNotFoundError):
                # Between a broker's create and its ftruncate a segment is empty.
                assert (self._mountpoint / name).stat().st_size in (0, self._size), name

    def _content(self, index: int) -> bytes:
        word = b"%020d|" % index
        return (word * (self._size // len(word) + 1))[: self._size]


def _numbers() -> Iterator[int]:
    """Until the input ends."""
    index = FIRST
    while not select.select([sys.stdin], [], [], 0)[0]:
        yield index
        index += 1


def main(mountpoint: Path, segment_size: int) -> None:
    user = BackgroundUser(mountpoint, segment_size)
    rounds = 0
    for index in _numbers():
        user.round(index)
        rounds += 1
    user.remove_all()
    print(rounds)


@contextlib.contextmanager
def running(mountpoint: Path, segment_size: int) -> Iterator[None]:
    """One that works until the end of the block, and has met no error then."""
    command = [sys.executable, __file__, str(mountpoint), str(segment_size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        try:
            yield
            out, err = other.communicate()
        finally:
            other.kill()
    assert other.returncode == 0, err.decode()
    assert int(out) > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
