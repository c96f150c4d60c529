"""`mount --daemon`: a background process, and a parent that waits until the daemon is ready or has failed.

The daemon gets one end of a pipe and writes "ready", or the exit status and the one line of its error. With a
keeper, the daemon inherits that end from it.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from commitlogfs.console import interrupts
from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.user_directories import user_directory
from commitlogfs.mount.linux import logs
from commitlogfs.mount.location import runtime_directory

_READY = b"ready"


def start(command_line: Callable[[int], list[str]], name: str) -> int:
    """Start `command_line(report_fd)` in the background; its process id once the mount answers. Signals go to that
    process, which is the keeper or the daemon itself.

    Raises the daemon's own error if it fails to start. An interrupt stops it, and is raised when it has ended.
    """
    log_path = log_file(name)
    near, far = os.pipe()
    child = None
    try:
        try:
            with os.fdopen(os.open(log_path, logs.OPEN_FLAGS, logs.MODE), "ab") as log, interrupts.deferred():
                child = subprocess.Popen(
                    command_line(far),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=(far,),
                    start_new_session=True,
                    cwd="/",
                    env={**os.environ, logs.FILE_VARIABLE: str(log_path.absolute())},
                )
        finally:
            os.close(far)
        with os.fdopen(near, "rb") as reports:
            report = reports.read()
        if report == _READY:
            interrupts.ignore()
            return child.pid
        status = child.wait()
    except KeyboardInterrupt:
        if child is not None:
            child.terminate()  # it unmounts, if it has mounted
            child.wait()
        raise
    code, _, line = report.decode(errors="replace").partition(" ")
    if code.isdigit():
        error = UserError(line)
        error.exit_code = ExitCode(int(code))
        raise error
    raise RefusedError(f"{name}: the daemon ended ({status}) before it was ready; see {log_path}")


def log_file(name: str, *, make: bool = True) -> Path:
    """The log file of a background daemon. Makes its directory (mode 0750), unless `make` is false. Raises
    RefusedError."""
    override = os.environ.get(runtime_directory.OVERRIDE)
    if override:
        directory = Path(override)
    elif os.geteuid() == 0:
        directory = Path("/var/log/commitlogfs")
    else:
        state = user_directory("XDG_STATE_HOME", ".local/state")
        if state is None:
            raise RefusedError("no directory for the log, as this user has no home directory; set $XDG_STATE_HOME")
        directory = state / "commitlogfs"
    try:
        if make:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{directory}: the directory of the log cannot be made ({error.strerror})") from error
    return directory / f"{name}.log"


class Report:
    """The child's end of the pipe. Without a pipe (in the foreground) every call does nothing."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def ready(self) -> None:
        self._send(_READY)

    def failed(self, error: UserError) -> None:
        self._send(f"{int(error.exit_code)} {error}".encode(errors="backslashreplace"))

    def _send(self, text: bytes) -> None:
        if self._fd is not None:
            os.write(self._fd, text)
            os.close(self._fd)
            self._fd = None
