"""RocketMQ's own admin tool, unchanged."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command

_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # short-lived: start quickly
_KEY_ROW = re.compile(r"^([0-9A-F]{32,}) +(\d+) +(\d+)\b", re.MULTILINE)


@dataclass(frozen=True)
class QueriedMessage:
    """Output of queryMsgById for one message, with the body that it wrote to a file."""

    offset_msg_id: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    body: bytes


def mqadmin(distribution: Distribution, name_server: str, *arguments: str, timeout_s: float = 60.0) -> str:
    """Output of `mqadmin ARGUMENTS -n name_server`; WorkloadFailedError when the command reports a failure.

    The tool exits with 0 whatever happens, so its error stream decides.
    """
    command = java_command(
        distribution,
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        *arguments,
        "-n",
        name_server,
        jvm=_JVM,
        user_home=distribution.helper,
    )
    env = {**os.environ, "ROCKETMQ_HOME": str(distribution.helper)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise WorkloadFailedError(f"mqadmin {arguments[0]} took more than {timeout_s:g} s") from None
    if done.returncode != 0 or "SubCommandException" in done.stderr or "not exist." in done.stdout:
        detail = done.stderr.strip() or done.stdout.strip()
        raise WorkloadFailedError(f"mqadmin {arguments[0]} failed: {detail[-2000:]}")
    return done.stdout


def query_by_id(distribution: Distribution, name_server: str, topic: str, offset_msg_id: str) -> QueriedMessage:
    """The message by its offset id, which holds the broker's address and the log offset (queryMsgById)."""
    arguments = ["queryMsgById", "-i", offset_msg_id]
    if distribution.version == "5.5.0":  # required there, unknown to the older ones
        arguments += ["-t", topic]
    out = mqadmin(distribution, name_server, *arguments)
    fields = dict(re.findall(r"^([A-Z][A-Za-z ]+?): +(.*)$", out, re.MULTILINE))
    try:
        # The tool's own fixed directory; one file per message, of no use once read.
        body_file = Path(fields["Message Body Path"].strip())
        found = QueriedMessage(
            offset_msg_id=fields["OffsetID"].strip(),
            topic=fields["Topic"].strip(),
            queue_id=int(fields["Queue ID"]),
            queue_offset=int(fields["Queue Offset"]),
            log_offset=int(fields["CommitLog Offset"]),
            body=body_file.read_bytes(),
        )
    except (KeyError, OSError) as error:
        raise WorkloadFailedError(f"queryMsgById showed no message ({error}): {out[-2000:]}") from error
    body_file.unlink(missing_ok=True)
    return found


def query_by_key(distribution: Distribution, name_server: str, topic: str, key: str) -> list[tuple[str, int, int]]:
    """(message id, queue id, queue offset) of every message with this key (queryMsgByKey)."""
    out = mqadmin(distribution, name_server, "queryMsgByKey", "-t", topic, "-k", key)
    return [(found[0], int(found[1]), int(found[2])) for found in _KEY_ROW.findall(out)]
