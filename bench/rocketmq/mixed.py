"""Sends messages of every kind that a broker stores differently."""

from dataclasses import dataclass

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.mqadmin import mqadmin
from commitlogfs.bench.rocketmq.process import java_command
from commitlogfs.bench.rocketmq.workload import CLIENT_JVM, run_helper

MULTI_DISPATCH = {"enableLmq": True, "enableMultiDispatch": True}
"""Broker configuration without which the messages for light subscribers enter their own queue only."""


@dataclass(frozen=True)
class MixedResult:
    """`visible`: topic -> messages that `consume` is to find, a second after they were sent."""

    visible: dict[str, int]


def make_inner_topic(distribution: Distribution, name_server: str, broker_address: str, prefix: str) -> None:
    """The topic of `prefix` whose queues take whole batches; 4.9 has no such topics."""
    arguments = ("-b", broker_address, "-t", f"{prefix}Inner", "-r", "2", "-w", "2", "-a", "+queue.type=BatchCQ")
    mqadmin(distribution, name_server, "updateTopic", *arguments)


def send_mixed(
    distribution: Distribution,
    name_server: str,
    *,
    prefix: str = "Mixed",
    rounds: int = 10,
    inner: bool = False,
    timeout_s: float = 120.0,
) -> MixedResult:
    """Each kind `rounds` times, to topics that begin with `prefix`; some are sent back by a consumer with the
    longest of names. `inner`: also batches and single messages for the topic of `make_inner_topic`.
    Raises WorkloadFailedError.
    """
    command = java_command(
        distribution, "commitlogfs.Workload", "mixed", jvm=CLIENT_JVM, user_home=distribution.helper
    )
    command += ["--namesrv", name_server, "--prefix", prefix, "--rounds", str(rounds)]
    command += ["--inner"] if inner else []
    return MixedResult(run_helper("mixed", command, timeout_s)["visible"])
