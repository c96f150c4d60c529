"""The table of `commitlogfs-pipeline stats`: whole figures at any width, names shortened in their middle."""

import io
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from commitlogfs.console.formatting import shortened
from commitlogfs.pipeline.commands import stats as command
from commitlogfs.pipeline.jobs.stats import LogStats, TopicStats

FIGURES = TopicStats(1_234_567, 3 << 30, 2 << 30, 4096, 16, 1_700_000_000_000, 1_700_003_600_000)
CELLS = command._cells(FIGURES)
LONG = "%RETRY%" + "a" * 60 + "b" * 60


def table(names: list[str]) -> LogStats:
    return LogStats(
        log="log",
        segments=1,
        start_offset=0,
        end_offset=1 << 30,
        damages=(),
        missing=(),
        total=FIGURES,
        topics=dict.fromkeys(names, FIGURES),
    )


def shown(columns: int, names: Sequence[str] = (LONG, "short")) -> list[str]:
    console = Console(width=columns, highlight=False, file=io.StringIO())
    command._show_table(table([*names]), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("columns", [45, 80, 120, 200])
def test_figures_are_whole_beside_a_long_name(columns: int) -> None:
    lines = shown(columns)
    text = "\n".join(lines)
    assert [cell for cell in CELLS if text.count(cell) < 3] == []
    assert [line for line in lines if cell_len(line) > columns] == []
    names = {line.split()[0] for line in lines if line.startswith("%R")}
    assert all(name.startswith("%RETRY%a") and name.endswith("bbb") and "..." in name for name in names)


@pytest.mark.parametrize("columns", [5, 20, 30])
def test_figures_are_whole_where_no_name_has_room(columns: int) -> None:
    text = "\n".join(shown(columns))
    assert [cell for cell in CELLS if text.count(cell) < 3] == []


def test_names_that_look_alike_have_a_line_each() -> None:
    """One has a line break, the other says so."""
    lines = shown(200, ["a\n", "a\\n"])
    assert [line.split()[0] for line in lines[1:]] == ["a\\n", "a\\n", "total"]


def test_one_table_holds_all_columns_where_there_is_room() -> None:
    assert len(shown(200)) == 4
    assert len(shown(80)) == 8


def test_a_pipe_gets_whole_figures(capsys: pytest.CaptureFixture[str]) -> None:
    command._show(table([LONG, "short"]))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("%R")]
    assert [cell for cell in CELLS if cell not in line] == []


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"),
        ("abcdefghij", 7, "ab...ij"),
        ("abcdefghij", 8, "ab...hij"),
        ("\u6f22" * 8, 9, "\u6f22...\u6f22\u6f22"),
        ("abcdefghij", 3, "..."),
    ],
)
def test_a_name_is_shortened_in_its_middle(text: str, width: int, expected: str) -> None:
    assert shortened(text, width) == expected
