"""Invalidates dentries of names that were removed without a request of the kernel.

For that the kernel locks the mounted directory. So it waits for any process that creates something there, until the
daemon has answered that create. A thread that waits with the kernel cannot be killed: its process would keep all
its locks, no successor could take over, and the answer would never come. So a child process waits, which has
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
from commitlogfs.store.timing import DEFAULT, RequestTiming

log = logging.getLogger(__name__)

# linux/fuse.h
_OUT_HEADER = struct.Struct("=IiQ")
_NOTIFY_INVAL_ENTRY, _INVAL_ENTRY_OUT = 3, struct.Struct("=QII")
_NOTIFY_DELETE, _DELETE_OUT = 6, struct.Struct("=QQII")
_FUSE_DEVICE = os.makedev(10, 229)


def notification(name: bytes, inode: int) -> bytes:
    """The message that `name` in the mounted directory is gone. `inode`, if it is not 0, was its file, and is
    deleted: processes that watch it (inotify) are notified."""
    if inode:
        code, body = _NOTIFY_DELETE, _DELETE_OUT.pack(inodes.ROOT, inode, len(name), 0)
    else:
        code, body = _NOTIFY_INVAL_ENTRY, _INVAL_ENTRY_OUT.pack(inodes.ROOT, len(name), 0)
    body += name + b"\0"
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), code, 0) + body


class Invalidation:
    """Names to invalidate. The kernel gets them soon, in the order in which they came."""

    def __init__(self, timing: RequestTiming = DEFAULT.requests) -> None:
        self._retry_s = timing.freeing_s  # no file is freed before the kernel has dropped its name
        self._waiting: list[bytes] = []
        self._wanted = trio.Event()
        self._sent = trio.Event()
        """Set once the kernel has got all names so far."""
        self._sent.set()

    def invalidate(self, name: bytes, inode: int) -> None:
        """Arguments as of `notification`. May be called before `run`."""
        if not self._waiting:
            self._sent = trio.Event()
        self._waiting.append(notification(name, inode))
        self._wanted.set()

    async def sent(self) -> None:
        """Return once the kernel has got all names so far, however long no process can be started for that; never
        if there is no connection to send them by. A caller that others wait for sets a limit of its own."""
        await self._sent.wait()

    async def run(self) -> None:
        """Runs until cancelled. A child process that waits for the kernel is left to itself then."""
        device = _find_device()
        while device is not None:
            await self._wanted.wait()
            self._wanted = trio.Event()
            messages, sent = self._waiting, self._sent
            self._waiting = []
            refusals = await self._send(device, b"".join(messages))
            sent.set()
            if refusals:
                log_event(log, logging.WARNING, "names_not_forgotten", reason=refusals)
            else:
                log_event(log, logging.DEBUG, "names_forgotten", names=len(messages))

    async def _send(self, device: int, messages: bytes) -> str:
        """Return once a child process has sent the messages; later ones wait. The result is that of `_send`.

        Some of them may be sent again after a child that has died. The kernel answers that it does not know the
        name, or drops a dentry that it can look up again.
        """
        logged = set[str]()
        while True:
            try:
                return await trio.to_thread.run_sync(_send, device, messages, abandon_on_cancel=True)
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
                reason = str(error)
            if reason not in logged:
                log_event(log, logging.WARNING, "names_not_forgotten", reason=reason)
                logged.add(reason)
            await trio.sleep(self._retry_s)


def _send(device: int, messages: bytes) -> str:
    """Send the messages through a child process. Returns the kernel's refusals, which are final; empty if there is
    none. Raises OSError if the child cannot be started, or has not sent all."""
    command = [sys.executable, "-I", "-S", send_notifications.__file__, str(device)]
    child = subprocess.run(command, input=messages, stderr=subprocess.PIPE, pass_fds=[device], check=False)
    said = child.stderr.decode(errors="replace").strip()
    if child.returncode:
        raise ChildProcessError(said or f"the process that sends them has ended with status {child.returncode}")
    return said


def _find_device() -> int | None:
    """Descriptor of this process's connection. libfuse does not give it away where a session cannot be kept."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == _FUSE_DEVICE:
                return int(name)
    return None
