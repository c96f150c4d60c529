"""The child process that checks disks (store/checks/check_process.py).

A thread that hangs in the kernel cannot be killed, nor can its process, and no daemon starts beside one that a disk
still holds. The child has nothing of the daemon but a descriptor of each directory that locks nothing.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from commitlogfs.fusefs.disks.kernel_waits import Wait, read_wait
from commitlogfs.store.checks.check import DiskCheck, Stage
from commitlogfs.store.checks.place import Place
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import CheckTiming

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Asked:
    """A check that a child was asked for."""

    process: int
    """Process id of the child."""
    has_ended: trio.Event = field(default_factory=trio.Event)
    answer: DiskCheck | None = None
    """None if the child has ended without one."""
    stage: Stage | None = None
    """None until the child has begun."""
    thread: int = 0


@dataclass(slots=True)
class Look:
    """The opening of a path, under way."""

    has_ended: trio.Event = field(default_factory=trio.Event)
    place: Place | None = None
    """None if it could not be found out."""


class CheckChild:
    def __init__(self, disks: Iterable[Disk], timing: CheckTiming) -> None:
        self._disks = list(disks)
        self._timing = timing
        self._process: trio.Process | None = None
        self._has_started = trio.Event()
        self._sending = trio.Lock()
        self._descriptors: dict[DiskNumber, int] = {}
        """By which the child knows the disks."""
        self._asked: dict[int, Asked] = {}
        """Checks under way, by descriptor."""
        self._looks: dict[str, Look] = {}
        """Looks under way, by path."""

    async def run(self) -> None:
        """Keep a child until cancelled. One that a disk holds is left to itself then: it ends when the disk
        answers."""
        while True:
            reason = "its process has ended"
            try:
                self._process = await self._start()
                self._has_started.set()
                await self._read_answers(self._process)
            except OSError as error:
                reason = str(error)
            finally:
                await self._end()
            log_event(log, logging.WARNING, "disk_checks_interrupted", reason=reason)
            await trio.sleep(self._timing.child_restart_s)

    async def ask(self, disk: DiskNumber, names: Sequence[bytes], *, may_write: bool) -> Asked | None:
        """Ask for a check of a disk, one at a time; None if there is no child."""
        with trio.move_on_after(self._timing.child_start_s):
            await self._has_started.wait()
        process = self._process
        if process is None:
            return None
        descriptor = self._descriptors[disk]
        request = {"disk": descriptor, "names": [name.decode() for name in names], "write": may_write}
        asked = self._asked[descriptor] = Asked(process.pid)
        return asked if await self._send(process, request) else None

    async def finish(self, disk: DiskNumber) -> None:
        """Return once no check of a disk is under way that has begun before: it may have a segment open that was
        moved meanwhile."""
        asked = self._asked.get(self._descriptors.get(disk, -1))
        if asked is not None:
            await asked.has_ended.wait()

    async def look(self, path: str, patience_s: float) -> Place | None:
        """Where a path leads; None if that cannot be found out now. The answer to an earlier look that was not
        waited for is taken."""
        with trio.move_on_after(self._timing.child_start_s):
            await self._has_started.wait()
        process = self._process
        if process is None:
            return None
        begun = self._looks.get(path)
        if begun is None:
            begun = self._looks[path] = Look()
            if not await self._send(process, {"look": path}):
                return None
        with trio.move_on_after(patience_s):
            await begun.has_ended.wait()
        return begun.place

    async def _send(self, process: trio.Process, request: dict[str, Any]) -> bool:
        """Whether the child may have got the request."""
        assert process.stdin is not None
        try:
            async with self._sending:
                await process.stdin.send_all(json.dumps(request).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False  # its end is reported where its answers are read
        return True

    async def is_blocked(self, asked: Asked) -> bool:
        """Whether the thread that checks waits in the kernel, beyond the reach of signals."""
        return await trio.to_thread.run_sync(read_wait, asked.process, asked.thread) is not None

    def waits(self) -> set[tuple[DiskNumber, Wait]]:
        """Waits of checks under way in the kernel, where no signal ends them. Reads only /proc: does not block."""
        found = set()
        for disk, descriptor in self._descriptors.items():
            asked = self._asked.get(descriptor)
            if asked is not None and asked.thread and not asked.has_ended.is_set():
                wait = read_wait(asked.process, asked.thread)
                if wait is not None:
                    found.add((disk, wait))
        return found

    async def _start(self) -> trio.Process:
        """Raises OSError."""
        self._descriptors = await trio.to_thread.run_sync(self._open_directories)
        descriptors = list(self._descriptors.values())
        command = [sys.executable, "-P", "-m", "commitlogfs.store.checks.check_process", *map(str, descriptors)]
        try:
            return await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                cwd="/",
                start_new_session=True,
            )
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_close_all, descriptors)

    def _open_directories(self) -> dict[DiskNumber, int]:
        """The open directory of the daemon has its lock, which would last as long as the child."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        opened: dict[DiskNumber, int] = {}
        try:
            for disk in self._disks:
                opened[disk.number] = os.open(".", flags, dir_fd=disk.dirfd)
        except OSError:
            _close_all(opened.values())
            raise
        return opened

    async def _read_answers(self, process: trio.Process) -> None:
        """Until the child ends."""
        assert process.stdout is not None
        buffer = b""
        async with process.stdout:
            async for received in process.stdout:
                *lines, buffer = (buffer + received).split(b"\n")
                for line in lines:
                    self._record(json.loads(line))
        await process.wait()

    def _record(self, message: dict[str, Any]) -> None:
        if "look" in message:
            begun, found = self._looks.pop(message["look"]), message["place"]
            begun.place = None if found is None else Place(**found)
            begun.has_ended.set()
            return
        descriptor = message.pop("disk")
        asked = self._asked[descriptor]
        if "stage" in message:
            asked.stage, asked.thread = Stage(message["stage"]), message["thread"]
        else:
            asked.answer = DiskCheck(**message)
            asked.has_ended.set()

    async def _end(self) -> None:
        """End the child, so that its disks can be unmounted as soon as the daemon has ended, and its checks."""
        process, self._process = self._process, None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._timing.child_end_s):
            if process is not None:
                process.kill()
                await process.wait()
        for asked in self._asked.values():
            asked.has_ended.set()
        for begun in self._looks.values():
            begun.has_ended.set()
        self._asked.clear()
        self._looks.clear()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
