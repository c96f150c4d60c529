"""Lines of a frame: pieces of text with a style, of a known width in columns. Pure.

The libraries that would draw them take longer to load than a frame takes to be drawn.
"""

import textwrap
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rich.cells import cell_len, set_cell_size

from commitlogfs.store.printable import printable

RESET: Final = "\x1b[0m"
CUT: Final = "~"
"""Ends a text that was too long."""


class Style(Enum):
    """Parameters of SGR (ECMA-48). No style alone carries a meaning: the text says the same."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    GOOD = "32"
    ATTENTION = "33"
    BAD = "31"
    ALARM = "1;31"
    TITLE = "1;7"
    HEADING = "1;4"


@dataclass(slots=True)
class Line:
    pieces: list[tuple[str, Style]] = field(default_factory=list)

    def add(self, text: str, style: Style = Style.PLAIN) -> "Line":
        """Append a text; control characters in it become escapes."""
        if text:
            self.pieces.append((printable(text), style))
        return self

    @property
    def width(self) -> int:
        return sum(cell_len(text) for text, _ in self.pieces)

    def fitted(self, width: int) -> "Line":
        """The line in at most `width` columns."""
        if self.width <= width:
            return self
        line, room = Line(), max(0, width - len(CUT))
        for text, style in self.pieces:
            part = text if cell_len(text) <= room else set_cell_size(text, room)
            line.add(part, style)
            room -= cell_len(part)
            if not room:
                break
        return line.add(CUT if width else "")

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces).rstrip()

    def ansi(self, *, styled: bool) -> str:
        """The line for a terminal, without an end of line."""
        if not styled:
            return "".join(text for text, _ in self.pieces)
        return "".join(
            text if style is Style.PLAIN else f"\x1b[{style.value}m{text}{RESET}" for text, style in self.pieces
        )


def paragraph(text: str, width: int, style: Style = Style.PLAIN, *, limit: int, indent: str = "") -> list[Line]:
    """The text in at most `limit` lines of `width` columns."""
    wrapped = textwrap.wrap(printable(text), max(20, width), subsequent_indent=indent, break_on_hyphens=False)
    lines = [Line().add(part, style) for part in wrapped[:limit]]
    if len(wrapped) > limit:
        lines[-1] = Line().add(f"{wrapped[limit - 1]} {wrapped[limit].strip()}", style).fitted(width)
    return lines
