"""A running `commitlogfs exporter`, asked over HTTP on loopback."""

import http.client
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.command_line import COMMAND
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench.rocketmq.ports import ReservedPort

HOST = "127.0.0.1"


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RunningExporter:
    process: subprocess.Popen[bytes]
    port: int
    context: ssl.SSLContext | None = None

    def request(self, path: str, method: str = "GET", **headers: str) -> Answer:
        if self.context is None:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)
        else:
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=PATIENCE_S, context=self.context
            )
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        families = text_string_to_metric_families(self.request("/metrics").text)
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Value of `commitlogfs_<name>`; None without a sample."""
        return self.metrics().get((f"commitlogfs_{name}", frozenset(labels.items())))

    def mount(self, name: str) -> Any:
        """The mount in /api/status."""
        return next(mount for mount in self.request("/api/status").json()["mounts"] if mount["name"] == name)


@contextmanager
def running_exporter(
    directory: Path, env: Mapping[str, str], *options: str, context: ssl.SSLContext | None = None
) -> Iterator[RunningExporter]:
    """Stopped at the end, which must succeed. `env`: as of a pool, with its runtime directory, and perhaps
    `timing_variables`."""
    reserved = ReservedPort()
    told = directory / "exporter.log"
    with told.open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "exporter", "--listen", f"{HOST}:{reserved.number}", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **env},
        )
    running = RunningExporter(process, reserved.number, context)

    def answers() -> bool:
        assert process.poll() is None, told.read_text()
        try:
            return running.request("/healthz").status in (200, 401)
        except OSError:
            return False

    try:
        eventually(answers, shown=told.read_text)
        yield running
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, told.read_text()
        assert told.read_text() == ""
    finally:
        process.kill()
        process.wait()
