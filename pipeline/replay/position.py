"""The position of a replay, in a file: the next process continues there, however the last one has ended."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from commitlogfs.console.errors import RefusedError
from commitlogfs.pipeline.log.errors import OutputError, output_errors
from commitlogfs.pipeline.log.identity import Fingerprint

_FORMAT: Final = 2
"""Since 2, a position says of which log it is."""


@dataclass(frozen=True, slots=True)
class Position:
    """`offset` is the log offset of the next message; None before the first."""

    offset: int | None = None
    messages: int = 0
    """Sent by all runs together."""
    queues: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The queues of each target topic that messages were sent to, in their order."""
    last: Fingerprint | None = None
    """A message before `offset`, which identifies the log; None if there was none."""


class PositionFile:
    """A context manager, which has a lock on the file while it is open.

    The position is read under the lock; `read` before it refuses a wrong file without making the lock's file.
    `replay` describes what is sent where: a file that was written for another replay is refused. Raises
    RefusedError, OutputError.
    """

    def __init__(self, path: Path, replay: Mapping[str, Any]) -> None:
        self._path, self._replay = path, dict(replay)
        self._lock: int | None = None
        self.position = Position()

    def __enter__(self) -> Self:
        with output_errors(self._path):
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.position = self.read()
        except BlockingIOError:
            os.close(lock)
            raise RefusedError(f"{self._path}: another replay uses it; wait for its end") from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def record(self, position: Position) -> None:
        """Durable when it returns; a kill or a power cut leaves this position or the one before. Raises
        OutputError."""
        document = {
            "format": _FORMAT,
            "replay": self._replay,
            "next_offset": position.offset,
            "last": None if position.last is None else asdict(position.last),
            "messages": position.messages,
            "queues": {topic: list(names) for topic, names in position.queues.items()},
        }
        new = self._path.with_name(self._path.name + ".new")
        with output_errors(self._path):
            with new.open("w") as file:
                json.dump(document, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        self.position = position

    def read(self) -> Position:
        """The recorded position; no lock is needed."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            with output_errors(self._path):
                self._path.parent.stat()
            return Position()
        except (OSError, UnicodeDecodeError) as error:
            raise OutputError(f"{self._path}: cannot be read as a position ({error})") from None
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise ValueError
            replay, last = dict(document["replay"]), document["last"]
            position = Position(
                int(document["next_offset"]),
                int(document["messages"]),
                dict(document["queues"]),
                None if last is None else Fingerprint.of_json(last),
            )
        except (ValueError, TypeError, KeyError):
            raise RefusedError(
                f"{self._path}: is not the position of a replay, or that of a version which did not record the "
                "log's identity; name another file"
            ) from None
        for name in sorted(self._replay.keys() | replay.keys()):
            if self._replay.get(name) != replay.get(name):
                raise RefusedError(
                    f"{self._path}: is the position of another replay, whose {name} is {replay.get(name)} "
                    f"instead of {self._replay.get(name)}; name another file"
                )
        return position
