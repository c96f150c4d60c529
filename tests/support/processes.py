"""State of a process according to the kernel."""

import contextlib
import os
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether none of its threads runs any more; whether somebody has waited for it does not matter.

    A process whose first thread has ended looks like a zombie while another one is still held in the kernel, and
    has its descriptors until that ends, too.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def waits_for_fuse(pid: int) -> bool:
    """Whether a thread of the process waits for the answer of a FUSE daemon; False if the process has ended."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # this thread has ended
                if (task / "wchan").read_text() == "request_wait_answer":
                    return True
    return False


def threads(pid: int) -> list[tuple[str, str]]:
    """Names and states of the threads of a process."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        head, _, fields = (thread / "stat").read_text().rpartition(")")
        found.append((head.partition("(")[2], fields.split()[0]))
    return found
