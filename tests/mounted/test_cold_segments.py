"""A disk stops to answer when nothing of its segments is in memory: its readers wait, and nobody else."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.filling import status
from support.flaky_disks import FlakyDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import PoolMount, segment_bytes
from support.timings import BRISK, timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux.probe import probe_mount

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.alone,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available() or "available"),
]

SIZE = 1 << 16
COUNT = 90
ROUNDS = 3
READERS = 6
DEFAULT_BACKGROUND = 12
"""Reads that the kernel lets wait at once for the whole mount, unless the daemon says otherwise."""
PATIENT = timing_variables(replace(BRISK, requests=replace(BRISK.requests, open_s=1e9)))
"""An open waits for its disk; by default it ends with an error after seconds."""
_READ_ALL = """
import os, sys, threading
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
print("open", flush=True)
sys.stdin.readline()
contents = {}
def read(file):
    contents[file] = os.pread(file, 64, 0)
threads = [threading.Thread(target=read, args=[file]) for file in files]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.buffer.write(b"".join(contents[file] for file in files))
"""


class Pool:
    """Three disks, of which the first one can hang, with the same number of segments."""

    def __init__(self, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], passthrough: str) -> None:
        self.silent = disk_farm.add_of(FlakyDisk)
        self.others = [disk_farm.add(), disk_farm.add()]
        self.mount = make_pool(
            disks=commitlog_directories(self.silent, *self.others),
            segment_size=SIZE,
            settings={"passthrough": f'"{passthrough}"'},
            variables=PATIENT,
        )
        self.mount.start("--watchdog", "3")
        self.mount.make_segments(range(COUNT))
        self.daemon = KeptMount(self.mount).newest_daemon()
        self.silent.bypass_cache()
        self.on_silent = [index for index in range(COUNT) if self.mount.disk_of(index) == 0]

    def forget(self) -> None:
        """The kernel keeps nothing of any disk in memory but what is in use."""
        for disk in self.others:
            for flag in ("--freeze", "--unfreeze"):  # no journal holds on to blocks
                subprocess.run(["fsfreeze", flag, str(disk.path)], check=True)
        for _ in range(ROUNDS):
            self.silent.drop_caches()

    def require_answers(self) -> None:
        """To requests that do not need the disk."""
        others = [self.mount.path(index) for index in range(COUNT) if index not in self.on_silent]
        require_end("cat", str(others[-1]))
        require_end("stat", *(str(self.mount.path(index)) for index in range(COUNT)))
        require_end("ls", "-l", str(self.mount.mountpoint))
        require_end("stat", "-f", str(self.mount.mountpoint))
        require_end("truncate", "-s", str(SIZE), str(self.mount.path(COUNT)))
        assert probe_mount(self.mount.mountpoint, PATIENCE_S).reason == ""

    def require_same_daemon(self) -> None:
        """After some intervals of the watchdog."""
        eventually(lambda: "event=disk_unresponsive" in self.mount.log_since_start())
        assert status(self.mount)["daemon"]["pid"] == self.daemon
        assert "daemon_hung" not in self.mount.log_since_start()


@pytest.fixture(params=["auto", "off"], ids=["passed", "plain"])
def pool(request: pytest.FixtureRequest, disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> Pool:
    return Pool(disk_farm, make_pool, request.param)


def require_end(*command: str) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert eventually(lambda: process.poll() is not None), command
    assert process.returncode == 0


def waiting_threads(pid: int) -> int:
    """Threads that wait for the disk, or for the daemon."""
    return sum(waits(task) for task in Path(f"/proc/{pid}/task").iterdir())


def waits(task: Path) -> bool:
    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "D" or (task / "wchan").read_text() == "request_wait_answer"


def test_opens(pool: Pool) -> None:
    chosen = pool.on_silent[:READERS]
    pool.forget()
    with ExitStack() as stack:
        readers = []
        with pool.silent.hanging():
            for index in chosen:
                command = ["head", "-c", "64", str(pool.mount.path(index))]
                readers.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)))
            eventually(lambda: all(waiting_threads(reader.pid) for reader in readers))
            pool.require_answers()
            pool.require_same_daemon()
            assert all(reader.poll() is None for reader in readers)
        for index, reader in zip(chosen, readers, strict=True):
            assert reader.communicate(timeout=PATIENCE_S)[0] == segment_bytes(index, 64)


def test_reads(pool: Pool) -> None:
    """Without passthrough, more than the kernel sends at once by default."""
    chosen = pool.on_silent
    command = [sys.executable, "-c", _READ_ALL, *(str(pool.mount.path(index)) for index in chosen)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"open\n"
        pool.forget()
        with pool.silent.hanging():
            reader.stdin.write(b"\n")
            reader.stdin.flush()
            eventually(lambda: waiting_threads(reader.pid) > DEFAULT_BACKGROUND)  # a page may have stayed in memory
            pool.require_answers()
            pool.require_same_daemon()
        assert reader.stdout.read() == b"".join(segment_bytes(index, 64) for index in chosen)
