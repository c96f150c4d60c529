"""Time of a scrape of the exporter: when all is well, while a disk hangs, and while the daemon hangs."""

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from commitlogfs.bench.disks import frozen
from commitlogfs.bench.figures import Target
from commitlogfs.bench.rocketmq.ports import ReservedPort
from commitlogfs.bench.served import CommandFailedError, ServedPool, cli_command

SCRAPES: Final = 30
APART_S: Final = 1.2
"""Time between two: the figures are asked for anew each time."""
HANGS_S: Final = 3.0
"""After that, the exporter knows that a daemon does not answer."""
_START_TIMEOUT_S: Final = 30.0
_FROZEN_AT_MOST_S: Final = 300.0
_USABLE: Final = 'state="rw"'
_USABLE_TIMEOUT_S: Final = 120.0
_HOST: Final = "127.0.0.1"
_METRICS: Final = "/metrics"


@dataclass(slots=True)
class ScrapeFigures:
    """Milliseconds, one for each scrape."""

    fresh_ms: list[float] = field(default_factory=list)
    disk_hangs_ms: list[float] = field(default_factory=list)
    hanging_ms: list[float] = field(default_factory=list)
    """The first one comes before the exporter can know that the daemon hangs."""
    series: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "fresh_ms": self.fresh_ms,
            "disk_hangs_ms": self.disk_hangs_ms,
            "hanging_ms": self.hanging_ms,
            "series": self.series,
        }

    def targets(self) -> list[Target]:
        return [
            Target("longest scrape", max(self.fresh_ms, default=0.0), 50.0, "ms"),
            Target("longest scrape while a disk hangs", max(self.disk_hangs_ms, default=0.0), 50.0, "ms"),
            Target("longest scrape while the daemon hangs", max(self.hanging_ms, default=0.0), 50.0, "ms"),
        ]


def measure_scrapes(pool: ServedPool, disk: Path, scrapes: int = SCRAPES) -> ScrapeFigures:
    """The pool is mounted. `disk`: mountpoint of one of its disks, which is frozen for a while. Raises
    CommandFailedError."""
    figures = ScrapeFigures()
    daemon = pool.daemon_pid()
    with _exporter(pool) as scrape:
        for _ in range(scrapes):
            time.sleep(APART_S)
            text, took_ms = scrape()
            figures.fresh_ms.append(took_ms)
        figures.series = sum(not line.startswith("#") for line in text.splitlines())
        if "commitlogfs_disk_segments{" not in text:
            raise CommandFailedError("exporter: the metrics of the mount are not in the scrape")
        with frozen(disk, _FROZEN_AT_MOST_S):
            for _ in range(scrapes):
                time.sleep(APART_S)
                figures.disk_hangs_ms.append(scrape()[1])
        _await_usable(scrape, text.count(_USABLE))
        os.kill(daemon, signal.SIGSTOP)
        try:
            for _ in range(scrapes):
                time.sleep(HANGS_S / scrapes)
                text, took_ms = scrape()
                figures.hanging_ms.append(took_ms)
            if "commitlogfs_disk_segments{" not in text:
                raise CommandFailedError("exporter: the latest metrics are not shown while the daemon hangs")
        finally:
            os.kill(daemon, signal.SIGCONT)
    return figures


def _await_usable(scrape: Callable[[], tuple[str, float]], disks: int) -> None:
    """Wait until the disk that hung is served as before. Raises CommandFailedError."""
    deadline = time.monotonic() + _USABLE_TIMEOUT_S
    while scrape()[0].count(_USABLE) != disks:
        if time.monotonic() > deadline:
            raise CommandFailedError("the disk that was frozen is not served again")
        time.sleep(APART_S)


@contextlib.contextmanager
def _exporter(pool: ServedPool) -> Iterator[Callable[[], tuple[str, float]]]:
    """The function makes one scrape: the text, and how long it took in ms. Raises CommandFailedError."""
    reserved = ReservedPort()
    process = subprocess.Popen(
        cli_command("exporter", "--listen", f"{_HOST}:{reserved.number}"),
        stdin=subprocess.DEVNULL,
        env=pool.environment,
    )

    def scrape() -> tuple[str, float]:
        connection = http.client.HTTPConnection(_HOST, reserved.number, timeout=_START_TIMEOUT_S)
        try:
            started = time.perf_counter()
            connection.request("GET", _METRICS)
            text = connection.getresponse().read().decode()
            return text, round((time.perf_counter() - started) * 1000, 2)
        finally:
            connection.close()

    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                scrape()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise CommandFailedError("exporter: does not start") from None
                time.sleep(0.1)
        yield scrape
    finally:
        process.terminate()
        process.wait()
