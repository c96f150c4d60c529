"""Messages with JSON bodies of every compression, and what a consumer gets of them."""

from pathlib import Path
from typing import NamedTuple

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM, run_helper

COMPRESSIONS = ("NONE", "ZLIB", "LZ4", "ZSTD")


class Digest(NamedTuple):
    """One message as consumed."""

    queue_id: int
    queue_offset: int
    keys: str
    sha256: str
    """Hexadecimal digits for the body."""


def send_texts(
    distribution: Distribution,
    name_server: str,
    topic: str,
    *,
    count: int,
    compression: str = "NONE",
    batch: int = 1,
    timeout_s: float = 300.0,
) -> None:
    """`count` messages; bodies from 100 bytes on are compressed, except in lists (`batch` > 1). Clients before 5.0
    know ZLIB only. Raises WorkloadFailedError."""
    command = _command(distribution, "texts", "--namesrv", name_server, "--topic", topic, "--count", str(count))
    command += ["--compress", compression, "--batch", str(batch)]
    run_helper("texts", command, timeout_s)


def read_digests(
    distribution: Distribution, name_server: str, topic: str, output: Path, *, timeout_s: float = 300.0
) -> list[Digest]:
    """All messages of the topic, as a consumer gets them. Raises WorkloadFailedError."""
    command = _command(distribution, "digests", "--namesrv", name_server, "--topic", topic, "--output", str(output))
    run_helper("digests", command, timeout_s)
    rows = (line.split() for line in output.read_text().splitlines())
    return [Digest(int(queue), int(offset), keys, sha256) for queue, offset, keys, sha256 in rows]


def _command(distribution: Distribution, verb: str, *arguments: str) -> list[str]:
    command = java_command(
        distribution, "commitlogfs.Workload", verb, jvm=CLIENT_JVM, user_home=distribution.helper
    )
    return [*command, *arguments]
