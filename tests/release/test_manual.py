"""Man pages and shell completion: every verb has its page, and groff and bash accept what is written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.releases import SOURCE
from typer.core import TyperGroup
from typer.main import get_command

from commitlogfs.mount.cli import application
from commitlogfs.pipeline.cli import app as pipeline

COMMANDS: dict[str, Any] = {
    "commitlogfs": get_command(application()),
    "commitlogfs-pipeline": get_command(pipeline),
}


@pytest.fixture(scope="module")
def share(base_directory: Path) -> Path:
    prefix = base_directory / "manual"
    subprocess.run([sys.executable, "scripts/manual.py", str(prefix)], cwd=SOURCE, check=True, capture_output=True)
    return prefix / "share"


def verbs() -> set[str]:
    """Every verb, with those of groups, by the name of its page."""
    found = set()
    for name, command in COMMANDS.items():
        found.add(name)
        for verb, below in command.commands.items():
            found.add(f"{name}-{verb}")
            found |= {f"{name}-{verb}-{word}" for word in (below.commands if isinstance(below, TyperGroup) else ())}
    return found


def test_every_verb_has_a_page(share: Path) -> None:
    assert {path.stem for path in (share / "man/man1").iterdir()} == verbs()


def test_every_option_is_on_its_page(share: Path) -> None:
    page = (share / "man/man1/commitlogfs-read.1").read_text().replace("\\-", "-")
    options = {name for p in COMMANDS["commitlogfs"].commands["read"].params for name in p.opts if name[0] == "-"}
    assert options
    assert not {name for name in options if name not in page}


def test_a_hidden_option_is_on_no_page(share: Path) -> None:
    pages = [path.read_text().replace("\\-", "-") for path in (share / "man/man1").iterdir()]
    assert not [page for page in pages if "--report-fd" in page]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_pages_render_without_a_warning(share: Path) -> None:
    for page in sorted((share / "man/man1").iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", str(page)], capture_output=True, text=True, check=True
        )
        assert done.stderr == "", page
        assert "EXIT STATUS" in done.stdout


def test_bash_completes_a_verb(share: Path) -> None:
    script = """
source "$1"
COMP_WORDS=(commitlogfs reo) COMP_CWORD=1
_commitlogfs_completion commitlogfs
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(share / "bash-completion/completions/commitlogfs")],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["reopen-logs"]
