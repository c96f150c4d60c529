"""Another process that has segments mapped, as a consumer has."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
keeps_descriptors = sys.argv[1] == "True"
addresses = []
for line in sys.stdin:
    path = line.rstrip("\\n")
    if path:
        fd = os.open(path, os.O_RDWR)
        addresses.append(libc.mmap(None, os.fstat(fd).st_size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0))
        assert addresses[-1] != ctypes.c_void_p(-1).value
        if not keeps_descriptors:
            os.close(fd)
    print(",".join(ctypes.string_at(address, 64).hex() for address in addresses), flush=True)
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
def a_reader(*, keeps_descriptors: bool = False) -> Iterator[Reader]:
    """It must not have died of anything in between. A mapping needs no descriptor, but many programs keep it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(keeps_descriptors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Reader(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0
        finally:
            process.kill()
