"""RocketMQ's own store without a broker: writes messages that no producer can send."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.config import properties
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM

Settings = Mapping[str, str | int | bool]


@dataclass(frozen=True)
class StoreRun:
    """One opening of a store, which keeps what earlier runs in the same `root` left there.

    Its `count` messages are of every transaction type, for light queues and in batches (5.x), with long topics and
    hosts of both kinds.
    """

    root: Path
    settings: Settings = field(default_factory=dict)
    """As in broker.conf; with `clean_up`, no message that puts entries in wrong positions is written."""
    count: int = 1000
    seed: int = 1

    def words(self) -> list[str]:
        return [
            str(self.root),
            str(self.count),
            str(self.seed),
            *properties(self.settings),
        ]


def write_stores(
    distribution: Distribution, runs: Sequence[StoreRun], *, halt: bool = False, timeout_s: float = 120.0
) -> None:
    """Make the runs one after the other in one JVM, each stopped cleanly; with `halt`, the last one ends with the
    process, as in a kill, when all its messages have been dispatched. Raises WorkloadFailedError.
    """
    command = java_command(distribution, "commitlogfs.StoreWriter", jvm=CLIENT_JVM, user_home=distribution.helper)
    for number, run in enumerate(runs):
        command += ["--"] if number else []
        command += run.words()
    command += ["halt=true"] if halt else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise WorkloadFailedError(f"the store writer took more than {timeout_s:g} s") from None
    if done.returncode != 0:
        raise WorkloadFailedError(f"the store writer exited with {done.returncode}: {done.stderr[-2000:]}")
