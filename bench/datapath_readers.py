"""Several processes that read at the same time, each its own segment, like consumers far behind the log's end."""

import subprocess
import sys
import time
from contextlib import ExitStack

from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.targets import DataTarget
from commitlogfs.bench.targets_disks import drop_caches

_START_TIMEOUT_S = 60.0


def read_at_once(target: DataTarget, settings: Settings) -> float:
    """Total MB/s, cold, from the common start until the last reader has finished. Raises WrongResultError."""
    with ExitStack() as stack:
        readers = [_start(stack, target, index) for index in range(settings.readers)]
        for reader in readers:
            _expect(reader, "ready")
        drop_caches()
        started = time.perf_counter()
        for reader in readers:
            _start_reading(reader)
        for reader in readers:
            _expect(reader, "read")
        seconds = time.perf_counter() - started
        for reader in readers:
            _expect(reader, "verified")
    return settings.readers * target.segment_size / seconds / 1e6


def _start(stack: ExitStack, target: DataTarget, index: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "commitlogfs.bench.datapath_reader", str(target.path(index)), str(index)]
    reader = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )
    stack.callback(_end, reader)
    return reader


def _end(reader: subprocess.Popen[str]) -> None:
    reader.kill()
    reader.communicate()


def _start_reading(reader: subprocess.Popen[str]) -> None:
    assert reader.stdin is not None
    reader.stdin.write("go\n")


def _expect(reader: subprocess.Popen[str], word: str) -> None:
    assert reader.stdout is not None
    said = reader.stdout.readline().strip()
    if said != word:
        raise WrongResultError(f"a reader printed {said or 'nothing'!r} instead of {word!r}")
