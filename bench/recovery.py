"""Time without answers when a daemon is killed: from `kill -9` until a client has its answers, on a quiet machine
and beside busy processes.

The clients are separate processes: a process that waits for a dead daemon cannot be interrupted.
"""

import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commitlogfs.bench.datapath_rounds import Tell
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.figures import Target, median
from commitlogfs.bench.served import CommandFailedError, ServedPool
from commitlogfs.bench.targets_disks import BenchDisks
from commitlogfs.store.segment import format_segment_name

QUIET_LIMIT_S, BUSY_LIMIT_S = 0.05, 0.5
_ANSWER_TIMEOUT_S = 60.0
_PAUSE_S = 1.0
"""Pause between two kills, in which the next standby is loaded."""
_FLOOR_SOURCE = Path(__file__).with_name("recovery_floor.c")
_SPIN = [sys.executable, "-I", "-S", "-c", "while True: pass"]


@dataclass(slots=True)
class Recovery:
    """Seconds from a kill to an answer, one value for each kill."""

    load: int
    """Busy processes per processor."""
    seconds: list[float] = field(default_factory=list)
    """Until a client with the daemon's own priority has its answers."""
    ordinary_seconds: list[float] = field(default_factory=list)
    """Until a client with nice 0 has its answers; it competes with the busy processes."""
    floor_seconds: list[float] = field(default_factory=list)
    """Until a C program that waits for the end of a process answers. Empty without a compiler."""
    failed: list[str] = field(default_factory=list)
    """Errors of clients, as they print them."""

    def target(self) -> Target:
        name = f"serves again after kill -9, {self.load} busy processes per processor"
        return Target(name, median(self.seconds), BUSY_LIMIT_S if self.load else QUIET_LIMIT_S, "s")

    def as_json(self) -> dict[str, Any]:
        return {
            "load": self.load,
            "kills": len(self.seconds),
            "seconds": self.seconds,
            "ordinary_seconds": self.ordinary_seconds,
            "floor_seconds": self.floor_seconds,
            "median_seconds": median(self.seconds),
            "max_seconds": max(self.seconds),
            "requests_failed": self.failed,
        }


def measure_recovery(
    work: Path, disks: BenchDisks, settings: Settings, tell: Tell, cpus: int, left_out: dict[str, str]
) -> Iterator[Recovery]:
    """Measure once for each load. Raises CommandFailedError, also if the mount does not answer again."""
    work.mkdir()
    directories = [disk / "kept" for disk in disks.paths]
    with ExitStack() as stack:
        pool = stack.enter_context(
            ServedPool(work, directories, segment_size=settings.broker_segment_bytes, keeper=True)
        )
        pool.run("init", pool.config)
        pool.mount()
        segment = pool.mountpoint / format_segment_name(0).decode()
        with segment.open("xb") as file:
            file.truncate(settings.broker_segment_bytes)
        floor, lack = _compile_floor(work)
        if lack:
            left_out["recovery floor"] = lack
        with _client(segment, "urgent", *([floor] if floor else [])) as urgent, _client(segment) as ordinary:
            for load in settings.loads:
                with busy_processes(load * cpus):
                    yield _measure(
                        pool, urgent, ordinary, Recovery(load), settings.kills, tell, with_floor=not lack
                    )
        pool.unmount()


def _measure(
    pool: ServedPool,
    urgent: "_Client",
    ordinary: "_Client",
    recovery: Recovery,
    kills: int,
    tell: Tell,
    *,
    with_floor: bool,
) -> Recovery:
    for number in range(kills):
        tell(f"recovery: {recovery.load} busy processes per processor, kill {number + 1} of {kills}")
        time.sleep(_PAUSE_S)
        urgent.ask(f"kill {pool.daemon_pid()}")
        killed, _ = urgent.answer()
        ordinary.ask("use")
        for client, seconds in ((urgent, recovery.seconds), (ordinary, recovery.ordinary_seconds)):
            at, said = client.answer()
            seconds.append(round(at - killed, 4))
            if said != "ok":
                recovery.failed.append(said)
        if with_floor:
            urgent.ask("floor")
            (killed, _), (at, _) = urgent.answer(), urgent.answer()
            recovery.floor_seconds.append(round(at - killed, 6))
    return recovery


def _compile_floor(work: Path) -> tuple[Path | None, str]:
    """The program, or the reason why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None, "no C compiler"
    program = work / "recovery_floor"
    command = [compiler, "-O2", "-o", str(program), str(_FLOOR_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (program, "") if done.returncode == 0 else (None, f"{compiler}: {done.stderr.strip()[:200]}")


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs busy processes, each in its own session: with autogroup, sessions share the processors equally, so each
    process gets a full share."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen(_SPIN, stdin=subprocess.DEVNULL, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


class _Client:
    """A client process. Its pipes are not buffered here, so that `select` sees every unread line."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def answer(self) -> tuple[float, str]:
        """Time and text of its next line. Raises CommandFailedError if there is none in time."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _ANSWER_TIMEOUT_S)[0]:
            raise CommandFailedError(
                f"the mount did not answer within {_ANSWER_TIMEOUT_S:g} s of its daemon's death"
            )
        at, _, said = self._process.stdout.readline().decode().strip().partition(" ")
        if not said:
            raise CommandFailedError("the benchmark's client has died")
        return float(at), said


@contextmanager
def _client(*arguments: object) -> Iterator[_Client]:
    command = [sys.executable, "-m", "commitlogfs.bench.recovery_client", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
    )
    try:
        yield _Client(process)
    finally:
        process.kill()  # a client in a request without an answer ends with the mount
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
