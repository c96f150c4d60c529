"""Mounts made and ended by the test's own process: a child would close its files of a mount, which asks a daemon
that may be dead."""

import ctypes
import os
from pathlib import Path

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def cover(folder: Path) -> None:
    """Something empty on top."""
    _check(_libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, None), folder)


def unmount(folder: Path) -> None:
    _check(_libc.umount2(os.fsencode(folder), 0), folder)


def detach(folder: Path) -> None:
    """As `umount -l`."""
    _check(_libc.umount2(os.fsencode(folder), _MNT_DETACH), folder)


def _check(result: int, folder: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)
