"""Acting as an ordinary user who may use FUSE, as on a desktop: /dev/fuse is open to all and Python can be read.

Where the machine is stricter (a 0600 device, an interpreter in root's home), both are arranged in a mount
namespace of its own, so that nothing changes for anybody else.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from support.waiting import PATIENCE_S, eventually

UID = 65534


def lacking() -> str:
    """Why it cannot be done here, in words; empty if it can."""
    if os.geteuid() != 0:
        return "needs root to become another user"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if done.returncode != 0:
        return "no private mount namespace"
    found = subprocess.run(["sh", "-c", "command -v fusermount3"], capture_output=True, text=True, check=False)
    path = Path(found.stdout.strip() or "/nonexistent")
    return "" if path.exists() and path.stat().st_mode & 0o4000 else "no setuid fusermount3"


class Desktop:
    """The namespace; `run` and `start` act as the user in it. `home` is the user's own directory."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.home.mkdir()
        os.chown(self.home, UID, UID)
        self._stage = directory / "stage"
        self._stage.mkdir(mode=0o755)
        self._holder: subprocess.Popen[bytes] | None = None

    def run(self, *command: object, user: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._inside(command, user),
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
            timeout=PATIENCE_S,
        )

    def start(self, *command: object, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(
                self._inside(command, user=True),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self._environment(),
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), "COLUMNS": "200", "NO_COLOR": "1", "XDG_RUNTIME_DIR": ""}

    def _inside(self, command: tuple[object, ...], user: bool) -> list[str]:
        assert self._holder is not None
        become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if user else []
        enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wd={self.home}"]
        return [*enter, *become, *map(str, command)]

    def __enter__(self) -> Self:
        script = "\n".join(["set -e", *self._open_device(), *self._open_python(), "touch $1", "exec sleep 3600"])
        ready = self._stage / "ready"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "holder", str(ready)]
        )
        eventually(ready.exists)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.kill()
            holder.wait()

    def _open_device(self) -> list[str]:
        stage = shlex.quote(str(self._stage))
        return [
            f"mkdir {stage}/dev",
            f"mount -t tmpfs -o mode=755,dev tmpfs {stage}/dev",
            f"mknod -m 666 {stage}/dev/fuse c 10 229",
            f"mount --bind {stage}/dev/fuse /dev/fuse",
        ]

    def _open_python(self) -> list[str]:
        """Bind what Python needs into fresh, open copies of the directories that keep the user out."""
        project = Path(__file__).resolve().parents[2]
        closed: dict[Path, list[Path]] = {}
        for needed in dict.fromkeys((Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), project)):
            for directory in reversed(needed.parents):
                if not directory.stat().st_mode & 0o001:
                    closed.setdefault(directory, []).append(needed)
                    break
        lines = []
        for directory, contents in closed.items():
            keeps = {needed: self._stage / f"keep{number}" for number, needed in enumerate(contents)}
            lines += [
                f"mkdir -p {_quote(keep)}; mount --bind {_quote(n)} {_quote(keep)}" for n, keep in keeps.items()
            ]
            lines.append(f"mount -t tmpfs -o mode=755 tmpfs {_quote(directory)}")
            lines += [f"mkdir -p {_quote(n)}; mount --bind {_quote(keep)} {_quote(n)}" for n, keep in keeps.items()]
        return lines


def _quote(path: Path) -> str:
    return shlex.quote(str(path))
