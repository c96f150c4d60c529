"""Another process that has segments mapped, as a consumer has."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import mmap, os, sys
maps = []
for line in sys.stdin:
    path = line.rstrip("\\n")
    if path:
        fd = os.open(path, os.O_RDWR)
        maps.append(mmap.mmap(fd, 0))
        os.close(fd)
    print(",".join(m[:64].hex() for m in maps), flush=True)
"""


class Reader:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hold(self, path: Path) -> None:
        """Map it, until the end."""
        self._tell(str(path))

    def look(self) -> list[bytes]:
        """The first 64 bytes of each that is held."""
        return [bytes.fromhex(text) for text in self._tell("").split(",")]

    def _tell(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the reader has died"
        return answer.rstrip("\n")


@contextmanager
def a_reader() -> Iterator[Reader]:
    """It must not have died of anything in between."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Reader(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(10) == 0
        finally:
            process.kill()
