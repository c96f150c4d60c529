"""The table of disks: which columns fit on the terminal, and their cells. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from commitlogfs.console.formatting import approximate_duration, approximate_size, shortened
from commitlogfs.mount.top.figures import LEVELS, DiskFigures, Figures
from commitlogfs.mount.top.styled import Line, Style
from commitlogfs.mount.views.status_text import describe_disk
from commitlogfs.store.printable import printable

_NONE: Final = "-"
_UNKNOWN: Final = "?"
_SMALLEST_BAR, _NARROW_BAR, _LARGEST_BAR = 5, 8, 24
_SHORTEST_PATH: Final = 6
_SHORTEST_OUTLOOK: Final = 30
_WELL: Final = frozenset({"rw", _NONE})
_ATTENTION: Final = frozenset({"ro", "cordoned", "draining", "joining", "leaving", "slow"})


class Glyphs:
    """The characters of a bar."""

    def __init__(self, *, unicode: bool) -> None:
        self.full, self.empty, self.mark = ("█", "·", "│") if unicode else ("#", ".", "|")


@dataclass(frozen=True, slots=True)
class Column:
    short: str
    long: str
    """Heading if there is room for it."""
    cell: Callable[[DiskFigures], str]
    is_right: bool = True
    style: Callable[[DiskFigures], Style] = lambda _disk: Style.PLAIN
    least: int = 0
    """Width of its usual cells, so that the table does not move from frame to frame."""


def bytes_per_second(value: float | None) -> str:
    """At most four characters, in units of 1024: "0", "512", "1.2K", "31M"."""
    if value is None:
        return _NONE
    for unit in ("", "K", "M", "G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.0f}T"


def operation_time(seconds: float | None) -> str:
    """At most five characters: "85us", "1.2ms", "320ms", "2.5s"."""
    if seconds is None:
        return _NONE
    if seconds < 5e-6:
        return "0ms"  # the kernel counts whole milliseconds
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        value = seconds * factor
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit == "ms" and value < 9.95 else f"{value:.0f}{unit}"
    return f"{seconds:.1f}s" if seconds < 99.95 else f"{min(seconds, 9999):.0f}s"


def short_duration(seconds: float) -> str:
    """At most four characters: "90m", "3d"."""
    days = seconds / 86400
    if days >= 999:
        return ">99y" if days > 36500 else f"{days / 365:.0f}y"
    return approximate_duration(seconds).replace(" min", "m").replace(" ", "")


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Each path without the directories that all of them begin and end with: "data1" for /data1/commitlog."""
    parts = {path: PurePath(path).parts for path in paths}
    if len(parts) < 2:
        return {path: path for path in paths}
    shortest = min(map(len, parts.values()))
    begin = next((at for at in range(shortest) if len({part[at] for part in parts.values()}) > 1), shortest - 1)
    end = next(
        (at for at in range(shortest - begin - 1) if len({part[-1 - at] for part in parts.values()}) > 1),
        shortest - begin - 1,
    )
    return {path: "/".join(part[begin : len(part) - end]) for path, part in parts.items()}


def level_of(disk: DiskFigures) -> str:
    """The highest threshold that the disk has reached; empty if it is below all."""
    used, thresholds = disk.used_percent, disk.status.get("thresholds")
    if used is None or thresholds is None:
        return ""
    return next((level for level in reversed(LEVELS) if used >= thresholds[level]), "")


def outlook(disk: DiskFigures) -> str:
    """The next threshold and when it is reached, or the one because of which the disk gets no new segments."""
    if level_of(disk) == "full":
        return "FULL"
    if disk.directory is None and disk.status.get("refusal") == "above-force":
        return "skipped"
    if disk.next_threshold is None:
        return _NONE
    eta = "" if disk.eta_s is None else f" {short_duration(disk.eta_s)}"
    return f"{disk.next_threshold}{eta}"


def work_of(disk: DiskFigures, document: dict[str, Any] | None) -> str:
    """The drain, move or scrub that uses this disk; empty without one."""
    if document is None:
        return ""
    texts = []
    move = (document.get("moves") or {}).get("current")
    if move is not None and disk.path in (move["from"], move["to"]):
        way = "to" if disk.path == move["to"] else "from"
        texts.append(f"move {way} {_share(move['done_bytes'], move['size'])}")
    drain = disk.status.get("drain")
    if drain is not None:
        texts.append(f"drain {drain['segments_left']:,} left")
    scrub = document.get("scrub") or {}
    if scrub.get("state") in ("running", "paused"):
        texts += [
            f"scrub {_share(one['done_bytes'], one['done_bytes'] + one['left_bytes'])}"
            for one in scrub["disks"]
            if one["path"] == disk.path and not one["ended"]
        ]
    return ", ".join(texts)


def _share(done: float, whole: float) -> str:
    return f"{100 * done / whole:.0f}%" if whole else "0%"


def sort_disks(disks: Sequence[DiskFigures], order: str) -> list[DiskFigures]:
    """The disks by number, or the greatest first of what SORTS names."""
    return sorted(disks, key=_KEYS[order])


def _by_eta(disk: DiskFigures) -> tuple[float, int]:
    return (float("inf") if disk.eta_s is None else disk.eta_s, disk.number)


_KEYS: Final[dict[str, Callable[[DiskFigures], tuple[float, int]]]] = {
    "number": lambda disk: (0, disk.number),
    "used": lambda disk: (-(disk.used_percent or 0), disk.number),
    "next threshold": _by_eta,
    "utilisation": lambda disk: (-(disk.work.busy_ratio if disk.work else 0), disk.number),
    "written": lambda disk: (-(disk.work.written_bytes_per_second if disk.work else 0), disk.number),
}
SORTS: Final = tuple(_KEYS)


def _outlooks(disks: Sequence[DiskFigures], document: dict[str, Any] | None) -> dict[str, str]:
    if document is None:
        return {}
    return {disk.path: printable(describe_disk(disk.status, document)) for disk in disks}


def _used(disk: DiskFigures) -> str:
    return _UNKNOWN if disk.used_percent is None else f"{disk.used_percent:.0f}%"


def _used_style(disk: DiskFigures) -> Style:
    levels = {"full": Style.ALARM, "force": Style.BAD, "clean": Style.ATTENTION}
    return levels.get(level_of(disk), Style.PLAIN)


def _state_style(disk: DiskFigures) -> Style:
    if disk.state in _WELL:
        return Style.PLAIN
    return Style.ATTENTION if disk.state in _ATTENTION else Style.ALARM


def _segments(disk: DiskFigures) -> str:
    return _UNKNOWN if disk.segments is None else f"{disk.segments}"


def _of_work(text: Callable[[Any], str]) -> Callable[[DiskFigures], str]:
    return lambda disk: _NONE if disk.work is None else text(disk.work)


def _queue(queue: float) -> str:
    return f"{queue:.1f}" if queue < 9.95 else f"{queue:.0f}"


_NUMBER = Column("#", "#", lambda disk: str(disk.number))
_STATE = Column("state", "state", lambda disk: disk.state, is_right=False, style=_state_style)
_AFTER_BAR: Final = (
    Column("next", "next threshold", outlook, is_right=False, style=_used_style, least=9),
    Column("segs", "segments", _segments),
    Column("read", "read/s", _of_work(lambda work: bytes_per_second(work.read_bytes_per_second)), least=4),
    Column("write", "written/s", _of_work(lambda work: bytes_per_second(work.written_bytes_per_second)), least=5),
    Column("t/rd", "per read", _of_work(lambda work: operation_time(work.read_s)), least=5),
    Column("t/wr", "per write", _of_work(lambda work: operation_time(work.write_s)), least=5),
    Column("util", "utilised", _of_work(lambda work: f"{100 * work.busy_ratio:.0f}%")),
    Column("q", "queue", _of_work(lambda work: _queue(work.queue)), least=3),
)
_FREE = Column(
    "free",
    "free",
    lambda disk: _UNKNOWN if disk.available_bytes is None else approximate_size(disk.available_bytes),
)
_DEVICE = Column("device", "device", lambda disk: disk.device or _NONE, is_right=False)


@dataclass(frozen=True, slots=True)
class _Laid:
    """A column with its width."""

    column: Column
    heading: str
    width: int


class Table:
    """The rows of these disks on a terminal of `width` columns. Every row is one line."""

    def __init__(self, figures: Figures, disks: Sequence[DiskFigures], width: int, glyphs: Glyphs) -> None:
        self._disks = disks
        self._glyphs = glyphs
        self._bar = _NARROW_BAR
        names = short_names([disk.path for disk in disks])
        after = self._columns(figures.document, names, width)
        self._is_long = self._room(after, names, width, is_long=True) >= 0
        self._outlooks = {} if figures.trouble else _outlooks(disks, figures.document)
        self._outlook = self._outlook_width(self._room(after, names, width, is_long=self._is_long))
        taken = self._outlook + 2 if self._outlook else 0
        full = {disk.path: disk.path for disk in disks}
        self._paths = full if self._room(after, full, width, is_long=self._is_long) >= taken else names
        spare = self._room(after, self._paths, width, is_long=self._is_long) - taken
        self._bar = max(_SMALLEST_BAR, min(_LARGEST_BAR, _NARROW_BAR + spare))
        spare = min(0, self._room(after, self._paths, width, is_long=self._is_long))
        longest = max((cell_len(printable(path)) for path in self._paths.values()), default=0)
        self._path_width = max(len("disk"), min(longest, max(_SHORTEST_PATH, longest + spare)))
        self._before = [self._laid(column) for column in (_NUMBER, _STATE)]
        self._after = [self._laid(column) for column in after]

    def _columns(self, document: dict[str, Any] | None, names: dict[str, str], width: int) -> list[Column]:
        """The columns after the bar. Those that not everybody needs are in the order of their worth."""
        work = Column("work", "work", lambda disk: work_of(disk, document), is_right=False)
        columns = [*_AFTER_BAR]
        for extra in [*([work] if any(map(work.cell, self._disks)) else []), _FREE, _DEVICE]:
            if self._room([*columns, extra], names, width) >= 0:
                columns.append(extra)
        return columns

    def _outlook_width(self, spare: int) -> int:
        """Width of the column that says in words what happens next; 0 without one."""
        width = min(spare - 2, max(map(cell_len, self._outlooks.values()), default=0))
        return width if width >= _SHORTEST_OUTLOOK else 0

    def heading(self) -> Line:
        number, state = self._before
        cells = [number.heading.rjust(number.width), "disk".ljust(self._path_width)]
        cells += [state.heading.ljust(state.width), "used".ljust(self._bar + 5)]
        cells += [_aligned(laid.column, laid.heading, laid.width) for laid in self._after]
        if self._outlook:
            cells.append(" what happens next")
        return Line().add(" ".join(cells), Style.HEADING)

    def row(self, disk: DiskFigures) -> Line:
        number, state = self._before
        line = Line().add(number.column.cell(disk).rjust(number.width) + " ")
        path = printable(self._paths[disk.path])
        line.add(set_cell_size(shortened(path, max(4, self._path_width)), self._path_width) + " ")
        line.add(state.column.cell(disk).ljust(state.width), state.column.style(disk)).add(" ")
        self._add_bar(line, disk)
        for laid in self._after:
            text = printable(laid.column.cell(disk))
            line.add(" ").add(_aligned(laid.column, text, laid.width), laid.column.style(disk))
        if self._outlook:
            line.add("  ").add(Line().add(self._outlooks[disk.path]).fitted(self._outlook).text)
        return line

    def _add_bar(self, line: Line, disk: DiskFigures) -> None:
        """The fill level, with the thresholds that are not reached, and its percent."""
        used, thresholds = disk.used_percent, disk.status.get("thresholds", {})
        filled = 0 if used is None else min(self._bar, round(used * self._bar / 100))
        marks = {min(self._bar - 1, int(thresholds[level] * self._bar / 100)) for level in LEVELS if thresholds}
        rest = "".join(self._glyphs.mark if at in marks else self._glyphs.empty for at in range(filled, self._bar))
        line.add(self._glyphs.full * filled, _used_style(disk)).add(rest)
        line.add(f" {_used(disk):>4}", _used_style(disk))

    def _laid(self, column: Column, *, is_long: bool | None = None) -> _Laid:
        heading = column.long if (self._is_long if is_long is None else is_long) else column.short
        cells = [cell_len(printable(column.cell(disk))) for disk in self._disks]
        return _Laid(column, heading, max(len(heading), column.least, *cells))

    def _room(self, after: Sequence[Column], paths: dict[str, str], width: int, *, is_long: bool = False) -> int:
        """The columns that would be left; negative if there are too few."""
        laid = [self._laid(column, is_long=is_long) for column in (_NUMBER, _STATE, *after)]
        path = max([len("disk"), *(cell_len(printable(path)) for path in paths.values())])
        widths = [*(one.width for one in laid), path, self._bar + 5]
        return width - sum(widths) - (len(widths) - 1)


def _aligned(column: Column, text: str, width: int) -> str:
    padding = " " * max(0, width - cell_len(text))
    return padding + text if column.is_right else text + padding
