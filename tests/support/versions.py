"""A kept mount whose daemons are of other versions than the program under test: copies of it, something changed.

The keeper is the real one. Its command is a launcher, which puts the version chosen at that moment first on the
module path, and then becomes the daemon.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.kept import KeptMount
from support.pools import PoolMount
from support.waiting import eventually

from commitlogfs.mount.keeper.options import Options

SOURCE = Path(__file__).parents[2]
_PACKAGES = ("bench", "console", "fusefs", "mount", "store")
_LAUNCHER = """
import runpy, sys
from pathlib import Path
chosen = Path(__file__).parent / "chosen"
if chosen.exists():
    sys.path.insert(0, str(chosen.resolve()))
before = Path(__file__).parent / "before.py"
if before.exists():
    exec(before.read_text())
runpy.run_module("commitlogfs.mount.serve", run_name="__main__", alter_sys=True)
"""


@dataclass
class VersionedMount(KeptMount):
    """`choose` and `before` take effect with the next daemon."""

    watchdog_s: float = 0.0
    standby: bool = False

    @property
    def _directory(self) -> Path:
        return self.pool.workdir / "versions"

    def make(self, name: str, changes: Mapping[str, tuple[str, str]]) -> None:
        """A version of the program: in each file the first text, which must be there once, becomes the second."""
        package = self._directory / name / "commitlogfs"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for directory in _PACKAGES:
            shutil.copytree(SOURCE / directory, package / directory, ignore=shutil.ignore_patterns("__pycache__"))
        for path, (former, latter) in changes.items():
            text = (package / path).read_text()
            assert text.count(former) == 1, f"{path}: {former}"
            (package / path).write_text(text.replace(former, latter))

    def without_extension(self, name: str) -> None:
        """A version without its C part."""
        self.make(name, {})
        directory = self._directory / name / "commitlogfs/fusefs/kernel"
        for library in directory.glob("_passthrough*.so"):
            library.unlink()
        # Else the installed one would be found.
        (directory / "_passthrough.py").write_text('raise ImportError("left out of this version")\n')

    def choose(self, name: str | None) -> None:
        """None is the program under test itself."""
        chosen = self._directory / "chosen"
        chosen.unlink(missing_ok=True)
        if name is not None:
            chosen.symlink_to(name)

    def before(self, code: str) -> None:
        """Python that each daemon runs first; empty for none."""
        path = self._directory / "before.py"
        path.unlink(missing_ok=True)
        if code:
            path.write_text(code)

    def prepare(self) -> None:
        self._directory.mkdir(exist_ok=True)
        (self._directory / "launch.py").write_text(_LAUNCHER)

    def start(self) -> None:
        """With whatever version is chosen."""
        pool = self.pool
        self.prepare()
        pool.write_config()
        command = (sys.executable, "-P", str(self._directory / "launch.py"), str(pool.config), "-v")
        options = Options(pool.name, str(pool.mountpoint), command, self.watchdog_s, standby=self.standby)
        with pool.log_path.open("ab") as log:
            self._log_start = log.tell()
            pool._log_start = self._log_start
            pool.daemon = subprocess.Popen(
                options.command_line(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **pool.env},
            )
        self.wait_ready(1)

    def events(self, name: str, **fields: object) -> list[str]:
        return events(self.pool, name, **fields)

    def wait_ready(self, count: int) -> None:
        """Until the keeper has seen `count` daemons get ready. Keeper and daemon write to one log: the line of a
        daemon may appear after that of the keeper about it."""
        eventually(lambda: len(self.events("daemon_ready")) >= count)
        eventually(lambda: len(self.events("ready")) >= count)
        self.daemon = self._daemon_pid()

    def let_go_on(self, event: str) -> str:
        """Let the keeper go on until there is one more event of this kind; its line."""
        assert self.pool.daemon is not None
        before = len(self.events(event))
        os.kill(self.pool.daemon.pid, signal.SIGCONT)
        return eventually(lambda: self.events(event)[before:])[0]


def events(pool: PoolMount, name: str, **fields: object) -> list[str]:
    """Lines of one event since the start, of keeper and daemons."""
    wanted = [f"event={name}", *(f"{key}={value}" for key, value in fields.items())]
    lines = pool.log_since_start().splitlines()
    return [line for line in lines if all(f" {text} " in f"{line} " for text in wanted)]
