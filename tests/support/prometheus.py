"""Prometheus, Alertmanager and the exporter as real processes, with the project's own configuration, sped up.

Time runs FASTER times as fast for the rules: every duration in them is divided by it. So a rule that fires after a
minute fires after a second, by the same expression.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_line import COMMAND
from support.monitoring import MONITORING, RULES
from support.pools import PoolMount
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench.rocketmq.ports import ReservedPort

EXPORTER: Sequence[str] = (*COMMAND, "exporter")
FASTER = 60
INTERVAL_S = 0.5
"""Time between two scrapes, and between two evaluations."""
_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WINDOW = re.compile(r"(\[|offset |for: )(\d+)([smhd])\b")


def lacking() -> str:
    """The reason why they cannot run here; empty if they can."""
    missing = [tool for tool in ("prometheus", "prometheus-alertmanager") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)}" if missing else ""


def sped_up(text: str, faster: int = FASTER) -> str:
    """Rules or an expression with all durations divided by `faster`."""
    return _WINDOW.sub(lambda m: f"{m[1]}{int(m[2]) * _MS[m[3]] // faster}ms", text)


@dataclass
class Stack:
    """The running programs. `begun` is when the first scrape could be."""

    prometheus: str
    alertmanager: str
    begun: float

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def query_range(self, expression: str, begin: float) -> list[dict[str, Any]]:
        """The results of an expression from `begin` until now."""
        parameters = {"query": expression, "start": begin, "end": time.time(), "step": f"{INTERVAL_S}"}
        found: list[dict[str, Any]] = self._get("query_range", **parameters)["result"]
        return found

    def had_data(self, expression: str) -> bool:
        """Whether an expression had a result at any time since the beginning."""
        return bool(self.query_range(expression, self.begun))

    def metric_names(self) -> set[str]:
        """Names of all series that were ever scraped or recorded."""
        return set(self._get("label/__name__/values"))

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that Alertmanager has, inhibited ones too."""
        found: list[dict[str, Any]] = _fetch(f"{self.alertmanager}/api/v2/alerts?inhibited=true")
        return found

    def firing(self) -> list[str]:
        """Names of the alerts in Alertmanager, with the disk if there is one."""
        return sorted(
            " ".join(filter(None, (a["labels"]["alertname"], a["labels"].get("disk")))) for a in self.alerts()
        )

    def _get(self, path: str, **parameters: object) -> Any:
        return _fetch(f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")["data"]


@contextmanager
def running(directory: Path, pool: PoolMount) -> Iterator[Stack]:
    """The three programs, for this mount only."""
    reserved = [ReservedPort() for _ in range(3)]
    exporter, prometheus, alertmanager = (f"127.0.0.1:{port.number}" for port in reserved)
    directory.mkdir()
    _write_configuration(directory, exporter, alertmanager)
    with ExitStack() as started:
        started.enter_context(
            _program(directory, "exporter", (*EXPORTER, pool.name, "--listen", exporter), pool.env)
        )
        started.enter_context(
            _program(
                directory,
                "alertmanager",
                (
                    "prometheus-alertmanager",
                    *(f"--config.file={directory}/alertmanager.yml", f"--storage.path={directory}/alertmanager"),
                    *(f"--web.listen-address={alertmanager}", "--cluster.listen-address="),
                ),
            )
        )
        _await(f"http://{alertmanager}/-/ready", directory / "alertmanager.log")
        _await(f"http://{exporter}/metrics", directory / "exporter.log")
        begun = time.time()
        started.enter_context(
            _program(
                directory,
                "prometheus",
                (
                    "prometheus",
                    *(f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/prometheus"),
                    *(f"--web.listen-address={prometheus}", "--rules.alert.resend-delay=1s"),
                ),
            )
        )
        _await(f"http://{prometheus}/-/ready", directory / "prometheus.log")
        yield Stack(f"http://{prometheus}", f"http://{alertmanager}", begun)


def _write_configuration(directory: Path, exporter: str, alertmanager: str) -> None:
    (directory / RULES.name).write_text(sped_up(RULES.read_text()))
    text = (MONITORING / "prometheus.yml").read_text()
    for example, real in (
        ("/etc/prometheus/rules", str(directory)),
        ("localhost:9639", exporter),
        ("localhost:9093", alertmanager),
        ("interval: 15s", f"interval: {int(INTERVAL_S * 1000)}ms"),
        ("scrape_timeout: 5s", f"scrape_timeout: {int(INTERVAL_S * 1000)}ms"),
    ):
        assert example in text, example
        text = text.replace(example, real)
    (directory / "prometheus.yml").write_text(text)
    (directory / "alertmanager.yml").write_text((MONITORING / "alertmanager.yml").read_text())


@contextmanager
def _program(
    directory: Path, name: str, command: Sequence[str], environment: dict[str, str] | None = None
) -> Iterator[None]:
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            cwd=directory,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _await(url: str, log: Path) -> None:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - an address of ours
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    eventually(answers, shown=log.read_text)


def _fetch(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - an address of ours
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()}") from error
