"""RocketMQ's real choice among several commitlog paths, as an oracle for ours."""

import subprocess
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM


class PathChoice(NamedTuple):
    """Full paths of the segment to be made now and of the one made ahead."""

    next_file: str
    next_next_file: str


class MultiPathOracle:
    """MultiPathMappedFileQueue of 5.5.0 in one JVM, asked line by line; makes no files, so any size does."""

    def __init__(self, distribution: Distribution) -> None:
        if distribution.version != "5.5.0":
            raise ValueError("the oracle is compiled for RocketMQ 5.5.0 only")
        self._command = java_command(
            distribution, "commitlogfs.MultiPathOracle", jvm=CLIENT_JVM, user_home=distribution.helper
        )
        self._process: subprocess.Popen[str] | None = None

    def choose(
        self,
        paths: Iterable[str],
        create_offset: int,
        *,
        segment_size_bytes: int,
        readonly: Iterable[str] = (),
        full: Iterable[str] = (),
    ) -> PathChoice:
        """Where the broker would put the segment at `create_offset`; WorkloadFailedError when it throws."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise WorkloadFailedError("the oracle is not running")
        lists = "\t".join(",".join(part) for part in (paths, readonly, full))
        self._process.stdin.write(f"{segment_size_bytes}\t{lists}\t{create_offset}\n")
        self._process.stdin.flush()
        verdict, *rest = self._process.stdout.readline().rstrip("\n").split("\t")
        if verdict != "ok":
            raise WorkloadFailedError(f"RocketMQ's queue failed: {' '.join(rest) or 'the oracle ended'}")
        return PathChoice(*rest)

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
