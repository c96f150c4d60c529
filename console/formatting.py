"""Formats sizes, counts, rates and times for people. Pure."""

import time
from datetime import UTC, datetime
from typing import Final

_CUT: Final = "..."
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def approximate_size(size_bytes: float) -> str:
    """Three digits and a binary unit: "1.5 GiB"."""
    power = 0
    while size_bytes >= 1000 and power < len(_BINARY_UNITS) - 1:
        size_bytes /= 1024
        power += 1
    digits = 0 if power == 0 or size_bytes >= 100 else 1
    return f"{size_bytes:.{digits}f} {_BINARY_UNITS[power]}"


def approximate_duration(seconds: float) -> str:
    """The duration in the largest unit that gives at least 2: "90 min", "3 d"."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def count_of(number: int, noun: str) -> str:
    """Number and noun: "1 segment", "60,000 segments"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def moment(milliseconds: int) -> str:
    """UTC, to the second; "-" for a time outside the calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError):
        return "-"


def local_minute(seconds: float) -> str:
    """A time in seconds since 1970, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` (at least 3) columns of a terminal: the middle of a longer text is left out."""
    from rich.cells import cell_len, set_cell_size  # here: a daemon formats dates, and loads no rich

    if cell_len(text) <= width:
        return text
    room = width - len(_CUT)
    head = set_cell_size(text, room // 2).rstrip()
    tail = ""
    while len(tail) < len(text) and cell_len(text[-len(tail) - 1 :]) <= room - cell_len(head):
        tail = text[-len(tail) - 1 :]
    return f"{head}{_CUT}{tail}"
