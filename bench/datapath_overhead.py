"""Cost of the measuring loops: Python's share of each step, the same for every target."""

import mmap
import os
import tempfile
import time
from collections.abc import Callable

from commitlogfs.bench import datapath_content as content
from commitlogfs.bench.datapath_settings import Settings

_REPEATS = 2000


def own_cost_us(settings: Settings) -> dict[str, float]:
    """Microseconds per step without the measured work: an append into memory that exists already, without msync;
    a read at the end of a file, which returns no bytes."""
    step = settings.append_bytes
    record = memoryview(content.make_chunk(0, 0))[:step]
    with mmap.mmap(-1, step) as memory, tempfile.TemporaryFile() as empty:
        memory[:] = bytes(step)
        buffer, fd = bytearray(1 << 20), empty.fileno()

        def append() -> None:
            memory[0:step] = record[0:step]

        def read() -> None:
            os.preadv(fd, [buffer], 0)
            content.starts_with(buffer, 0, 0)

        def page() -> None:
            os.pread(fd, content.PAGE, 0)

        return {"append": _cost(append), "sequential read": _cost(read), "random read": _cost(page)}


def _cost(step: Callable[[], None]) -> float:
    step()
    started = time.perf_counter()
    for _ in range(_REPEATS):
        step()
    return round((time.perf_counter() - started) / _REPEATS * 1e6, 2)
