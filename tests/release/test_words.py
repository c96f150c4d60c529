"""The word check of lint: home-made English in messages, docstrings, comments and documents is found."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "scripts/check_words.py"

PYTHON = '''"""Of the mount."""

FORGOTTEN = "no-space"


def serve(name: str, wanted: str) -> str:
    """The daemon goes
    on with the mount."""
    # The kernel is told
    # of the name.
    return f"{name} is no segment; `held back` {wanted} and whoever asks" + " in vain"
'''
DOCUMENT = """# Title

The barren disk is beneath the mount.

```
a folder in a fence
```
There is no segment. `folder`
"""
UNIT = """# Not for a mortal daemon
ExecStart=/bin/folder
"""


def check(*paths: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(PROGRAM), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        (
            "code.py",
            PYTHON,
            ["1: Of", "7: goes on with", "9: told", "11: is no segment", "11: whoever", "11: in vain"],
        ),
        ("text.md", DOCUMENT, ["3: barren", "3: beneath"]),
        ("daemon.service", UNIT, ["1: mortal"]),
        (
            "code.c",
            'int demanded; /* nobody\n looks at it */ char *text = "a folder";\n',
            ["2: looks at", "2: folder"],
        ),
    ],
)
def test_forbidden_phrases_are_found(tmp_path: Path, name: str, content: str, found: list[str]) -> None:
    path = tmp_path / name
    path.write_text(content)
    done = check(path)
    assert [line.rpartition(": write ")[0] for line in done.stdout.splitlines()] == [
        f"{path}:{one}" for one in found
    ]
    assert all(line.rpartition(": write ")[2] for line in done.stdout.splitlines())
    assert done.returncode == 1


def test_plain_text_passes(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text('"""The daemon takes over the mount."""\n')
    assert (check(tmp_path).returncode, check(tmp_path).stdout) == (0, "")


@pytest.mark.full
def test_the_checked_files_are_free_of_these_words() -> None:
    """As `make lint` does."""
    assert (check().returncode, check().stdout) == (0, "")
