"""The terminal: its modes, the alternate screen, frames drawn without flicker, keys."""

import contextlib
import os
import re
import termios
from typing import Final

from commitlogfs.mount.top.styled import Line
from commitlogfs.mount.top.watcher import Modes, Watcher

_ENTER: Final = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""Alternate screen, no cursor, no wrapping at the right margin, empty."""
_LEAVE: Final = b"\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN_UPDATE: Final = "\x1b[?2026h"
_END_UPDATE: Final = "\x1b[?2026l"
"""Terminals that know synchronised updates show a frame at once; others ignore these."""
_ERASE_RIGHT: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"
_KEYS: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "g": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "G": "end",
    "Q": "q",
    "P": "p",
    "S": "s",
    "h": "?",
}
_KEY: Final = re.compile(r"\x1b\[[0-9;?]*[@-~]|\x1bO.|.", re.DOTALL)


def _raw(modes: Modes) -> Modes:
    """The modes in which we draw: each key is read at once and not shown. Signals of keys stay."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    ours = list(characters)
    ours[termios.VMIN], ours[termios.VTIME] = 1, 0
    return [iflag, oflag, cflag, lflag & ~(termios.ICANON | termios.ECHO), ispeed, ospeed, ours]


class Screen:
    """The terminal of this process. Made before the process has a second thread."""

    def __init__(self, keys: int, output: int, *, styled: bool, encoding: str) -> None:
        self._keys, self._output = keys, output
        self._styled, self._encoding = styled, encoding
        self._former = termios.tcgetattr(keys)
        self._ours = _raw(self._former)
        self._watcher = Watcher(keys, self._former, self._ours, _LEAVE)
        self._shown: list[str] = []
        self._is_entered = False

    def fileno(self) -> int:
        return self._keys

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = os.get_terminal_size(self._output)
        return size.columns or 80, size.lines or 24

    def enter(self) -> None:
        """Take the terminal, also again after another program may have changed it."""
        self._watcher.entered()
        self._is_entered = True
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._ours)
        self._write(_ENTER)
        self._shown = []

    def leave(self) -> None:
        """Give the terminal back as it was."""
        if self._is_entered:
            self._write(_LEAVE)
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._former)
            self._is_entered = False
            self._watcher.left()

    def close(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self.leave()
        self._watcher.close()

    def forget(self) -> None:
        """Draw the next frame completely, as after a change of the terminal's size."""
        self._shown = []

    def draw(self, lines: list[Line]) -> None:
        """Show these lines, of at most the terminal's width. Only those that have changed are written."""
        columns, rows = self.size()
        new = [line.fitted(columns).ansi(styled=self._styled) for line in lines[:rows]]
        parts = []
        for index, text in enumerate(new):
            if index >= len(self._shown) or self._shown[index] != text:
                # Erasing at the right margin would take away the last character.
                end = _ERASE_RIGHT if lines[index].width < columns else ""
                parts.append(f"\x1b[{index + 1};1H{text}{end}")
        if len(new) < rows and len(new) != len(self._shown):
            parts.append(f"\x1b[{len(new) + 1};1H{_ERASE_BELOW}")
        self._shown = new
        if parts:
            text = "".join([_BEGIN_UPDATE, *parts, _END_UPDATE])
            self._write(text.encode(self._encoding, errors="replace"))

    def read_keys(self) -> list[str] | None:
        """The keys that were pressed: a character, or the name of a key; None if the terminal is gone."""
        try:
            read = os.read(self._keys, 1024)
        except OSError:
            return None
        if not read:
            return None
        pressed = _KEY.findall(read.decode(self._encoding, errors="replace"))
        return [_KEYS.get(key, key) for key in pressed]

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._output, data) :]
