"""Segments of each disk as a picture: one row for each disk, columns in the order of the log. Pure.

As long as there is room, a segment has one cell of one or several characters. Beyond that a column stands for
several segments and is shaded by how many of them the disk holds, from one to the most that any disk holds in any
column: an even distribution looks even, whatever the number of disks. Missing segments have a row of their own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

WIDEST_CELL: Final = 4
LONGEST_LABEL: Final = 28
_SHADES: Final = 4


@dataclass(frozen=True, slots=True)
class Symbols:
    """`shades` from sparse to dense; its last one is also a whole segment. `ruler`: left, middle, tick, right."""

    shades: str
    nothing: str
    gap: str
    ruler: str
    ellipsis: str


BLOCKS: Final = Symbols("░▒▓█", "·", "×", "└─┴┘", "…")  # noqa: RUF001 - the sign is meant
ASCII: Final = Symbols("-+*#", ".", "x", "|-+|", "~")


def symbols_for(encoding: str | None) -> Symbols:
    """Blocks if the output can show them."""
    try:
        "".join((BLOCKS.shades, BLOCKS.nothing, BLOCKS.gap, BLOCKS.ruler, BLOCKS.ellipsis)).encode(
            encoding or "ascii"
        )
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True)
class Row:
    """One disk: its label and count, padded to the same width in all rows, and its cells."""

    label: str
    cells: str


@dataclass(frozen=True, slots=True)
class Picture:
    rows: tuple[Row, ...]
    gaps: Row | None
    """Marks the columns with missing segments; None for a log without gaps."""
    axis: tuple[str, ...]
    """Ruler and log offsets, already indented."""
    legend: tuple[str, ...]


def find_gaps(bases: Sequence[int], segment_size: int) -> list[tuple[int, int]]:
    """Missing ranges [start, end) between base offsets in ascending order."""
    return [(before + segment_size, after) for before, after in pairwise(bases) if after - before > segment_size]


def draw(
    disks: Sequence[tuple[int, str]],
    segments: Sequence[tuple[int, int]],
    segment_size: int,
    width: int,
    symbols: Symbols = BLOCKS,
) -> Picture:
    """`disks` as (number, path); `segments` as (base offset, disk number), ascending, at least one.

    No line is longer than `width`, as far as labels and offsets leave room for a picture at all.
    """
    counts = Counter(disk for _, disk in segments)
    labels = _labels(disks, counts, min(LONGEST_LABEL, max(8, width // 3)), symbols)
    indent = max(map(len, labels)) + 2
    scale = _Scale.fit(segments[0][0], segments[-1][0], segment_size, max(1, width - indent))
    held: dict[int, Counter[int]] = {number: Counter() for number, _ in disks}
    present: Counter[int] = Counter()
    for base, disk in segments:
        column = scale.column_of(base)
        held[disk][column] += 1
        present[column] += 1
    most = max(max(column.values(), default=0) for column in held.values())
    rows = tuple(
        Row(label.ljust(indent), scale.cells(held[number], most, symbols))
        for label, (number, _) in zip(labels, disks, strict=True)
    )
    gaps = None
    missing = [scale.slots_in(column) > present[column] for column in range(scale.columns)]
    if any(missing):
        cells = "".join(scale.cell(symbols.gap if here else " ", " ") for here in missing)
        gaps = Row("gaps".rjust(indent - 2).ljust(indent), cells.rstrip())
    return Picture(
        rows, gaps, _axis(scale, indent, width, symbols), _legend(scale, most, gaps is not None, symbols)
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """How log offsets map to columns."""

    first: int
    segment_size: int
    slots: int
    """Number of segments from the first to the last, gaps included."""
    per_column: int
    cell_width: int

    @classmethod
    def fit(cls, first: int, last: int, segment_size: int, room: int) -> "_Scale":
        slots = (last - first) // segment_size + 1
        per_column = -(-slots // room)
        cell_width = min(WIDEST_CELL, room // slots) if per_column == 1 else 1
        return cls(first, segment_size, slots, per_column, cell_width)

    @property
    def columns(self) -> int:
        return -(-self.slots // self.per_column)

    @property
    def drawn_width(self) -> int:
        return self.columns * self.cell_width - (self.cell_width > 2)

    @property
    def end(self) -> int:
        return self.first + self.slots * self.segment_size

    def column_of(self, base: int) -> int:
        return (base - self.first) // self.segment_size // self.per_column

    def slots_in(self, column: int) -> int:
        return min(self.per_column, self.slots - column * self.per_column)

    def offset_at(self, place: int) -> int:
        """The log offset at which the character at `place` begins."""
        return self.first + place // self.cell_width * self.per_column * self.segment_size

    def cells(self, held: Counter[int], most: int, symbols: Symbols) -> str:
        return "".join(self.cell(_shade(held[n], most, symbols), " ") for n in range(self.columns)).rstrip()

    def cell(self, symbol: str, between: str) -> str:
        """Wide cells have a blank between them, so that neighbours can be distinguished."""
        return symbol * (self.cell_width - 1) + between if self.cell_width > 2 else symbol * self.cell_width


def _shade(count: int, most: int, symbols: Symbols) -> str:
    return symbols.shades[(count * _SHADES - 1) // most] if count else symbols.nothing


def _labels(disks: Sequence[tuple[int, str]], counts: Counter[int], longest: int, symbols: Symbols) -> list[str]:
    paths = [_shorten(path, longest, symbols) for _, path in disks]
    number_width = max(len(str(number)) for number, _ in disks)
    path_width = max(map(len, paths))
    count_width = max(len(f"{counts[number]:,}") for number, _ in disks)
    return [
        f"{number:>{number_width}} {path:<{path_width}} {counts[number]:>{count_width},}"
        for (number, _), path in zip(disks, paths, strict=True)
    ]


def _shorten(path: str, longest: int, symbols: Symbols) -> str:
    """Shorten a path in its middle: paths of disks differ at the beginning or at the end."""
    if len(path) <= longest:
        return path
    head = (longest - 1) // 2
    return path[:head] + symbols.ellipsis + path[head + 1 - longest :]


def _axis(scale: _Scale, indent: int, width: int, symbols: Symbols) -> tuple[str, ...]:
    left, line, tick, right = tuple(symbols.ruler)
    drawn = scale.drawn_width
    first, end = str(scale.first), str(scale.end)
    if drawn < len(first) + len(end) + 2:
        text = f"{first} to {end}"
        start = max(0, min(indent, width - len(text)))
        ruler = left + line * (drawn - 2) + right if drawn > 1 else left
        return " " * indent + ruler, " " * start + text
    ruler = left + line * (drawn - 2) + right
    labels = first.ljust(drawn - len(end)) + end
    inner = range(scale.columns // 4, scale.columns * 3 // 4 + 1)
    for column in sorted(inner, key=lambda column: abs(2 * column - scale.columns)):
        place = column * scale.cell_width
        middle = str(scale.offset_at(place))
        if len(first) + 2 <= place and place + len(middle) + 2 <= drawn - len(end):
            ruler = ruler[:place] + tick + ruler[place + 1 :]
            labels = labels[:place] + middle + labels[place + len(middle) :]
            break
    return " " * indent + ruler, " " * indent + labels


def _legend(scale: _Scale, most: int, has_gaps: bool, symbols: Symbols) -> tuple[str, ...]:
    if scale.per_column == 1:
        text = f"{symbols.shades[-1]} a segment   {symbols.nothing} on another disk"
        return (text + (f"   {symbols.gap} missing: no disk holds it" if has_gaps else ""),)
    parts = [f"{symbols.nothing} none"]
    for level, shade in enumerate(symbols.shades):
        low, high = most * level // _SHADES + 1, most * (level + 1) // _SHADES
        if low <= high:
            parts.append(f"{shade} {low:,}" if low == high else f"{shade} {low:,} to {high:,}")
    lines = (f"a column is {scale.per_column:,} segments; of these the disk holds:", "   ".join(parts))
    return (*lines, f"{symbols.gap} some are missing on all disks") if has_gaps else lines
