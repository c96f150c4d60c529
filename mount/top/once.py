"""`commitlogfs top` without a terminal: one frame of text, or JSON lines."""

import contextlib
import json
import selectors
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.plain_text import is_plain_text
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.top.feed import TIMEOUT_S
from commitlogfs.mount.top.figures import Collector, DiskFigures, Figures
from commitlogfs.mount.top.frame import View, compose
from commitlogfs.mount.top.table import work_of

SCHEMA: Final = 1
_COLUMNS: Final = 160
"""Width of a frame that goes into a file or a pipe, unless $COLUMNS says otherwise."""


def run(target: Target, file: str, interval_s: float, *, as_json: bool, once: bool) -> int:
    """Print frames; the exit status, which says whether the daemon has answered the last question.

    The figures of the devices are those of one interval, so the first frame comes after it.
    """
    with contextlib.closing(Collector(target, file)) as collector, _Waiter(collector) as waiter:
        figures = waiter.collect()
        due_s = time.monotonic() + interval_s
        while True:
            waiter.wait(due_s, lambda: False)
            due_s = max(due_s + interval_s, time.monotonic())
            figures = waiter.collect()
            print(json.dumps(report(figures)) if as_json else _frame(figures, interval_s), flush=True)
            if once or not as_json:
                return int(ExitCode.UNREACHABLE if figures.trouble else ExitCode.OK)


class _Waiter:
    """Waits for the answers of the daemon and the disks, or for a time."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._selector = selectors.DefaultSelector()
        self._selector.register(collector.feed, selectors.EVENT_READ)
        self._selector.register(collector.directories, selectors.EVENT_READ)

    def __enter__(self) -> "_Waiter":
        return self

    def __exit__(self, *_error: object) -> None:
        self._selector.close()

    def collect(self) -> Figures:
        """Figures for which the daemon was asked just now, if it has answered in time; else those without it."""
        collector = self._collector
        count = collector.feed.answer.count
        collector.request()
        self.wait(time.monotonic() + TIMEOUT_S + 0.5, lambda: collector.feed.answer.count > count)
        figures = collector.collect(measures=True)
        self.wait(time.monotonic() + TIMEOUT_S, lambda: collector.collect(measures=False).is_complete)
        return collector.collect(measures=False) if figures.trouble else figures

    def wait(self, until_s: float, condition: Callable[[], bool]) -> None:
        """Wait until that time, or until the condition holds after an answer."""
        while not condition() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left_s, 0.5)):
                if key.fileobj is self._collector.feed:
                    self._collector.feed.receive()
                else:
                    self._collector.receive()


def _frame(figures: Figures, interval_s: float) -> str:
    width = shutil.get_terminal_size((_COLUMNS, 0)).columns
    is_terminal = sys.stdout.isatty()
    is_unicode = (sys.stdout.encoding or "ascii").lower().startswith("utf")
    view = View(width, None, interval_s, is_unicode=is_unicode, has_keys=False)
    lines = compose(figures, view).lines
    if is_terminal:
        return "\n".join(line.ansi(styled=not is_plain_text()) for line in lines)
    return "\n".join(line.text for line in lines)


def report(figures: Figures) -> dict[str, Any]:
    """The figures as a document (docs/reference/cli.md)."""
    document = figures.document or {}
    return {
        "schema": SCHEMA,
        "at": figures.at_s,
        "name": figures.name,
        "mountpoint": figures.mountpoint,
        "error": figures.trouble or None,
        "age_seconds": figures.age_s,
        "segments": document.get("segments"),
        "ingest_bytes_per_second": document.get("ingest_bytes_per_second"),
        "next_disk": document["placement"]["next_disk"] if document else None,
        "alerts": document.get("alerts", document["retention"]["alerts"]) if document else [],
        "disks": [_disk(disk, figures.document) for disk in figures.disks],
        "moves": document.get("moves"),
        "rebalance": document.get("rebalance"),
        "decisions": list(figures.decisions),
    }


def _disk(disk: DiskFigures, document: dict[str, Any] | None) -> dict[str, Any]:
    work = disk.work
    return {
        "number": disk.number,
        "path": disk.path,
        "device": disk.device or None,
        "state": disk.state,
        "used_percent": None if disk.used_percent is None else round(disk.used_percent, 2),
        "available_bytes": disk.available_bytes,
        "segments": disk.segments,
        "next_threshold": disk.next_threshold,
        "eta_seconds": disk.eta_s,
        "work": work_of(disk, document) or None,
        "read_bytes_per_second": None if work is None else work.read_bytes_per_second,
        "written_bytes_per_second": None if work is None else work.written_bytes_per_second,
        "read_seconds": None if work is None else work.read_s,
        "write_seconds": None if work is None else work.write_s,
        "busy_ratio": None if work is None else work.busy_ratio,
        "queue": None if work is None else work.queue,
    }
