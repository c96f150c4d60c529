"""A wait in the kernel that no signal ends, as for a disk that hangs, without such a disk.

posix_spawn(3) waits, as vfork(2), until its child has called execve(2). Before that, this one opens a FIFO to which
nobody writes.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

_ACTIONS_BYTES: Final = 1024
"""More than a posix_spawn_file_actions_t has."""


@contextmanager
def wait_in_kernel(directory: Path) -> Iterator[Callable[[], None]]:
    """A function that waits there, in the thread that calls it, until the end of the context. To be called once."""
    with _fifo(directory) as fifo:
        yield partial(_wait, fifo)


@contextmanager
def process_in_kernel(directory: Path) -> Iterator[int]:
    """Id of a process whose only thread waits there, or will do so soon, until the end of the context."""
    with _fifo(directory) as fifo:
        process = subprocess.Popen([sys.executable, __file__, fifo])
        yield process.pid
    assert process.wait() == 0


@contextmanager
def _fifo(directory: Path) -> Iterator[str]:
    fifo = os.fspath(directory / "fifo")
    os.mkfifo(fifo)
    try:
        yield fifo
    finally:
        os.close(os.open(fifo, os.O_WRONLY))


def _wait(fifo: str) -> None:
    libc, pid = ctypes.CDLL(None), ctypes.c_int()
    actions = ctypes.create_string_buffer(_ACTIONS_BYTES)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(fifo), os.O_RDONLY, 0)
    arguments, environment = (ctypes.c_char_p * 2)(b"true", None), (ctypes.c_char_p * 1)(None)
    failed = libc.posix_spawnp(ctypes.byref(pid), b"true", actions, None, arguments, environment)
    assert not failed, os.strerror(failed)
    os.waitpid(pid.value, 0)


if __name__ == "__main__":
    _wait(sys.argv[1])
