"""`make demo`, run whole and interrupted: it shows what it promises, and nothing of it stays."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from commitlogfs.bench import rocketmq
from commitlogfs.bench.demo_site import PREFERRED_ROOT
from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.broker, pytest.mark.timing, pytest.mark.root, pytest.mark.mounted]

DEMO = [sys.executable, "-m", "commitlogfs.bench.demo"]


@dataclass
class Traces:
    """Things that a demo could leave on the machine, all in two directories of the test or in its root."""

    workdir: Path
    runtime: Path
    had_root: bool

    def left(self) -> list[str]:
        found = [f"mount {entry.mountpoint}" for entry in mountinfo.mounts_below(self.workdir)]
        found += [f"file {path}" for directory in (self.workdir, self.runtime) for path in directory.iterdir()]
        found += [f"process {text}" for text in self._processes()]
        for device in Path("/sys/block").glob("loop*/loop/backing_file"):
            backing = device.read_text().strip()
            if backing.startswith(str(self.workdir)):
                found.append(f"loop device of {backing}")
        if PREFERRED_ROOT.exists() and not self.had_root:
            found.append(f"directory {PREFERRED_ROOT}")
        return found

    def _processes(self) -> Iterator[str]:
        for directory in Path("/proc").iterdir():
            if directory.name.isdecimal() and int(directory.name) != os.getpid():
                try:
                    words = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.workdir) in words:
                    yield words


@pytest.fixture
def runtime():
    """Not in the work directory: a socket's path has at most 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="commitlogfs-test-", dir="/run"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def environment(workdir, runtime) -> dict[str, str]:
    return {
        **os.environ,
        "TMPDIR": str(workdir),
        "COMMITLOGFS_RUNTIME_DIR": str(runtime),
        "COLUMNS": "160",
        "NO_COLOR": "1",
    }


@pytest.fixture
def traces(workdir, runtime) -> Traces:
    rocketmq.fetch()  # the demo's own time is what counts, not the network's
    return Traces(workdir, runtime, PREFERRED_ROOT.exists())


def start(environment: dict[str, str]) -> subprocess.Popen[str]:
    """As at a terminal: a process group of its own, which gets the Ctrl-C as a whole."""
    return subprocess.Popen(
        DEMO,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_whole_demo(traces, environment):
    started = time.monotonic()
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - started < 240
    out = done.stdout
    stripes = re.findall(r"^ +[123] .*disk[123] +(\d+) +([█·# .]+)$", out, re.MULTILINE)
    assert len(stripes) == 3, out
    assert all(int(count) >= 4 for count, _ in stripes), out
    assert "20,000 acknowledged" in out
    # A producer whose send timed out sends it again: some may come twice, none may be missing or changed.
    assert re.search(r"20,000 different messages, \d+ twice, 0 corrupted, 0 skipped", out)
    assert "the body in them is the one that was sent" in out
    assert "The broker sees" in out
    assert re.search(r"^ +Demo +2\d,\d{3} ", out, re.MULTILINE), out
    assert re.search(r"\d files, all identical", out)
    numbers = re.findall(r"^(\d+)/(\d+) ", out, re.MULTILINE)
    assert [int(number) for number, _ in numbers] == list(range(1, int(numbers[0][1]) + 1))
    assert "Everything is removed again" in out
    assert traces.left() == []


@pytest.mark.parametrize(
    ("line", "number", "whole_group"),
    [
        ("commitlog: mounted", signal.SIGINT, True),
        ("starting them", signal.SIGINT, True),
        ("starting them", signal.SIGTERM, False),
    ],
)
def test_interrupted_it_clears_up(traces, environment, line, number, whole_group):
    demo = start(environment)
    shown = []
    try:
        for text in demo.stdout:
            shown.append(text)
            if line in text:
                break
        (os.killpg if whole_group else os.kill)(demo.pid, number)
        rest, _ = demo.communicate(timeout=60)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.communicate()
    out = "".join(shown) + rest
    assert demo.returncode == 128 + number, out
    assert "cleaning up" in rest
    assert "Traceback" not in out
    assert traces.left() == []


def test_a_second_interrupt_does_not_cut_the_clearing_short(traces, environment):
    demo = start(environment)
    for text in demo.stdout:
        if "commitlog: mounted" in text:
            break
    os.killpg(demo.pid, signal.SIGINT)
    for text in demo.stdout:
        if "cleaning up" in text:
            break
    os.killpg(demo.pid, signal.SIGINT)
    rest, _ = demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGINT, rest
    assert traces.left() == [], rest


def test_a_failing_step_is_explained_and_cleared_up(traces, environment, runtime):
    """Here the mount: a file lies where the socket's directory should be."""
    in_the_way = runtime / "file"
    in_the_way.write_text("")
    environment["COMMITLOGFS_RUNTIME_DIR"] = str(in_the_way)
    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert str(in_the_way) in done.stdout.partition("This step failed: ")[2]
    assert "Traceback" not in done.stdout + done.stderr
    in_the_way.unlink()
    assert traces.left() == []


def test_without_root_one_line_says_so():
    code = (
        "import io, os, sys, commitlogfs.bench.demo as demo; from rich.console import Console\n"
        "Console(file=io.StringIO()).print(':x:')\n"  # which loads what this user need not be able to read
        "os.setuid(65534); sys.exit(demo.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(r"demo: root is required.*\n", done.stdout), done.stdout + done.stderr
