"""Output of `commitlogfs top` on its terminal: which, how soon, at which cost."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.flaky_disks import FlakyDisk, flaky_available
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import PoolMount
from support.terminals import Terminal, terminal
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
"""Begin and end of a synchronised update, which the terminal shows at once."""
FIRST_FRAME_S = 0.5
TRIES = 5
"""Number of starts: on a busy machine, at least one of them is not delayed by others."""
FRAME_COST_S = 0.02 * 2.0
"""2 % of a core at the default interval."""


def frames_of(shown: Terminal) -> list[bytes]:
    """The complete updates so far."""
    return [part.partition(END)[0] for part in shown.output.split(BEGIN)[1:] if END in part]


def processor_s(pid: int) -> float:
    """Time that a process has used, its children left out (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_frames_do_not_flicker(shared: PoolMount) -> None:
    shared.make_segments(range(3))
    with terminal(shared, "top", "--interval", "0.3") as shown:
        eventually(lambda: len(frames_of(shown)) >= 6)
        shown.press("s")
        eventually(lambda: b"sort: used" in shown.output)
        shown.press("q")
        assert shown.wait() == 0
        output = shown.output
    enter, _, drawn = output.partition(BEGIN)
    assert enter.count(b"\x1b[2J") == 1
    assert not re.search(rb"\x1b\[[0-3]?J|\x1bc|\r|\n", drawn.rpartition(END)[0].split(END, 1)[1])
    updates = (BEGIN + drawn).split(END)
    assert all(update.startswith(BEGIN) for update in updates[:-2])  # after them, the screen is left
    assert output.count(b"t/wr") == 1, "the heading of the table has not changed"
    assert all(len(frame) < 1000 for frame in frames_of(shown)[2:]), "only changed lines are written"


def test_no_colours_and_no_bold_on_request(shared: PoolMount) -> None:
    def is_styled(*options: str) -> bool:
        with terminal(shared, *options, "top") as shown:
            eventually(lambda: len(frames_of(shown)) >= 1)
            shown.press("q")
            assert shown.wait() == 0
        return bool(re.search(rb"\x1b\[[0-9;]+m", shown.output.partition(END)[0]))

    assert is_styled()
    assert not is_styled("--no-color")


@pytest.mark.timing
def test_the_first_frame_comes_at_once(shared: PoolMount) -> None:
    def start_s() -> float:
        began_s = time.monotonic()
        with terminal(shared, "top") as shown:
            eventually(lambda: any(b" disk2 " in frame for frame in frames_of(shown)))
            took_s = time.monotonic() - began_s
            shown.press("q")
            assert shown.wait() == 0
        return took_s

    tried: list[float] = []
    while len(tried) < TRIES and min(tried, default=FIRST_FRAME_S) >= FIRST_FRAME_S:
        tried.append(start_s())
    assert min(tried) < FIRST_FRAME_S


def test_no_slow_library_is_loaded_for_a_frame() -> None:
    code = "import sys; from commitlogfs.mount.cli import application; application('top'); "
    code += "import commitlogfs.mount.top.live; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "commitlogfs.mount.top.frame" in loaded.split()
    slow = {"pydantic", "trio", "psutil", "rich.console", "tomlkit", "importlib.metadata"}
    assert not slow & set(loaded.split())


@pytest.mark.timing
def test_a_frame_costs_little(shared: PoolMount) -> None:
    interval_s = 0.2
    with terminal(shared, "top", "--interval", str(interval_s)) as shown:
        eventually(lambda: len(frames_of(shown)) >= 2)
        before_s, began_s = processor_s(shown.pid), time.monotonic()
        time.sleep(20 * interval_s)
        cost_s = (processor_s(shown.pid) - before_s) / ((time.monotonic() - began_s) / interval_s)
    assert cost_s < FRAME_COST_S


@pytest.mark.timing
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available() or "-")
def test_it_quits_while_a_disk_hangs(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    """The daemon is dead, so the directories are read, and one disk does not answer."""
    disks = [disk_farm.add(), disk_farm.add(), disk_farm.add_of(FlakyDisk)]
    pool = make_pool(disks=commitlog_directories(*disks))
    pool.start()
    pool.make_segments(range(3))
    pool.kill()
    hanging = disks[2]
    assert isinstance(hanging, FlakyDisk)
    hanging.drop_caches()
    with hanging.hanging(), terminal(pool, "top", pool.config, "--interval", "0.5") as shown:
        eventually(lambda: b"no answer" in shown.output)
        text = shown.text()
        assert re.search(r"1 disk1 +- +\S+ +\d+%", text)
        count = len(frames_of(shown))
        eventually(lambda: len(frames_of(shown)) > count + 2)
        shown.press("q")
        began_s = time.monotonic()
        assert shown.wait() == 0
        assert time.monotonic() - began_s < 1
