"""Runs a part of RocketMQ in its own JVM, which answers requests, one line each."""

import subprocess
from types import TracebackType
from typing import Self

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM

_VERSION = "5.5.0"
"""Version that the helper classes are compiled against."""


class Oracle:
    """A context manager: runs inside."""

    def __init__(self, distribution: Distribution, main_class: str, *arguments: str) -> None:
        """Raises ValueError for another version of RocketMQ."""
        if distribution.version != _VERSION:
            raise ValueError(f"the oracle is compiled for RocketMQ {_VERSION} only")
        command = java_command(distribution, main_class, jvm=CLIENT_JVM, user_home=distribution.helper)
        self._command = [*command, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, *words: str) -> list[str]:
        """The fields of its answer. Raises WorkloadFailedError, with RocketMQ's reason, if it throws or has
        ended."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise WorkloadFailedError("the oracle is not running")
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        verdict, *answer = self._process.stdout.readline().rstrip("\n").split("\t")
        if verdict != "ok":
            raise WorkloadFailedError(f"RocketMQ failed: {' '.join(answer) or 'the oracle has ended'}")
        return answer

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",  # on both sides, whatever the locale
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
