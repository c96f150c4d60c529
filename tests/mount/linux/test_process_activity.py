"""Whether a real process runs, waits for a processor or is stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.waiting import eventually

from commitlogfs.mount.linux.process_activity import Activity, Task, read_activity

_SPIN = "print('runs', flush=True)\nwhile True: pass"
_SLEEP = "import signal; print('runs', flush=True)\nwhile True: signal.pause()"
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_SPIN!r}])"


@pytest.fixture
def start() -> Iterator[Callable[[str], int]]:
    with ExitStack() as stack:

        def run(code: str) -> int:
            process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            stack.callback(process.stdout.close)
            assert process.stdout.readline() == b"runs\n"
            return process.pid

        yield run


def _state(pid: int) -> str:
    return read_activity(pid).tasks[pid].state


def test_a_process_that_computes_moves(start: Callable[[str], int]):
    pid = start(_SPIN)
    before = read_activity(pid)
    eventually(lambda: read_activity(pid).tasks[pid].ran_ns > before.tasks[pid].ran_ns)
    assert read_activity(pid).has_moved_since(before)


def test_a_process_that_sleeps_or_is_stopped_does_not_move(start: Callable[[str], int]):
    for code, stop in ((_SLEEP, False), (_SPIN, True)):
        pid = start(code)
        if stop:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda pid=pid, stop=stop: _state(pid) == ("T" if stop else "S"))
        before = read_activity(pid)
        after = read_activity(pid)
        assert not after.has_moved_since(before)
        assert after.starved_since(before) == 0.0


def test_a_child_counts_for_its_parent(start: Callable[[str], int]):
    pid = start(_CHILD)
    before = read_activity(pid)
    assert len(before.tasks) == 2
    eventually(lambda: read_activity(pid).has_moved_since(before))


@pytest.mark.timing
def test_a_process_of_low_priority_starves(start: Callable[[str], int]):
    """Beside others on its one processor."""
    processor = {min(os.sched_getaffinity(0))}
    pids = [start(_SPIN) for _ in range(4)]
    for pid in pids:
        os.sched_setaffinity(pid, processor)
    before = read_activity(pids[0])
    eventually(lambda: read_activity(pids[0]).starved_since(before) > 0.3)


def test_a_runnable_thread_that_never_ran_starves_without_end():
    before = Activity({1: Task("S", 5, 0, 0)})
    assert Activity({1: Task("R", 5, 0, 0)}).starved_since(before) == float("inf")
    assert Activity({1: Task("R", 6, 0, 0)}).starved_since(before) == 0.0
    assert Activity({2: Task("R", 0, 0, 0)}).starved_since(before) == float("inf")


def test_a_process_that_has_ended_has_no_activity():
    process = subprocess.Popen(["true"])
    process.wait()
    assert read_activity(process.pid) == Activity({})
