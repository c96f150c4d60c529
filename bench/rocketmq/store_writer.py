"""RocketMQ's own store without a broker around it: writes what no producer can send."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM

_VERSION = "5.5.0"


def write_store(
    distribution: Distribution,
    root: Path,
    settings: Mapping[str, str | int | bool],
    *,
    count: int = 1000,
    seed: int = 1,
    timeout_s: float = 120.0,
) -> None:
    """A store in `root`, stopped cleanly, with `count` messages: of every transaction type, with long topics and
    hosts of both kinds. `settings` are broker.conf's. For RocketMQ 5.5.0 only. Raises WorkloadFailedError.
    """
    if distribution.version != _VERSION:
        raise ValueError(f"the store writer is compiled for RocketMQ {_VERSION} only")
    words = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
    command = java_command(distribution, "commitlogfs.StoreWriter", jvm=CLIENT_JVM, user_home=distribution.helper)
    command += [str(root), str(count), str(seed), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise WorkloadFailedError(f"the store writer took more than {timeout_s:g} s") from None
    if done.returncode != 0:
        raise WorkloadFailedError(f"the store writer ended with {done.returncode}: {done.stderr[-2000:]}")
