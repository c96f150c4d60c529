"""State of a process according to the kernel."""

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
