"""Waits of threads in the kernel that no signal ends, such as for a disk. A process ends only with its last one."""

from dataclasses import dataclass
from pathlib import Path

_BEYOND_SIGNALS = "D"


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that has continued meanwhile is in another wait."""

    thread: int
    number: int
    """How often the thread has begun to wait, for anything."""


def read_wait(process: int, thread: int) -> Wait | None:
    """The wait in which a thread is at this moment; None if it is in none."""
    try:
        lines = Path(f"/proc/{process}/task/{thread}/status").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if not fields["State"].strip().startswith(_BEYOND_SIGNALS):
        return None
    return Wait(thread, int(fields["voluntary_ctxt_switches"]))
