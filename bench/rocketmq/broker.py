"""The broker: the process whose commitlog lies on the filesystem under test."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.config import ConfigValue, format_config
from commitlogfs.bench.rocketmq.nameserver import NameServer
from commitlogfs.bench.rocketmq.ports import ReservedPort
from commitlogfs.bench.rocketmq.process import JavaServer
from commitlogfs.bench.rocketmq.remoting import GET_ALL_TOPIC_CONFIG, GET_BROKER_RUNTIME_INFO, request

HEAP = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")

_TEST_DEFAULTS: dict[str, ConfigValue] = {
    "brokerClusterName": "commitlogfs",
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "mappedFileSizeCommitLog": 64 << 20,
    "diskMaxUsedSpaceRatio": 95,  # the machine's own disk is not part of a test
    "fileReservedTime": 72,
    # Default 200 ms and 1 s: on a busy machine, a broker refuses messages because it has no processor for them.
    "waitTimeMillsInSendQueue": 5000,
    "osPageCacheBusyTimeOutMills": 5000,
    # 5.x sometimes loses its first registration silently (its list of live name servers is filled in the
    # background) and then repeats it after 10 s; the default period is 30 s.
    "registerNameServerPeriod": 10_000,
    # Each of the default 8 pop revive queues makes a clean stop of 5.x slower.
    "reviveQueueNum": 1,
    # An index file of the default size has 420 MB: much to flush for a small test.
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
    # Until this time after its start, a thread of 5.x spins on one processor (TransactionMetricsFlushService).
    "transactionMetricFlushInterval": 500,
}


class Broker(JavaServer):
    """One master broker on free ports of 127.0.0.1; keeps ports and store over restarts.

    `config` holds broker.conf properties and wins over the defaults for tests. The store is `home`/store
    unless storePathRootDir or storePathCommitLog (commas: several paths) say otherwise.
    """

    def __init__(
        self,
        distribution: Distribution,
        name_server: NameServer,
        work_dir: Path,
        config: Mapping[str, ConfigValue] | None = None,
        *,
        name: str = "broker-a",
        jvm: Sequence[str] = (),
        log_level: str = "WARN",
        user: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            distribution,
            work_dir,
            name,
            jvm=(*HEAP, *jvm),
            log_level=log_level,
            user=user,
            env=env,
            preexec=preexec,
        )
        self.name_server = name_server
        # listenPort - 2 serves fast requests; 4.9 insists on listenPort + 1 for replication.
        self._reserved = ReservedPort((-2, 0, 1))
        self.port = self._reserved.number
        self.config: dict[str, ConfigValue] = {
            **_TEST_DEFAULTS,
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": name_server.address,
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "storePathRootDir": str(self.home / "store"),
            **(config or {}),
        }
        self.config.setdefault("storePathCommitLog", f"{self.config['storePathRootDir']}/commitlog")

    @property
    def address(self) -> str:
        """The address that it registers; brokerIP1 may be another address of the loopback interface."""
        return f"{self.config['brokerIP1']}:{self.port}"

    @property
    def store_root(self) -> Path:
        return Path(str(self.config["storePathRootDir"]))

    @property
    def commitlog_dirs(self) -> list[Path]:
        return [Path(path) for path in str(self.config["storePathCommitLog"]).split(",")]

    def runtime_info(self) -> dict[str, str]:
        """Figures of the running broker, for example commitLogMaxOffset; raises OSError without an answer.

        4.9.7 has none in its first second: its statistics need a sample.
        """
        table: dict[str, str] = json.loads(request(self.port, GET_BROKER_RUNTIME_INFO, host=self._host))["table"]
        return table

    @property
    def _host(self) -> str:
        return str(self.config["bindAddress"])

    def _arguments(self) -> list[str]:
        conf = self.home / "broker.conf"
        conf.write_text(format_config(self.config))
        return ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]

    def _is_ready(self) -> bool:
        if not self.name_server.knows(self.address):
            return False
        request(self.port, GET_ALL_TOPIC_CONFIG, host=self._host)
        return True
