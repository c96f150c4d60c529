"""The name server: tells clients where brokers are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.config import ConfigValue, format_config
from commitlogfs.bench.rocketmq.ports import ReservedPort
from commitlogfs.bench.rocketmq.process import JavaServer
from commitlogfs.bench.rocketmq.remoting import GET_BROKER_CLUSTER_INFO, request


class NameServer(JavaServer):
    """One name server on a free port of 127.0.0.1; keeps its port over restarts. `config` holds more properties."""

    def __init__(
        self,
        distribution: Distribution,
        work_dir: Path,
        config: Mapping[str, ConfigValue] | None = None,
        *,
        name: str = "namesrv",
        jvm: Sequence[str] = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC"),
        log_level: str = "WARN",
    ) -> None:
        super().__init__(distribution, work_dir, name, jvm=jvm, log_level=log_level)
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._config = {"listenPort": self.port, "bindAddress": "127.0.0.1", **(config or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def knows(self, broker_address: str) -> bool:
        """Whether a broker with this address is registered; OSError when the name server does not answer."""
        return f'"{broker_address}"'.encode() in request(self.port, GET_BROKER_CLUSTER_INFO)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()  # it has no state to save, and a clean stop takes seconds

    def _arguments(self) -> list[str]:
        file = self.home / "namesrv.conf"
        file.write_text(format_config(self._config))
        return ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file)]

    def _is_ready(self) -> bool:
        request(self.port, GET_BROKER_CLUSTER_INFO)
        return True
