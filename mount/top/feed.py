"""The daemon's answers, asked for by a thread: a daemon that hangs keeps only this thread waiting."""

import contextlib
import os
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from commitlogfs.console.errors import UserError
from commitlogfs.mount.location.control_client import ControlError, SilentError, ask
from commitlogfs.mount.location.runtime_directory import OF_ROOT, status_socket_path
from commitlogfs.mount.location.status_file import read_status_file
from commitlogfs.mount.location.which_mount import Target

TIMEOUT_S: Final = 3.0
"""A daemon whose disks hang needs up to 2.5 s for its status."""
FIRST_TIMEOUT_S: Final = 1.0
"""Without an answer to the first question, the disks are known only from the configuration."""
_DECISIONS: Final = 20
_LONGEST_PAUSE_S: Final = 10.0
"""A daemon that hangs finds few questions of ours when it continues."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A mount whose daemon was never reached, as its configuration describes it."""

    mountpoint: str
    disks: tuple[dict[str, Any], ...]
    """Each with `number`, `path` and `thresholds`, like those of a status document."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that is known from the daemon."""

    document: dict[str, Any] | None = None
    """Its last status document."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """Its latest decisions, newest first."""
    error: UserError | None = None
    """Why it has not answered the last question."""
    configured: Configured | None = None
    count: int = 0
    """Number of questions that were answered, or failed."""


class Feed:
    """Asks the daemon of `target` when it is requested to. Its descriptor (`fileno`) is readable after that.

    `file`: the NAME or FILE of the configuration, for the disks of a daemon that does not answer.
    """

    def __init__(self, target: Target, file: str) -> None:
        self.answer = Answer()
        self.asked_s: float | None = None
        """When the daemon was asked what it has not answered yet, by time.monotonic."""
        self._target = target
        self._socket = target.socket
        self._file = file
        self._awaited, self._answered = os.pipe()
        os.set_blocking(self._awaited, False)
        os.set_blocking(self._answered, False)
        self._requested = threading.Event()
        self._knows_decisions = target.others_mountpoint is None
        self._failures = 0
        self._is_closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def fileno(self) -> int:
        return self._awaited

    def request(self) -> None:
        """Have the daemon asked, unless it is being asked."""
        if self.asked_s is None:
            self.asked_s = time.monotonic()
        self._requested.set()

    def receive(self) -> None:
        """Take note that there is an answer."""
        os.read(self._awaited, 64)

    def close(self) -> None:
        """End the thread as soon as it waits for nothing."""
        self._is_closed = True
        self._requested.set()

    def _run(self) -> None:
        while True:
            self._requested.wait()
            self._requested.clear()
            if self._is_closed:
                os.close(self._awaited)
                os.close(self._answered)
                return
            began_s = time.monotonic()
            self.answer = self._ask()
            self.asked_s = None
            os.write(self._answered, b".")
            # Without a daemon, as while one is replaced, the questions disturb nobody.
            if isinstance(self.answer.error, SilentError) and time.monotonic() - began_s >= TIMEOUT_S:
                self._failures += 1
                time.sleep(min(_LONGEST_PAUSE_S, self._failures))
            else:
                self._failures = 0

    def _ask(self) -> Answer:
        former = self.answer
        try:
            document = self._status(TIMEOUT_S if former.count else FIRST_TIMEOUT_S)
            return Answer(document, self._decisions(), count=former.count + 1)
        except UserError as error:
            configured = former.configured
            if former.document is None and not former.count:
                configured = _read_configuration(self._file)
            return Answer(former.document, former.decisions, error, configured, former.count + 1)

    def _status(self, timeout_s: float) -> dict[str, Any]:
        """The status document. For a mount of another user it comes from root's status socket, if that is open to
        this user, else from the file in the mount. Raises UserError."""
        mountpoint = self._target.others_mountpoint
        if mountpoint is None:
            return ask(self._socket, "status", timeout_s)
        with contextlib.suppress(UserError):
            document = ask(status_socket_path(self._target.name, OF_ROOT), "status", timeout_s)
            if document["mountpoint"] == mountpoint:  # another mount may have the same name
                self._socket = status_socket_path(self._target.name, OF_ROOT)
                self._knows_decisions = True
                return document
        return read_status_file(mountpoint)

    def _decisions(self) -> list[dict[str, Any]]:
        """Empty if the daemon is of a version that keeps none."""
        if not self._knows_decisions:
            return []
        try:
            answer = ask(self._socket, "decisions", TIMEOUT_S, limit=_DECISIONS)
        except ControlError:
            self._knows_decisions = False
            return []
        found: list[dict[str, Any]] = answer["decisions"]
        return found


def _read_configuration(which: str) -> Configured | None:
    """None if there is no usable configuration of this NAME or FILE."""
    from commitlogfs.mount.config.errors import ConfigError
    from commitlogfs.mount.config.model import config_path, load_config

    try:
        config = load_config(config_path(which))
    except ConfigError:
        return None
    disks = enumerate(config.disks, start=1)
    return Configured(
        config.mountpoint,
        tuple(
            {"number": number, "path": disk.path, "thresholds": asdict(disk.thresholds)} for number, disk in disks
        ),
    )
