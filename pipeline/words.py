"""Numbers, times and names as people read them. Pure; the same manners as `commitlogfs`."""

from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len, set_cell_size

_CUT: Final = "..."


def approximate_size(size_bytes: float) -> str:
    """Three digits and a binary unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size_bytes >= 1000 and len(units) > 1:
        size_bytes /= 1024
        del units[0]
    unit = units[0]
    return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"


def count_of(number: int, noun: str) -> str:
    """ "1 segment", "60,000 segments"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def moment(milliseconds: int) -> str:
    """UTC, to the second; "-" beyond any calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return "-"


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns of a terminal, at least three: what is too long loses its middle."""
    if cell_len(text) <= width:
        return text
    room = width - len(_CUT)
    head = set_cell_size(text, room // 2).rstrip()
    tail = ""
    while len(tail) < len(text) and cell_len(text[-len(tail) - 1 :]) <= room - cell_len(head):
        tail = text[-len(tail) - 1 :]
    return f"{head}{_CUT}{tail}"


def plain(text: str) -> str:
    """In one line. Names come from producers: nothing in them may steer a terminal or begin a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
