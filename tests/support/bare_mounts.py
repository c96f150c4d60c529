"""Mounts made and ended by the test's own process: a child would close its files of a mount, which asks a daemon
that may be dead."""

import ctypes
import os
from pathlib import Path

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def cover(directory: Path) -> None:
    """Something empty on top."""
    _check(_libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, None), directory)


def unmount(directory: Path) -> None:
    _check(_libc.umount2(os.fsencode(directory), 0), directory)


def detach(directory: Path) -> None:
    """As `umount -l`."""
    _check(_libc.umount2(os.fsencode(directory), _MNT_DETACH), directory)


def _check(result: int, directory: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), directory)
