"""Waits of threads in the kernel that no signal ends, such as for a disk. A process ends only with its last one."""

from dataclasses import dataclass
from pathlib import Path

_BEYOND_SIGNALS = "D"


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that has continued meanwhile is in another wait."""

    thread: int
    name: str
    """Name of the thread."""
    number: int
    """How often the thread has begun to wait, for anything."""


def read_waits(process: int) -> set[Wait]:
    """The waits of all threads of a process. Reads only /proc: does not block."""
    found = (read_wait(process, int(task.name)) for task in Path(f"/proc/{process}/task").iterdir())
    return {wait for wait in found if wait is not None}


def read_wait(process: int, thread: int) -> Wait | None:
    """The wait in which a thread is at this moment; None if it is in none."""
    try:
        lines = Path(f"/proc/{process}/task/{thread}/status").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if not fields["State"].strip().startswith(_BEYOND_SIGNALS):
        return None
    return Wait(thread, fields["Name"].strip(), int(fields["voluntary_ctxt_switches"]))
