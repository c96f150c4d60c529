"""Upgrades and the way back under a keeper, in the installed layout: a directory per version, and a link."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.broker_unit import release
from support.pools import PoolMount
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

_ENTRY = """#!{python}
import sys
sys.path.insert(0, "{directory}")
from commitlogfs.mount.{module} import main
sys.exit(main())
"""


class Installed:
    """Two versions below `opt`, and commands in `bin` that lead to the chosen one, as README's lines make them."""

    def __init__(self, directory: Path, pool: PoolMount) -> None:
        self._opt, self.pool = directory / "opt", pool
        for version in ("9.0.1", "9.0.2"):
            place = release(self._opt / version, version, linked=True)
            (place / "bin").mkdir()
            for name, module in (("commitlogfs", "cli"), ("commitlogfs-daemon", "serve")):
                script = place / "bin" / name
                script.write_text(_ENTRY.format(python=sys.executable, directory=place, module=module))
                script.chmod(0o755)
        self.commands = directory / "bin"
        self.commands.mkdir()
        self.choose("9.0.1")
        for name in ("commitlogfs", "commitlogfs-daemon"):
            (self.commands / name).symlink_to(self._opt / "commitlogfs/bin" / name)

    def choose(self, version: str) -> None:
        subprocess.run(["ln", "-sfT", self._opt / version, self._opt / "commitlogfs"], check=True)

    def run(self, *arguments: object) -> str:
        command = [str(self.commands / "commitlogfs"), *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.pool.env},
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serving(self) -> str:
        return str(self.pool.status()["daemon"]["version"])


@pytest.fixture
def installed(make_pool: Callable[..., PoolMount], workdir: Path) -> Iterator[Installed]:
    pool = make_pool(1)
    installed = Installed(workdir, pool)
    installed.run("mount", "--daemon", pool.config)
    yield installed
    pool.cli("umount", pool.mountpoint)


def test_a_restart_uses_what_the_link_leads_to(installed: Installed) -> None:
    assert (installed.run("--version"), installed.serving()) == ("commitlogfs 9.0.1\n", "9.0.1")
    installed.choose("9.0.2")
    assert (installed.run("--version"), installed.serving()) == ("commitlogfs 9.0.2\n", "9.0.1")
    installed.run("restart", "test")
    assert installed.serving() == "9.0.2"
    former = installed.pool.status()["daemon"]["pid"]
    os.kill(former, signal.SIGKILL)
    eventually(lambda: installed.pool.status()["daemon"]["pid"] != former)
    assert installed.serving() == "9.0.2"
    installed.choose("9.0.1")
    installed.run("restart", "test")
    assert installed.serving() == "9.0.1"


def test_the_documents_name_one_layout() -> None:
    """`ln -sfn` would put the link inside a directory of that name, and upgrades would run the former code."""
    source = Path(__file__).parents[2]
    version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    for document in ("README.md", "docs/installing.md", "docs/getting-started.md", "docs/pipeline.md"):
        text = (source / document).read_text()
        for line in text.splitlines():
            assert not re.search(r"\bln (?!-sfT).*/opt/commitlogfs( |$)", line), line
            assert not re.search(r"venv /opt/commitlogfs( |$)", line), line
    assert f"venv /opt/commitlogfs-{version} " in (source / "README.md").read_text()


def test_the_links_of_the_readme_need_no_bash(workdir: Path) -> None:
    """In a shell without brace expansion, `ln` would succeed and make one link that leads nowhere."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("ln -sfT "))
    commands, opt, programs = workdir / "usr/local/bin", workdir / "opt", ("commitlogfs", "commitlogfs-daemon")
    version = Path(line.split()[2]).name
    commands.mkdir(parents=True)
    (opt / version / "bin").mkdir(parents=True)
    for name in programs:
        (opt / version / "bin" / name).touch()
    typed = line.replace(" /opt/", f" {opt}/").replace(" /usr/", f" {workdir}/usr/")
    subprocess.run(["/bin/sh", "-euc", typed], check=True)
    assert {link.name: link.resolve() for link in commands.iterdir()} == {
        name: opt / version / "bin" / name for name in programs
    }
