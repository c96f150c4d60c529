"""Removes meaningless lines from the standard error of Spark's JVM and its Python workers.

A JVM cannot be configured to be quiet while it starts, and prints half a dozen lines each time. All other lines
pass: the output of a worker is often the only trace of its problem.
"""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_NOISE: Final = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Picked up (JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS): "
    r"|NOTE: Picked up JDK_JAVA_OPTIONS: "
    r"|Setting default log level to"
    r"|To adjust logging level use"
    r"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|INFO) "
)
_END_S: Final = 5.0
_TRACE: Final = "Traceback (most recent call last):"


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """`lines`, each with its end, without the noise. The trace of an idle worker that was stopped is noise, too.

    Workers that are stopped at once write at once, so the lines of their traces are mixed.
    """
    traces: list[str] = []
    unended = 0
    for line in lines:
        if unended or line.startswith(_TRACE):
            traces.append(line)
            if line.startswith(_TRACE):
                unended += 1
            elif not line.startswith(" "):
                unended -= 1
            if not unended:
                if not _are_of_idle_workers(traces):
                    yield from traces
                traces = []
        elif not _NOISE.match(line):
            yield line
    yield from traces


def _are_of_idle_workers(traces: list[str]) -> bool:
    frames = [line for line in traces if line.startswith("  File ")]
    ends = [line for line in traces if not line.startswith((" ", _TRACE))]
    return (
        bool(frames)
        and all("/pyspark/daemon.py" in frame for frame in frames)
        and all(end.startswith("BrokenPipeError: ") for end in ends)
    )


class _Listener:
    """Reads a pipe. Keeps its lines until `release`, and writes them to standard error afterwards."""

    def __init__(self, reading: int) -> None:
        self._lines: list[str] = []
        self._released = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        with self._lock:
            self._released = True
            for line in self._lines:
                _write(line)

    def ended(self) -> list[str]:
        """The lines kept so far, after waiting for the end of the pipe, which does not take long."""
        self._thread.join(_END_S)
        with self._lock:
            return list(self._lines)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, errors="backslashreplace") as lines:
            for line in without_noise(lines):
                with self._lock:
                    if self._released:
                        _write(line)
                    else:
                        self._lines.append(line)


class StartFailedError(Exception):
    """A program did not start; `stderr`: its lines on standard error."""

    def __init__(self, stderr: list[str]) -> None:
        super().__init__()
        self.stderr = stderr


@contextmanager
def quiet_children() -> Iterator[None]:
    """Filters the standard error of all processes that are started inside, and of their children.

    Raises StartFailedError for any exception inside; nothing has been printed then.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    sys.stderr.flush()
    ours = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    listener = _Listener(reading)
    try:
        yield
    except Exception as error:
        _restore(ours)
        raise StartFailedError(listener.ended()) from error
    except BaseException:
        _restore(ours)
        raise
    _restore(ours)
    listener.release()


def _restore(ours: int) -> None:
    sys.stderr.flush()
    os.dup2(ours, 2)
    os.close(ours)


def _write(line: str) -> None:
    os.write(2, line.encode(errors="backslashreplace"))
