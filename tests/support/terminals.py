"""Commands on a terminal of 80 columns."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from support.command_line import COMMAND
from support.pools import PoolMount
from support.waiting import PATIENCE_S

_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FIGURES = re.compile(
    r"(draining|rebalancing) +\S+ [\d.]+ \w+ done, [\d.]+ MiB left(, [\d.]+ \w+/s)?, \d+ (s|min|h) to go *\r"
)
"""One whole line of the progress of moves."""


class Terminal:
    """A command whose output is a terminal."""

    def __init__(self, pool: PoolMount, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        """`env`: instead of the environment of the pool."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**variables, **(pool.env if env is None else env), "TERM": "xterm"},
        )
        os.close(slave)
        self._output = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._master, 4096):
                self._output += part
        except OSError:  # the command has ended
            pass

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> bytes:
        """Everything that the command has written."""
        return self._output

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def text(self) -> str:
        return _STYLES.sub("", self._output.decode(errors="replace"))

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._master)


@contextmanager
def terminal(pool: PoolMount, *arguments: object) -> Iterator[Terminal]:
    shown = Terminal(pool, *arguments)
    try:
        yield shown
    finally:
        shown.close()
