"""A pool served by the real daemon, started through the command line as an operator or systemd would."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from commitlogfs.bench import sweep
from commitlogfs.console.errors import UserError
from commitlogfs.mount.location import control_socket, runtime_directory

READY_TIMEOUT_S = 60.0
_FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')


class CommandFailedError(Exception):
    """`commitlogfs` failed; the message is its own."""


def cli_command(*arguments: object, script: str = "commitlogfs") -> list[str]:
    """Command line of the installed console script of this environment."""
    return [str(Path(sys.executable).with_name(script)), *map(str, arguments)]


class ServedPool:
    """One pool on some directories, with its mountpoint below `directory`. It can be mounted repeatedly; needs
    root."""

    def __init__(
        self,
        directory: Path,
        disks: Sequence[Path],
        *,
        segment_size: int,
        settings: Mapping[str, str] | None = None,
        keeper: bool = False,
    ) -> None:
        """`settings`: further keys of the configuration. `keeper`: whether a daemon that dies is replaced."""
        self.directory = directory
        self.mountpoint = directory / "store" / "commitlog"
        self.config = directory / "bench.toml"
        self.log_file = directory / "daemon.log"
        self._log_start = 0
        self._keeper = () if keeper else ("--no-keeper",)
        self._daemon: subprocess.Popen[bytes] | None = None
        # A short path, because a socket's path has at most 107 bytes.
        self._runtime = sweep.create_base("bench", sweep.SOCKETS_PARENT)
        self.environment: dict[str, str] = {
            **os.environ,
            runtime_directory.OVERRIDE: str(self._runtime),
            "NO_COLOR": "1",
        }
        lines = [f"mountpoint = {json.dumps(str(self.mountpoint))}", f"segment_size = {segment_size}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in (settings or {}).items()]
        for disk in disks:
            lines += ["[[disks]]", f"path = {json.dumps(str(disk))}"]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def pid(self) -> int:
        """Process id of the serving daemon, or of its keeper."""
        if self._daemon is None:
            raise CommandFailedError("not mounted")
        return self._daemon.pid

    def run(self, verb: str, *arguments: object) -> str:
        """Run one command on this pool and return what it prints. Raises CommandFailedError."""
        done = subprocess.run(
            cli_command(verb, *arguments), capture_output=True, text=True, check=False, env=self.environment
        )
        if done.returncode != 0:
            raise CommandFailedError(f"commitlogfs {verb}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def mount(self) -> float:
        """Start the daemon; the seconds from its start to READY=1, as a service manager sees them.

        Raises CommandFailedError if the daemon exits before, or is not ready in time.
        """
        address = f"\0commitlogfs-bench-{os.getpid()}"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
            self.log_file.open("ab") as log,
        ):
            manager.bind(address)
            manager.settimeout(0.2)
            self._log_start = log.tell()
            started = time.perf_counter()
            self._daemon = subprocess.Popen(
                cli_command("mount", *self._keeper, self.config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, "NOTIFY_SOCKET": address.replace("\0", "@")},
                start_new_session=True,
            )
            while True:
                try:
                    if b"READY=1" in manager.recv(4096).splitlines():
                        return time.perf_counter() - started
                except TimeoutError:
                    pass
                if self._daemon.poll() is not None or time.perf_counter() - started > READY_TIMEOUT_S:
                    self.close()
                    raise CommandFailedError(f"the mount did not become ready:\n{self.log_text()[-2000:]}")

    def unmount(self) -> None:
        """Unmount; returns when the daemon has ended. Raises CommandFailedError, for example if the mount is
        busy."""
        if self._daemon is not None:
            self.run("umount", self.mountpoint)
            self._daemon.wait(timeout=READY_TIMEOUT_S)
            self._daemon = None

    def close(self) -> None:
        """Remove mount, daemon and guard in any state. The pool cannot be used afterwards."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None and daemon.poll() is None:
            subprocess.run(["umount", "-l", str(self.mountpoint)], capture_output=True, check=False)
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.kill(daemon.pid, signal.SIGKILL)
                daemon.wait()
        if self.mountpoint.is_dir():
            self.run("umount", "--unguard", self.mountpoint)
        sweep.remove_tree(self._runtime)

    def log_text(self) -> str:
        """Log of the last daemon."""
        with self.log_file.open() as log:
            log.seek(self._log_start)
            return log.read()

    def logged(self, event: str) -> dict[str, str]:
        """The fields of the last line of this event since the daemon's start; empty if there is none."""
        lines = [line for line in self.log_text().splitlines() if f"event={event} " in line]
        return {key: value.strip('"') for key, value in _FIELD.findall(lines[-1])} if lines else {}

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """The daemon's answer to a request of a command, without the time that a command takes to start. Raises
        CommandFailedError."""
        try:
            path = self._runtime / f"{self.config.stem}.sock"
            return control_socket.ask(path, verb, control_socket.PEER_TIMEOUT_S, **arguments)
        except UserError as error:
            raise CommandFailedError(f"{verb}: {error}") from None

    def daemon_pid(self) -> int:
        """Process id of the daemon, read without another process: on a busy machine a process takes seconds to
        start."""
        pid: int = self.ask("status")["daemon"]["pid"]
        return pid

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run("status", self.mountpoint, "--json"))
        return document

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
