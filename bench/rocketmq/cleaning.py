"""RocketMQ's real judgement of how full its commitlog is, as an oracle for what statfs makes of it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM


class Judgement(NamedTuple):
    """What CleanCommitLogService#isSpaceToDelete has decided."""

    delete: bool
    forcibly: bool
    full: bool
    """The store refuses messages: a flag with a memory."""


class CleaningOracle:
    """CleanCommitLogService of 5.5.0 in one JVM, over stores that are never loaded. Deletes nothing."""

    def __init__(
        self,
        distribution: Distribution,
        stores: Sequence[tuple[Path, Sequence[Path]]],
        ratios: tuple[int, int, int] = (75, 85, 90),
    ) -> None:
        """`stores`: the root folder and the commitlog folders of each; `ratios`: clean, force, full."""
        if distribution.version != "5.5.0":
            raise ValueError("the oracle is compiled for RocketMQ 5.5.0 only")
        command = java_command(
            distribution, "commitlogfs.CleaningOracle", jvm=CLIENT_JVM, user_home=distribution.helper
        )
        command += map(str, ratios)
        for root, folders in stores:
            command += [str(root), ",".join(map(str, folders))]
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def look(self) -> list[Judgement]:
        """What each store's service decides now. WorkloadFailedError when it throws."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise WorkloadFailedError("the oracle is not running")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        verdict, *words = self._process.stdout.readline().rstrip("\n").split("\t")
        if verdict != "ok":
            raise WorkloadFailedError("the oracle has ended")
        flags = [word == "true" for word in words]
        return [Judgement(*flags[at : at + 3]) for at in range(0, len(flags), 3)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
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
