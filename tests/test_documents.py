"""Links, headings and paths that the documents name exist, and the documents that code and tests name do, too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import lane_table
from support.gate_rule import lanes_in, lanes_of_file
from support.lanes import GATE, LANES
from typer.main import get_command

from commitlogfs.mount.cli import application

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = (
    "bench",
    "console",
    "docs",
    "fusefs",
    "monitoring",
    "mount",
    "pipeline",
    "scripts",
    "store",
    "systemd",
    "tests",
)
"""Directories whose content the documents name by a path from the root."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(PROJECT)})(?:/[\w.@-]+)+/?")
_TEST = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")
_TEST_WITH_LANE = re.compile(_TEST.pattern + rf"`(?: \(({'|'.join(LANES)})\b[^)]*\))?")
_FILE_WITH_LANE = re.compile(rf"\b(tests/\w+/[\w/]*test_\w+\.py)`(?: \(({'|'.join(LANES)})\b[^)]*\))?")
_MODULE = re.compile(r"(?<![\w./-])\w+\.(?:py|c)\b")
_COMMAND = re.compile(r"(?:`|^\$ )commitlogfs ([a-z-][^`\n]*)", re.MULTILINE)
_NAMED_DOCUMENT = re.compile(r"\bdocs/[\w./-]*\.md\b|\bREADME\.md\b")


def anchors(document: Path) -> set[str]:
    """Anchors of all headings, as GitHub makes them: lower case, spaces as hyphens, no other punctuation."""
    text = _FENCE.sub("", document.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    for link in _LINK.findall(_FENCE.sub("", document.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def missing_paths(document: Path) -> Iterator[str]:
    """Paths from the root, and names of modules without a directory."""
    text = _LINK.sub("", _FENCE.sub("", document.read_text()))
    yield from (path for path in _PATH.findall(text) if not (ROOT / path.rstrip(".")).exists())
    yield from (name for name in _MODULE.findall(text) if not any(any((ROOT / p).rglob(name)) for p in PROJECT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert not list(broken_links(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_paths_of_the_project_exist(document: Path) -> None:
    assert not list(missing_paths(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_tests_exist(document: Path) -> None:
    named = _TEST.findall(document.read_text())
    assert [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_each_fault_of_the_list_has_a_test() -> None:
    rows = re.findall(r"^\| (\d+): .*\| .* \| (.*) \|$", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    assert sorted(int(number) for number, _ in rows) == [*range(24, 46), *range(60, 65)]
    assert [number for number, tests in rows if "tests/" not in tests] == []


def lanes_named(document: Path) -> Iterator[tuple[str, str, str]]:
    """(file, test, lane) as the document says: no note means the gate."""
    for file, test, lane in _TEST_WITH_LANE.findall(document.read_text()):
        yield file, test, lane or GATE


@pytest.mark.parametrize("name", ["faults.md", "remembered.md"])
def test_a_list_with_tests_names_the_lane_of_each(name: str) -> None:
    document = ROOT / "docs" / name
    named = list(lanes_named(document))
    assert named
    assert [(file, test, lane) for file, test, lane in named if lanes_in(ROOT / file)[test] != lane] == []
    files = _FILE_WITH_LANE.findall(document.read_text())
    assert [(file, lane) for file, lane in files if (lane or GATE) not in lanes_of_file(ROOT / file)] == []


def test_each_thing_that_is_remembered_has_a_test() -> None:
    rows = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "docs" / "remembered.md").read_text(), re.MULTILINE)
    assert rows
    assert [tests for tests in rows if "tests/" not in tests and tests != "test"] == []


def test_the_table_of_lanes_is_current() -> None:
    assert lane_table.stored() == lane_table.table(), "run .venv/bin/python tests/support/lane_table.py"


def unknown_commands(document: Path) -> Iterator[str]:
    """Commands, in code, whose verb does not exist, or whose group of verbs is given no verb."""
    top = get_command(application())
    for line in _COMMAND.findall(document.read_text()):
        words = line.split()
        if words[0].startswith("-") or words[0].isupper():
            continue
        verb = getattr(top, "commands", {}).get(words[0])
        verbs = getattr(verb, "commands", None)
        if verb is None or (verbs is not None and len(words) > 1 and words[1] not in verbs):
            yield line


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_commands_exist(document: Path) -> None:
    assert not list(unknown_commands(document))


def test_the_readme_leads_to_every_document() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in _LINK.findall((ROOT / "README.md").read_text())}
    assert [path for path in DOCUMENTS if path.is_relative_to(ROOT / "docs") and path not in linked] == []


def test_documents_named_in_code_and_tests_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for directory in (*PROJECT, "pyspark_commitlog")
        for path in (ROOT / directory).rglob("*")
        if path.suffix in {".py", ".c", ".pyi", ".service", ".conf", ""} and path.is_file()
        for name in _NAMED_DOCUMENT.findall(path.read_text(errors="replace"))
        if not (ROOT / name).exists()
    ]
    assert not missing


def test_a_broken_link_and_a_missing_path_are_found(tmp_path: Path) -> None:
    other, document = tmp_path / "other.md", tmp_path / "document.md"
    other.write_text("# A heading: `mount(8)`\n\n```\n# no heading\n```\n")
    document.write_text(
        "[one](other.md#a-heading-mount8) [two](other.md#no-heading) [three](none.md) [four](https://example.org)\n"
        "(store/segment.py) `python -m x; cat store/none.py` `mount NAME` "
        "store/segment.py. `segment.py` `gone.c`\n"
    )
    assert list(broken_links(document)) == ["other.md#no-heading", "none.md"]
    assert list(missing_paths(document)) == ["store/none.py", "gone.c"]
