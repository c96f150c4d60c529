"""How look verbs print: wrapped by words on a terminal, one line per statement in a pipe."""

import shutil
import sys
import textwrap

from rich.console import Console
from rich.text import Text

LEVEL_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red", "refuses": "bold red"}
_LEVEL_WIDTH = max(map(len, LEVEL_STYLES)) + 2


class Output:
    """Standard output. `width` is None where lines are never to be broken: in a pipe or a file."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True, highlight=False)
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def line(self, text: str | Text, style: str = "") -> None:
        """As it is, however long."""
        self._console.print(Text(text) if isinstance(text, str) else text, style=style)

    def paragraph(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """One statement; the lines after its first are indented by `indent`."""
        self.line("\n".join(self._wrap(text, " " * indent)), style)

    def report(self, level: str, text: str, remedy: str = "") -> None:
        """A finding: its level, what it is, and what to do about it."""
        if self.width is None:
            self.line(f"{level}: {text}: {remedy}" if remedy else f"{level}: {text}")
            return
        margin = " " * _LEVEL_WIDTH
        first, *rest = self._wrap(margin + text, margin)
        advice = self._wrap(f"{margin}-> {remedy}", f"{margin}   ") if remedy else []
        self.line(Text.assemble((level.ljust(_LEVEL_WIDTH), LEVEL_STYLES[level]), first[_LEVEL_WIDTH:]))
        for line in (*rest, *advice):
            self.line(line)

    def _wrap(self, text: str, margin: str) -> list[str]:
        if self.width is None:
            return [text]
        return textwrap.wrap(
            text,
            max(self.width, len(margin) + 20),
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
