"""On a terminal there are colours and bold; with --no-color or $NO_COLOR there is text only, in every verb."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from commitlogfs.console.plain_text import is_plain_text

ROOT = Path(__file__).resolve().parents[2]
_STYLE = re.compile(rb"\x1b\[[0-9;]*m")
_ENTRIES = {
    "commitlogfs": "commitlogfs.mount.entry import command_line",
    "commitlogfs-pipeline": "commitlogfs.pipeline.entry import main",
}


def on_terminal(script: str, *arguments: object, **variables: str) -> bytes:
    """Output of a command on a terminal."""
    ours, theirs = pty.openpty()
    program = f"import sys\nfrom {_ENTRIES[script]} as run\nsys.exit(run())"
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "100", **variables},
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=PATIENCE_S) in (0, 1), said
    return said


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("commitlogfs", "mount --help"),
        ("commitlogfs", "retention simulate --disks 3x100GB --ingest 10MB/s --days 3"),
        ("commitlogfs-pipeline", "--help"),
    ],
)
def test_no_color_leaves_text_only(script, line):
    assert _STYLE.search(on_terminal(script, *line.split()))
    for plain in (
        on_terminal(script, "--no-color", *line.split()),
        on_terminal(script, *line.split(), NO_COLOR="1"),
    ):
        assert not _STYLE.search(plain)
        assert len(plain) > 100


@pytest.mark.mounted
def test_no_color_on_a_mount(mounted):
    for line in ("status", "check"):
        target = mounted.config if line == "check" else mounted.name
        assert _STYLE.search(on_terminal("commitlogfs", line, target, **mounted.env))
        plain = on_terminal("commitlogfs", "--no-color", line, target, **mounted.env)
        assert not _STYLE.search(plain), plain


@pytest.mark.parametrize(("value", "plain"), [("1", True), ("0", True), ("", False), (None, False)])
def test_no_color_counts_if_it_is_not_empty(monkeypatch, value, plain):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert is_plain_text() is plain


def test_every_console_knows_no_color():
    """Made in one place of each command line."""
    makers = []
    for directory in ("bench", "console", "mount", "pipeline"):
        for path in (ROOT / directory).rglob("*.py"):
            makers += [str(path.relative_to(ROOT))] * len(re.findall(r"\bConsole\(", path.read_text()))
    assert sorted(makers) == ["console/output.py"]
