"""docs/reference/findings.md and the enum of findings agree."""

import re
from pathlib import Path

from commitlogfs.store.findings import FindingCode

TABLE = Path(__file__).parents[2] / "docs/reference/findings.md"
_ROW = re.compile(r"^\| `([a-z-]+)` \|(.*)\|$", re.MULTILINE)


def test_one_row_for_every_code_in_the_same_order() -> None:
    rows = _ROW.findall(TABLE.read_text())
    assert [code for code, _ in rows] == [code.value for code in FindingCode]


def test_every_row_has_meaning_effect_and_remedy() -> None:
    for code, cells in _ROW.findall(TABLE.read_text()):
        meaning, effect, remedy = (cell.strip() for cell in cells.split("|"))
        assert meaning, code
        assert remedy, code
        assert re.match(r"(note|warning|refuses|refuses always)\b", effect), code
