"""The program installed as docs/installing.md says: a directory for each version, and a link to the one in use."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.releases import SOURCE

FORMER_COMMIT = "6b92940"
"""The last commit before the packages were divided into directories."""


def why_not_former() -> str:
    """Why the former version cannot be installed; empty if it can."""
    known = subprocess.run(
        ["git", "-C", SOURCE, "cat-file", "-e", f"{FORMER_COMMIT}^{{commit}}"], capture_output=True, check=False
    )
    return f"commit {FORMER_COMMIT} is not in this checkout" if known.returncode else ""


def copy_former(place: Path) -> None:
    place.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", SOURCE, "archive", FORMER_COMMIT], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)


@dataclass(frozen=True)
class Installations:
    """Versions beside each other in `directory`; `choose` selects one."""

    directory: Path

    def install(self, name: str, source: Path) -> None:
        """Install the source into a virtual environment, with the libraries of the tests' own."""
        place = self.directory / name
        venv.create(place, symlinks=True)
        libraries = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
        # On the module path only: the .pth files in there, such as this project's own, have no effect.
        (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
        done = subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", str(source)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def choose(self, name: str) -> None:
        """Point the link at this version, as `ln -sfT` does."""
        (self.directory / "next").symlink_to(name)
        (self.directory / "next").rename(self.directory / "chosen")

    def run(self, *arguments: object, runtime: Path) -> str:
        """Standard output of a command of the chosen version, which must succeed."""
        command, *rest = map(str, arguments)
        done = subprocess.run(
            [str(self.directory / "chosen" / "bin" / command), *rest],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COMMITLOGFS_RUNTIME_DIR": str(runtime), "NO_COLOR": "1"},
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stderr}"
        return done.stdout

    def status(self, name: str, runtime: Path) -> Any:
        return json.loads(self.run("commitlogfs", "status", name, "--json", runtime=runtime))

    def version_of(self, pid: int) -> str:
        """Which version a daemon runs, by the code that it has loaded."""
        maps = Path(f"/proc/{pid}/maps").read_text()
        (name,) = {
            path.name for path in self.directory.iterdir() if not path.is_symlink() and f"{path}/lib/" in maps
        }
        return name
