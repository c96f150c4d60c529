"""Activity of a process, from /proc: it shows whether a silent process is slow or does not run at all."""

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

_STATE, _MINOR_FAULTS, _MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 0, 7, 9, 11, 12
"""Fields of /proc/PID/task/TID/stat, counted from the one after the name (proc(5): 3)."""
_RUNNABLE = frozenset("R")
_ON_ITS_WAY = frozenset("RD")
"""States of a thread that will continue by itself: runnable, or waiting for a disk in the kernel."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thread at one moment. `waited_ns`: runnable without a processor, counted when the wait is over."""

    state: str
    ran_ns: int
    waited_ns: int
    faults: int


_NOT_STARTED = Task("", 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Activity:
    """The threads of a process and of its children at one moment, by id; none if it has ended."""

    tasks: dict[int, Task]

    def has_moved_since(self, former: "Activity") -> bool:
        """Whether any thread has used a processor or loaded memory since `former`, or is about to."""
        return self._has_run(former, _ON_ITS_WAY)

    def has_run_since(self, former: "Activity") -> bool:
        """As `has_moved_since`, but a thread that waits for a disk does not count: the disk may never answer."""
        return self._has_run(former, _RUNNABLE)

    def starved_since(self, former: "Activity") -> float:
        """Longest time, in seconds, that one thread has waited for a processor since `former`; infinity if a
        runnable one has not run at all."""
        longest = 0.0
        for task, before in self._pairs(former):
            if task.state == "R" and task.ran_ns == before.ran_ns:
                return math.inf
            longest = max(longest, (task.waited_ns - before.waited_ns) / 1e9)
        return longest

    def _has_run(self, former: "Activity", on_its_way: frozenset[str]) -> bool:
        return any(
            task.state in on_its_way or (task.ran_ns, task.faults) != (before.ran_ns, before.faults)
            for task, before in self._pairs(former)
        )

    def _pairs(self, former: "Activity") -> list[tuple[Task, Task]]:
        return [(task, former.tasks.get(tid, _NOT_STARTED)) for tid, task in self.tasks.items()]


def read_activity(pid: int) -> Activity:
    """Activity of a process and of its children. Reads only /proc, so it does not block."""
    tasks = _read_tasks(pid)
    for tid in list(tasks):
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/task/{tid}/children").open("rb") as file:
            for child in file.read().split():
                tasks |= _read_tasks(int(child))
    return Activity(tasks)


def _read_tasks(pid: int) -> dict[int, Task]:
    tasks = {}
    with contextlib.suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - once a second, of all threads
            with contextlib.suppress(OSError):  # this thread has ended
                tasks[int(tid)] = _read_task(f"/proc/{pid}/task/{tid}")
    return tasks


def _read_task(directory: str) -> Task:
    with Path(f"{directory}/stat").open("rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    try:
        with Path(f"{directory}/schedstat").open("rb") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        ran_ns, waited_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), 0
    faults = int(fields[_MINOR_FAULTS]) + int(fields[_MAJOR_FAULTS])
    return Task(fields[_STATE].decode(), ran_ns, waited_ns, faults)
