"""The table of docs/testing.md: which lane runs the tests of which file. As a program, it writes the table anew."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "testing.md"
_BEGIN, _END = "<!-- lanes begin -->\n", "<!-- lanes end -->\n"


def table() -> str:
    """For each room, the files with tests in each lane; a file is in several lanes if its tests are."""
    from support.gate_rule import lanes_of_file
    from support.lanes import GATE, LANES, room_of

    lanes = (GATE, *reversed(LANES))
    rooms: dict[str, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        room = room_of(path.relative_to(ROOT))
        file = path.relative_to(ROOT / room).with_suffix("").as_posix().removeprefix("test_").replace("/test_", "/")
        for lane in lanes_of_file(path):
            rooms.setdefault(room, {}).setdefault(lane, []).append(file)
    return "".join(_rows(rooms, lanes))


def _rows(rooms: dict[str, dict[str, list[str]]], lanes: tuple[str, ...]) -> Iterator[str]:
    yield "| room | lane | files (`test_` and `.py` left out) |\n|---|---|---|\n"
    for room, files in sorted(rooms.items()):
        for lane in lanes:
            if lane in files:
                yield f"| `{room}` | {lane} | {', '.join(files[lane])} |\n"


def stored() -> str:
    """The table as the document has it."""
    return DOCUMENT.read_text().partition(_BEGIN)[2].partition(_END)[0]


def write() -> None:
    """Put the present table into the document."""
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(re.sub(f"{_BEGIN}.*?{_END}", lambda _: f"{_BEGIN}{table()}{_END}", text, flags=re.DOTALL))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    write()
