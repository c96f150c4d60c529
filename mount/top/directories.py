"""Segments and usage as the directories of the disks show them.

Any call may hang with its disk, in a state that even SIGKILL does not end, and a process does not end before all of
its threads. So processes of their own make these calls: one for each question, as children of one that has no
threads.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.top.children import end_child, keep_only
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.segment import looks_like_segment

DEADLINE_S: Final = 1.0
"""A disk that has not answered for this time is shown as one that does not answer."""
_EVERY_S: Final = 10.0
_READ_BYTES: Final = 65536


@dataclass(slots=True)
class Directory:
    """One disk as its directory shows it."""

    resolved: str
    """Its path without symbolic links, once the disk has answered."""
    segments: int | None = None
    """None until they were counted, and if they cannot be."""
    usage: DiskUsage | None = None
    error: str = ""
    asked_s: float | None = None
    """When it was asked what it has not answered yet."""
    answered_s: float | None = None
    is_counted: bool = False

    def is_silent(self, now_s: float) -> bool:
        return self.asked_s is not None and now_s - self.asked_s >= DEADLINE_S


class Directories:
    """Asks the directories, and knows their answers. Made before the process has a second thread, as it forks.

    Its descriptor (`fileno`) is readable when `receive` has something to do.
    """

    def __init__(self) -> None:
        self._known: dict[str, Directory] = {}
        self._received = b""
        questions, self._questions = os.pipe()
        self._answers, self._answering = os.pipe()
        """Both ends stay open here: a process that was killed must not make the descriptor readable for good."""
        self._pid = os.fork()
        if self._pid == 0:
            _serve(questions, self._answering)
        os.close(questions)
        os.set_blocking(self._answers, False)

    def fileno(self) -> int:
        return self._answers

    def __getitem__(self, path: str) -> Directory:
        return self._known.setdefault(path, Directory(os.path.normpath(path)))

    def ask(self, paths: Iterable[str], now_s: float, *, counts: bool) -> None:
        """Ask each of these, unless it was asked lately, or still owes an answer. With `counts`, have the segments
        counted."""
        for path in paths:
            known = self[path]
            was_lately = known.answered_s is not None and now_s - known.answered_s < _EVERY_S
            if known.asked_s is None and not (was_lately and known.is_counted >= counts):
                known.asked_s, known.is_counted = now_s, counts
                with contextlib.suppress(BrokenPipeError):  # somebody has killed it: no disk answers any more
                    os.write(self._questions, json.dumps({"path": path, "counts": counts}).encode() + b"\n")

    def is_any_awaited(self, now_s: float) -> bool:
        """Whether a disk still has time to answer."""
        return any(known.asked_s is not None and not known.is_silent(now_s) for known in self._known.values())

    def receive(self, now_s: float) -> None:
        """Take in the answers that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._answers, _READ_BYTES):
                self._received += part
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            answer = json.loads(line)
            known = self[answer["path"]]
            known.asked_s, known.answered_s = None, now_s
            known.resolved = answer.get("resolved", known.resolved)
            known.segments, known.error = answer.get("segments"), answer.get("error", "")
            known.usage = DiskUsage(*answer["usage"]) if "usage" in answer else None

    def close(self) -> None:
        """End the process that asks. One that waits for a disk ends when the disk answers."""
        os.close(self._questions)
        os.close(self._answers)
        os.close(self._answering)
        end_child(self._pid)


def _serve(questions: int, answers: int) -> NoReturn:
    """Answer questions until there are no more; never returns."""
    try:
        os.setsid()  # signals of the terminal are for the process that draws
        keep_only(questions, answers)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps the children
        with os.fdopen(questions, "rb") as lines:
            for line in lines:
                if os.fork() == 0:
                    # One write of less than PIPE_BUF bytes: answers of several disks do not mix.
                    os.write(answers, json.dumps(_answer(**json.loads(line))).encode() + b"\n")
                    break
    finally:
        os._exit(0)


def _answer(path: str, counts: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"path": path}
    try:
        answer["resolved"] = mountinfo.resolve_path(path)
        if counts:
            answer["segments"] = sum(map(looks_like_segment, os.listdir(os.fsencode(path))))  # noqa: PTH208 - names, thousands of them
            usage = measure_usage(path)
            answer["usage"] = (usage.total_bytes, usage.free_bytes, usage.available_bytes)
    except OSError as error:
        answer["error"] = os.strerror(error.errno or 0)
    return answer
