"""A mount namespace for each test process: what one worker mounts, no other one sees, and no `doctor` examines."""

import ctypes
import os

from commitlogfs.bench.sweep import KINDS, base_parent, prefix_of
from commitlogfs.mount.linux import mountinfo

_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
"""Constants of <linux/sched.h> and <linux/mount.h>."""


def enter() -> str:
    """Move this process into a new mount namespace, from which nothing propagates.

    Threads that run already stay where they are, so call it in the main thread before any starts. Mounts made
    before remain visible, but for those of other runs of tests and benches: a mount ends only when no namespace has
    it any more. Returns "", or why it is not possible (it needs CAP_SYS_ADMIN).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return f"mount --make-rprivate /: {os.strerror(ctypes.get_errno())}"
    bases = tuple(os.path.join(base_parent(), prefix_of(kind)) for kind in KINDS)
    for entry in reversed(mountinfo.read_mounts()):
        if entry.mountpoint.startswith(bases):
            libc.umount2(os.fsencode(entry.mountpoint), _MNT_DETACH)
    return ""
