"""A mount namespace for each test process: what one worker mounts, no other one sees, and no `doctor` examines."""

import ctypes
import os

_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
"""Constants of <linux/sched.h> and <linux/mount.h>."""


def enter() -> str:
    """Move this process into a new mount namespace, from which nothing propagates.

    Threads that run already stay where they are, so call it in the main thread before any starts. Mounts made
    before remain visible. Returns "", or why it is not possible (it needs CAP_SYS_ADMIN).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return f"mount --make-rprivate /: {os.strerror(ctypes.get_errno())}"
    return ""
