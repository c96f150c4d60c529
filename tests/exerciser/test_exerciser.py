"""Reads, writes, mappings and syncs by two processes, in random order, beside an oracle, while daemons die.

$COMMITLOGFS_SEED repeats a run that has found something, $COMMITLOGFS_OPERATIONS makes it longer or shorter.
"""

import contextlib
import os
import random
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

TESTS = Path(__file__).parents[1]
SILENCE_S = 120.0
"""Without an end or the wish for another daemon."""
RESTARTS_SHARE = 0.3
"""The other daemons are killed."""


@pytest.fixture
def runs() -> Iterator["list[Run]"]:
    """All that were started. What waits for a daemon that does not come can only be ended once its mount has."""
    started: list[Run] = []
    yield started
    for run in started:
        run.wait()


@pytest.fixture(params=["passed", "plain"])
def pool(request: pytest.FixtureRequest, runs: "list[Run]", make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Three directories, segments of 1 MiB, with and without passthrough, under a keeper."""
    pool = make_pool(3, settings={"passthrough": '"auto"' if request.param == "passed" else '"off"'})
    pool.start("--watchdog", "0")
    return pool


class Daemons:
    """The daemons of one mount, one after the other."""

    def __init__(self, pool: PoolMount, seed: int) -> None:
        self._pool = pool
        self._random = random.Random(seed)  # noqa: S311
        self._read_to = 0
        self._pid = self._next_ready()
        self.killed = self.restarted = 0

    def replace(self) -> None:
        """Kill the present one, or have it hand over; the next one is ready afterwards."""
        if self._random.random() < RESTARTS_SHARE:
            # Forced: a mount would refuse the copy that may be under way just now.
            ran = self._pool.cli("restart", "--force", self._pool.config)
            assert ran.status == 0, f"{ran.err}\n{last_words(self._pool)}"
            self.restarted += 1
        else:
            os.kill(self._pid, signal.SIGKILL)
            self.killed += 1
        self._pid = self._next_ready()

    def _next_ready(self) -> int:
        try:
            return eventually(self._find_ready)
        except AssertionError as error:
            raise AssertionError(f"no daemon gets ready\n{last_words(self._pool)}") from error

    def _find_ready(self) -> int:
        with self._pool.log_path.open("rb") as log:
            log.seek(self._read_to)
            text = log.read()
        found = re.search(rb" event=ready .*pid=(\d+).*\n", text)
        if found is None:
            return 0
        self._read_to += found.end()
        return int(found[1])


def last_words(pool: PoolMount) -> str:
    """Warnings of the daemons, without expected refusals."""
    lines = [line for line in pool.log_path.read_text().splitlines() if " event=refused " not in line]
    return "\n".join(["the daemons' last words:", *lines[-30:]])


class Run:
    """The exerciser at work on a pool."""

    def __init__(self, pool: PoolMount, seed: int, operations: int, replace_every: int) -> None:
        disks = [argument for disk in pool.disks for argument in ("--disk", str(disk))]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "support.exerciser", str(pool.mountpoint), *disks),
                *("--seed", str(seed), "--operations", str(operations), "--replace-every", str(replace_every)),
                *([] if pool.passes_through else ["--plain"]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

    def finish(self, on_wish: Callable[[], None]) -> tuple[int, str]:
        """Its exit status, and what it has said. `on_wish` is called whenever it wants another daemon."""
        assert self._process.stdin is not None
        said = ""
        for line in self._lines():
            if line == "replace":
                on_wish()
                with contextlib.suppress(BrokenPipeError):  # ended meanwhile: it says why
                    self._process.stdin.write(b"\n")
                    self._process.stdin.flush()
            else:
                said += line + "\n"
        return self._process.wait(SILENCE_S), said

    def kill(self) -> None:
        """Unless it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def wait(self) -> None:
        self._process.wait(SILENCE_S)

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        rest = b""
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], SILENCE_S)
            if not ready:
                self._process.send_signal(signal.SIGABRT)  # its faulthandler tells where it is
                ready, _, _ = select.select([self._process.stdout], [], [], 1.0)
                last = os.read(self._process.stdout.fileno(), 65536) if ready else b""
                raise AssertionError(f"nothing for {SILENCE_S:g} s\n{last.decode(errors='replace')}")
            new = os.read(self._process.stdout.fileno(), 65536)
            if not new:
                break
            *lines, rest = (rest + new).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")


@pytest.fixture
def exercise(pool: PoolMount, runs: list[Run]) -> Iterator[Callable[[int, int, int], Run]]:
    """Starts runs on the pool: (seed, operations, a replacement in every so many of them)."""

    def start(seed: int, operations: int, replace_every: int) -> Run:
        runs.append(Run(pool, seed, operations, replace_every))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


def check(
    pool: PoolMount, exercise: Callable[[int, int, int], Run], operations: int, replace_every: int, test: str
) -> None:
    seed = int(os.environ.get("COMMITLOGFS_SEED", "1"))
    operations = int(os.environ.get("COMMITLOGFS_OPERATIONS", operations))
    daemons = Daemons(pool, seed)
    status, said = exercise(seed, operations, replace_every).finish(daemons.replace)
    command = f"COMMITLOGFS_SEED={seed} COMMITLOGFS_OPERATIONS={operations} python -m pytest {test}"
    assert status == 0, f"the exerciser ended with {status}\n{said}{last_words(pool)}\nonce more: {command}"
    print(f"{said.strip()}; {daemons.killed} daemons killed, {daemons.restarted} restarted")
    state = pool.status()
    assert state["daemon"]["passthrough"] == ("on" if pool.passes_through else "off")
    assert state["daemon"]["restarts"] == daemons.killed + daemons.restarted
    assert {finding["code"] for finding in state["findings"]} == {"disks-share-filesystem"}
    eventually(lambda: pool.status()["segments"]["retired"] == 0)


@pytest.mark.full
def test_no_difference(
    pool: PoolMount, exercise: Callable[[int, int, int], Run], request: pytest.FixtureRequest
) -> None:
    check(pool, exercise, 25_000, 8_000, f"'{request.node.nodeid}'")


@pytest.mark.soak
def test_no_difference_in_a_million(
    pool: PoolMount, exercise: Callable[[int, int, int], Run], request: pytest.FixtureRequest
) -> None:
    check(pool, exercise, 500_000, 5_000, f"'{request.node.nodeid}'")


@pytest.mark.parametrize("pool", ["passed"], indirect=True)
def test_a_byte_changed_behind_its_back_is_found(pool: PoolMount, exercise: Callable[[int, int, int], Run]) -> None:
    """An exerciser that finds nothing proves nothing, unless it finds what is there."""

    def damage() -> None:
        for disk in pool.disks:
            for path in Path(disk).glob("0*"):
                with path.open("r+b") as file:
                    position = file.seek(path.stat().st_size // 2)
                    (byte,) = file.read(1)
                    file.seek(position)
                    file.write(bytes([byte ^ 1]))

    status, said = exercise(1, 1_000_000, 500).finish(damage)
    assert status == 1
    assert re.search(r"step \d+ of seed 1:", said)
    assert re.search(r"DifferenceError: file \d+ \(segment \d+\): 1 wrong bytes", said)
    assert len(re.findall(r"^ +\d+ (?:load|store|read|write|msync)\b", said, re.M)) > 10
