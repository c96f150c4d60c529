"""Makes the kernel forget names that have gone without its asking.

It locks the mounted directory for that, and so waits for whoever creates something there, until he has his answer.
A thread of ours that waits with it cannot be killed: its process would keep all its locks and go on existing, no
successor could take its place, and nobody would ever give that answer. So a process of its own waits, which has
nothing but the connection.
"""

import contextlib
import logging
import os
import stat
import struct
import subprocess
import sys

import trio

from commitlogfs.fusefs.kernel import inodes, send_notifications
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

# linux/fuse.h
_OUT_HEADER = struct.Struct("=IiQ")
_NOTIFY_INVAL_ENTRY, _INVAL_ENTRY_OUT = 3, struct.Struct("=QII")
_NOTIFY_DELETE, _DELETE_OUT = 6, struct.Struct("=QQII")
_FUSE_DEVICE = os.makedev(10, 229)


def notification(name: bytes, inode: int) -> bytes:
    """That `name` in the mounted directory is gone. `inode`, if it is not 0, was its file, and is deleted: who
    watches it is told."""
    if inode:
        code, body = _NOTIFY_DELETE, _DELETE_OUT.pack(inodes.ROOT, inode, len(name), 0)
    else:
        code, body = _NOTIFY_INVAL_ENTRY, _INVAL_ENTRY_OUT.pack(inodes.ROOT, len(name), 0)
    body += name + b"\0"
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), code, 0) + body


class Invalidation:
    """Names to be forgotten; told to the kernel in the order of their coming, soon."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._wanted = trio.Event()

    def forget(self, name: bytes, inode: int) -> None:
        """As `notification`; also before `run` has begun."""
        self._waiting.append(notification(name, inode))
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled; what a kernel that is busy keeps waiting is left to itself then."""
        device = _find_device()
        while device is not None:
            await self._wanted.wait()
            self._wanted = trio.Event()
            messages, self._waiting = b"".join(self._waiting), []
            told = await trio.to_thread.run_sync(_send, device, messages, abandon_on_cancel=True)
            if told:
                log_event(log, logging.WARNING, "names_not_forgotten", reason=told)


def _send(device: int, messages: bytes) -> str:
    """What went wrong; empty if nothing did."""
    command = [sys.executable, "-I", "-S", send_notifications.__file__, str(device)]
    try:
        sent = subprocess.run(command, input=messages, stderr=subprocess.PIPE, pass_fds=[device], check=False)
    except OSError as error:
        return str(error)
    return sent.stderr.decode(errors="replace").strip()


def _find_device() -> int | None:
    """This process's connection. libfuse gives it to nobody where a session cannot be kept."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == _FUSE_DEVICE:
                return int(name)
    return None
