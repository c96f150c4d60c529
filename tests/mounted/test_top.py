"""`commitlogfs top` on a terminal of tmux, beside a real mount of twelve disks."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount, pool_in
from support.processes import has_ended
from support.tmux import PROMPT, Tmux, tmux
from support.waiting import PATIENCE_S, eventually

from commitlogfs.store.timing import DEFAULT

pytestmark = [pytest.mark.mounted, pytest.mark.root]

TOP = (Path(sys.executable).parent / "commitlogfs", "top")
"""As operators run it: tests' other way loads all verbs first."""
DISKS = 12
SEGMENTS = 14
ROW = re.compile(r" *(\d+) \S+ +(\S+) .* *(\d+)% ")
FRAME = "q quit"
"""Stands on the last line of every frame."""
AT_ONCE_S = 1.0
SELDOM = ("--interval", "600")
"""No frame but those after a key, or another event: within the patience of the tests, none comes by itself."""
at_once = pytest.mark.parametrize(
    "within_s",
    [pytest.param(PATIENCE_S, id="works"), pytest.param(AT_ONCE_S, id="at_once", marks=pytest.mark.timing)],
)


@pytest.fixture(scope="module")
def pool(module_directory: Path) -> Iterator[PoolMount]:
    """A mount with the times of the product, since tests that measure time use it, too."""
    disks = [module_directory / f"data{number}" / "commitlog" for number in range(1, DISKS + 1)]
    for disk in disks:
        disk.mkdir(parents=True)
    with pool_in(module_directory, disks=disks, times=DEFAULT) as pool:
        pool.start()
        pool.make_segments(range(SEGMENTS))
        yield pool


@pytest.fixture
def terminal(pool: PoolMount, tmp_path: Path) -> Iterator[Callable[..., Tmux]]:
    """Makes a terminal of the given size in which the shell waits for commands."""
    shells = []

    def make(width: int = 80, height: int = 24) -> Tmux:
        context = tmux(tmp_path, width, height, pool.env)
        shells.append(context)
        return context.__enter__()

    yield make
    for context in shells:
        context.__exit__(None, None, None)


def top_pid(shell: Tmux) -> int:
    """The process that draws."""

    def find() -> int:
        children = Path(f"/proc/{shell.shell_pid()}/task/{shell.shell_pid()}/children").read_text().split()
        return int(children[0]) if children else 0

    return eventually(find)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def clock(shell: Tmux) -> str:
    """The time in the title of the frame that is shown."""
    found = re.search(r"(\d\d:\d\d:\d\d)$", shell.lines()[0])
    return found[1] if found else ""


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_every_disk_is_readable(terminal: Callable[..., Tmux], width: int, height: int) -> None:
    shell = terminal(width, height)
    shell.run(*TOP)
    shell.eventually_shows(FRAME)
    lines = shell.lines()
    assert "test on /" in lines[0]
    assert "14 segments of 1MiB, log offsets 0 to 14,680,064" in " ".join(lines[:4])
    assert "Next segment: disk 3" in " ".join(lines[:4])
    assert "alert no-takeover: the mount ends if its daemon does" in shell.text()
    assert "-> stop the broker, unmount and" in " ".join(" ".join(lines[:8]).split())
    rows = [match for line in lines if (match := ROW.match(line))]
    assert [(row[1], row[2]) for row in rows] == [(str(number), "rw") for number in range(1, DISKS + 1)]
    heading = next(index for index, line in enumerate(lines) if line.lstrip().startswith("#"))
    assert [bool(ROW.match(line)) for line in lines[heading + 1 : heading + 1 + DISKS]] == [True] * DISKS
    assert shell.wrapped_count() == 0
    assert FRAME in lines[height - 1]
    assert "data12 " in lines[heading + DISKS]
    assert ("below clean (75 %)" in lines[heading + DISKS]) is (width == 200)
    for title in ("state", "used", "next", "seg", "read", "wri", "util", "q"):
        assert title in lines[heading]


@at_once
def test_a_resize_is_followed_at_once(terminal: Callable[..., Tmux], within_s: float) -> None:
    shell = terminal(80, 24)
    shell.run(*TOP, *SELDOM)
    shell.eventually_shows(FRAME)
    assert "per write" not in shell.text()
    eventually(lambda: clock(shell))
    time.sleep(1)  # its second frame comes soon after the first one
    shell.resize(200, 60)
    shell.eventually_shows("per write", within_s)
    assert FRAME in shell.lines()[59]
    shell.resize(70, 12)
    shell.eventually_shows("disks 1-", within_s)
    shown = shell.lines()
    assert len(shown) == 12
    assert "disks 1-" in shown[-1]
    assert shell.wrapped_count() == 0
    shell.press("G")
    shell.eventually_shows(f"of {DISKS}", within_s)
    assert eventually(lambda: any(line.startswith(f"{DISKS} ") for line in shell.lines()), within_s)
    shell.press("k")
    assert eventually(lambda: not any(line.startswith(f"{DISKS} ") for line in shell.lines()), within_s)


@at_once
def test_the_keys_act_at_once(terminal: Callable[..., Tmux], within_s: float) -> None:
    shell = terminal()
    shell.run(*TOP, *SELDOM)
    shell.eventually_shows("sort: number")
    shell.press("s")
    shell.eventually_shows("sort: used", within_s)
    shell.press("?")
    shell.eventually_shows("fill level; marks in the bar", within_s)
    shell.press("x")
    shell.eventually_shows("sort: used", within_s)
    shell.press("p")
    shell.eventually_shows("PAUSED", within_s)
    shell.press("p")
    shell.eventually_shows("every 600 s", within_s)


def test_quit_restores_the_screen(terminal: Callable[..., Tmux]) -> None:
    shell = terminal()
    shell.run("stty", "-a")
    before = shell.eventually_shows("status=0")
    shell.run(*TOP)
    shell.eventually_shows(FRAME)
    assert shell.is_alternate()
    assert not shell.shows_cursor()
    processes = [top_pid(shell), *children_of(top_pid(shell))]
    assert len(processes) == 3
    shell.press("q")
    after = eventually(lambda: shell.text() if shell.text().count("status=0") == 2 else "", shown=shell.text)
    assert after.startswith(before.rstrip()[:-1].rpartition("\n")[0])
    assert not shell.is_alternate()
    assert shell.shows_cursor()
    eventually(lambda: all(map(has_ended, processes)))


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, None), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
)
def test_the_terminal_is_sane_after_a_signal(
    terminal: Callable[..., Tmux], number: signal.Signals, status: int | None
) -> None:
    shell = terminal(80, 40)
    shell.run("stty", "-a")
    former = shell.eventually_shows("status=0")
    assert "echo " in former.replace(";", " ")
    shell.run(*TOP)
    shell.eventually_shows(FRAME)
    processes = [top_pid(shell), *children_of(top_pid(shell))]
    os.kill(processes[0], number)
    if status is not None:  # after a SIGKILL, the shell may write it before the screen is left
        shell.eventually_shows(f"status={status}")
    eventually(lambda: all(map(has_ended, processes)))
    assert not shell.is_alternate()
    assert shell.shows_cursor()
    shell.press("C-l")
    shell.run("stty", "-a")
    shell.eventually_shows("status=0")

    def modes(text: str) -> list[str]:
        return re.findall(r"^[^\n]*[;-].*$", text[text.rindex("speed ") :].partition("status=")[0], re.MULTILINE)

    assert modes(shell.text()) == modes(former)


def test_it_stops_and_continues(terminal: Callable[..., Tmux]) -> None:
    shell = terminal()
    shell.run(*TOP)
    shell.eventually_shows(FRAME)
    shell.press("C-z")
    shell.eventually_shows("Stopped")
    assert not shell.is_alternate()
    assert shell.shows_cursor()
    shell.run("fg")
    shell.eventually_shows(FRAME)
    assert shell.is_alternate()
    pid = top_pid(shell)
    os.kill(pid, signal.SIGSTOP)
    shell.eventually_shows(PROMPT)
    shell.run("fg")
    shell.eventually_shows("every 2 s")
    shell.press("q")
    shell.eventually_shows("status=0")


@at_once
def test_it_draws_while_the_daemon_hangs(pool: PoolMount, terminal: Callable[..., Tmux], within_s: float) -> None:
    assert pool.daemon is not None
    shell = terminal()
    shell.run(*TOP, "--interval", "0.5")
    shell.eventually_shows(FRAME)
    pool.daemon.send_signal(signal.SIGSTOP)
    try:
        shell.eventually_shows("DAEMON AWAY")
        for _ in range(2):
            seen = clock(shell)
            assert eventually(lambda before=seen: clock(shell) != before, 2.5 * within_s)
        shell.press("s")
        shell.eventually_shows("sort: used", within_s)
        rows = [match for line in shell.lines() if (match := ROW.match(line))]
        assert len(rows) == DISKS
    finally:
        pool.daemon.send_signal(signal.SIGCONT)
    eventually(lambda: "DAEMON AWAY" not in shell.text())


def test_a_pipe_gets_one_frame_of_text(pool: PoolMount) -> None:
    done = subprocess.run(
        [*TOP, "--interval", "0.2"], capture_output=True, text=True, env={**os.environ, **pool.env}, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    rows = [line for line in done.stdout.splitlines() if ROW.match(line)]
    assert len(rows) == DISKS
    assert "data1 " in rows[0]


def test_json_has_one_document_for_each_interval(pool: PoolMount) -> None:
    with subprocess.Popen(
        [*TOP, "test", "--json", "--interval", "0.3"], stdout=subprocess.PIPE, env={**os.environ, **pool.env}
    ) as process:
        assert process.stdout is not None
        documents = [json.loads(line) for line in itertools.islice(process.stdout, 3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    times = [document["at"] for document in documents]
    assert times[0] < times[1] < times[2]
    last = documents[-1]
    assert last["error"] is None
    assert last["segments"]["count"] == SEGMENTS
    assert [(disk["number"], disk["path"], disk["state"]) for disk in last["disks"]] == [
        (number, str(path), "rw") for number, path in enumerate(pool.disks, start=1)
    ]
    assert sum(disk["segments"] for disk in last["disks"]) == SEGMENTS
    assert all(0 < disk["used_percent"] < 100 for disk in last["disks"])


@pytest.mark.timing
def test_the_documents_of_json_keep_the_interval(pool: PoolMount) -> None:
    with subprocess.Popen(
        [*TOP, "test", "--json", "--interval", "0.3"], stdout=subprocess.PIPE, env={**os.environ, **pool.env}
    ) as process:
        assert process.stdout is not None
        times = [json.loads(line)["at"] for line in itertools.islice(process.stdout, 2)]
        process.send_signal(signal.SIGINT)
    assert 0.25 < times[1] - times[0] < 2


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("other", "commitlogfs: other: no such mount or configuration"),
        ("--nonsense", "commitlogfs: No such option: --nonsense"),
        ("--interval=0", "commitlogfs: Invalid value for '--interval'"),
    ],
)
def test_usage_errors_are_one_line(pool: PoolMount, argument: str, text: str) -> None:
    done = subprocess.run(
        [*TOP, argument], capture_output=True, text=True, env={**os.environ, **pool.env}, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(text)
    assert done.stderr.count("\n") == 1


def test_devices_and_directories_without_a_daemon(make_pool: Callable[..., PoolMount], tmp_path: Path) -> None:
    """The pool's own daemon is killed while the figures are shown; later ones start without it."""
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(4))
    with tmux(tmp_path, 80, 24, pool.env) as shell:
        shell.run(*TOP, pool.config, "--interval", "0.5")
        shell.eventually_shows("4 segments of 1MiB")
        pool.kill()
        shown = shell.eventually_shows("DAEMON AWAY")
        assert "no daemon is running" in " ".join(shown.split())
        shell.eventually_shows("read from the directories")
        shell.press("q")
        shell.eventually_shows("status=0")
    ran = pool.cli("top", pool.config, "--once", "--json", "--interval", "0.2")
    assert ran.status == 3
    document = ran.json()
    assert "no daemon is running" in document["error"]
    assert document["age_seconds"] is None
    assert [disk["segments"] for disk in document["disks"]] == [2, 1, 1]
    assert all(disk["used_percent"] > 0 for disk in document["disks"])
    frame = pool.cli("top", pool.config, "--once", "--interval", "0.2")
    assert frame.status == 3
    assert re.findall(r"^(\d) disk\d +- ", frame.out, re.MULTILINE) == ["1", "2", "3"]
