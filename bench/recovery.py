"""How long a mount does not answer when its daemon is killed: from `kill -9` until a client has its answers.

The client is another process: one that waits for a dead daemon cannot be interrupted.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commitlogfs.bench.datapath_rounds import Tell
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.figures import Target, median
from commitlogfs.bench.served import CommandFailedError, ServedPool
from commitlogfs.bench.targets_disks import BenchDisks
from commitlogfs.store.segment import format_segment_name

LIMIT_S = 0.5
_ANSWER_TIMEOUT_S = 20.0
_PAUSE_S = 1.0
"""Between two kills: whoever restarts a daemon slows down when it dies again and again."""


@dataclass(slots=True)
class Recovery:
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """What went wrong for the client, in its own words."""

    def target(self) -> Target:
        return Target("serves again after kill -9", median(self.seconds), LIMIT_S, "s")

    def as_json(self) -> dict[str, Any]:
        return {
            "kills": len(self.seconds),
            "seconds": self.seconds,
            "median_seconds": median(self.seconds),
            "max_seconds": max(self.seconds),
            "requests_failed": self.failed,
        }


def measure_recovery(work: Path, disks: BenchDisks, settings: Settings, tell: Tell) -> Recovery:
    """Raises CommandFailedError, also when the mount does not come back."""
    recovery = Recovery()
    work.mkdir()
    folders = [disk / "kept" for disk in disks.paths]
    with ServedPool(work, folders, segment_size=settings.broker_segment_bytes, keeper=True) as pool:
        pool.run("init", pool.config)
        pool.mount()
        segment = pool.mountpoint / format_segment_name(0).decode()
        with segment.open("xb") as file:
            file.truncate(settings.broker_segment_bytes)
        with _client(segment) as client:
            _ask(client)
            for number in range(settings.kills):
                tell(f"recovery: kill {number + 1} of {settings.kills}")
                time.sleep(_PAUSE_S)
                pid = pool.status()["daemon"]["pid"]
                started = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                said = _ask(client)
                recovery.seconds.append(round(time.perf_counter() - started, 4))
                if said != "ok":
                    recovery.failed.append(said)
        pool.unmount()
    return recovery


def _ask(client: "subprocess.Popen[str]") -> str:
    """What the client says of one turn. Raises CommandFailedError when it says nothing in time."""
    assert client.stdin is not None  # noqa: S101 - narrowing: both are pipes
    assert client.stdout is not None  # noqa: S101
    client.stdin.write("go\n")
    if not select.select([client.stdout], [], [], _ANSWER_TIMEOUT_S)[0]:
        raise CommandFailedError(f"the mount did not answer within {_ANSWER_TIMEOUT_S:g} s of its daemon's death")
    return client.stdout.readline().strip()


@contextmanager
def _client(segment: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "commitlogfs.bench.recovery_client", str(segment)]
    client = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )
    try:
        yield client
    finally:
        client.kill()  # in a request that nobody answers it ends with the mount
        for pipe in (client.stdin, client.stdout):
            if pipe is not None:
                pipe.close()
