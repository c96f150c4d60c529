"""Output of verbs that show something: wrapped on a terminal, one line for each statement in a pipe."""

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from commitlogfs.console import settings
from commitlogfs.console.plain_text import is_plain_text
from commitlogfs.store.printable import printable

LEVEL_STYLES = {
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "problem": "bold red",
    "refuses": "bold red",
    "ALERT": "bold red",
}
_LEVEL_WIDTH = max(map(len, LEVEL_STYLES)) + 2


def make_console(**options: Any) -> Console:
    """The console for all output. It writes plain text if that is requested."""
    return Console(color_system=None if is_plain_text() else "auto", **options)


@contextlib.contextmanager
def waiting_line(text: str) -> Iterator[None]:
    """Show a line with a moving mark while the context lasts, on a terminal only."""
    if not sys.stderr.isatty() or settings.current().quiet:
        yield
        return
    with make_console(stderr=True).status(text):
        yield


class Output:
    """Standard output. `width` is None if lines are never wrapped: in a pipe or a file."""

    def __init__(self) -> None:
        self._console = make_console(soft_wrap=True, highlight=False)
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def line(self, text: str | Text, style: str = "") -> None:
        """Print a line of any length. Control characters in a plain text are shown as escapes."""
        shown = Text(printable(text, keep="\n")) if isinstance(text, str) else text
        self._console.print(shown, style=style)

    def paragraph(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Print one statement; the lines after its first are indented by `indent`."""
        self.line("\n".join(self._wrap(printable(text), " " * indent)), style)

    def report(self, level: str, text: str, remedy: str = "", *, code: str = "") -> None:
        """Print a finding: its level, its text, the remedy, and the code by which the documents name it."""
        text, remedy = printable(text), printable(remedy)
        suffix = f" [{code}]" if code else ""
        if self.width is None:
            self.line(f"{level}: {text}; {remedy}{suffix}" if remedy else f"{level}: {text}{suffix}")
            return
        text += suffix
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
