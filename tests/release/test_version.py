"""The version has one source, and the documents and the workflow agree with what is there."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from support.releases import SOURCE

PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
KINDS = ("security", "changed", "removed", "added", "fixed")


@pytest.mark.parametrize("command", ["commitlogfs", "commitlogfs-pipeline"])
def test_commands_print_the_version_of_the_project(command: str) -> None:
    program = Path(sys.executable).parent / command
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == PROJECT["version"] == version("commitlogfs")


def test_no_module_states_a_version_of_its_own() -> None:
    stated = re.compile(rf"__version__|\b{re.escape(PROJECT['version'])}\b")
    directories = ("bench", "console", "fusefs", "mount", "pipeline", "pyspark_commitlog", "store", "scripts")
    modules = [path for directory in directories for path in (SOURCE / directory).rglob("*.py")]
    assert not [path for path in modules if stated.search(path.read_text())]


def test_readme_installs_the_version_of_the_project() -> None:
    named = set(re.findall(r"commitlogfs-(\d+\.\d+\.\d+)", (SOURCE / "README.md").read_text()))
    assert named == {PROJECT["version"]}


def test_every_news_fragment_has_a_known_kind() -> None:
    fragments = [path.name for path in (SOURCE / "changelog.d").iterdir() if path.name != "README.md"]
    assert not [name for name in fragments if not re.fullmatch(rf"\d+\.({'|'.join(KINDS)})(\.\d+)?\.md", name)]


def test_make_targets_that_the_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (SOURCE / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", ".github/workflows/ci.yml"):
        used = set(re.findall(r"(?:^|[`\s]|sudo )make ([a-z]+(?:-[a-z]+)*)[`\s]", (SOURCE / document).read_text()))
        assert used, document
        assert used <= targets, document
