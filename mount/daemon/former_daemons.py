"""Daemons of the same mount that were killed, and have not ended: a disk holds a thread of theirs in the kernel.

Such a process does nothing any more except to complete the system call of each thread that is left, whenever its
disk answers. So the other disks can be served by a successor, and nobody may use those disks before the process has
ended: until then, what the call changes there is open. The threads are known by their names
(fusefs/disks/disk_threads.py).
"""

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitlogfs.console.errors import RefusedError
from commitlogfs.fusefs.disks.disk_threads import disk_of_thread
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.name_lock import release_shared, share_file
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import DaemonTiming

log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
_DEAD: Final = frozenset("ZX")
"""States of a thread that has ended (proc(5))."""


@dataclass(slots=True)
class FormerDaemons:
    """Those that were killed and are still there."""

    ends: dict[int, int] = field(default_factory=dict)
    """By pid; a pidfd that becomes readable at the end of the process."""
    disks: set[DiskNumber] = field(default_factory=set)
    """The disks that hold threads of theirs."""

    def are_gone(self) -> bool:
        """Whether all of them have ended."""
        for pid, pidfd in tuple(self.ends.items()):
            if _has_ended(pidfd):
                os.close(self.ends.pop(pid))
        return not self.ends

    def holder(self, disk: DiskNumber) -> int | None:
        """The pid of one of them, if a disk may hold it."""
        return None if self.are_gone() or disk not in self.disks else min(self.ends)

    def close(self) -> None:
        for pidfd in self.ends.values():
            os.close(pidfd)


@contextlib.contextmanager
def joined(name: str, timing: DaemonTiming) -> Iterator[FormerDaemons]:
    """This process is a daemon of `name` from now on, which its successors know as long as it is there. The value
    are its predecessors.

    Raises RefusedError if another daemon of `name` lives, or does not end for another reason than a disk.
    """
    runtime_directory.ensure_runtime_directory()
    path = runtime_directory.daemons_path(name)
    former = FormerDaemons()
    try:
        fd, others = share_file(path)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be made ({error.strerror}); check the runtime directory") from error
    try:
        for pid in others:
            _add(former, pid, name, timing)
        if former.ends:
            pids, disks = (",".join(map(str, sorted(found))) for found in (former.ends, former.disks))
            log_event(log, logging.WARNING, "former_daemon_held", pids=pids, disks=disks)
        yield former
    finally:
        former.close()
        release_shared(path, fd)


def _add(former: FormerDaemons, pid: int, name: str, timing: DaemonTiming) -> None:
    """Raises RefusedError. While a daemon that is dying has the locks of the disks, they do not keep two others
    apart."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    begun_s = time.monotonic()
    while not _has_ended(pidfd):
        is_dead, waited_s = _is_dead(Path(f"/proc/{pid}/task/{pid}")), time.monotonic() - begun_s
        held = _held_by(pid) if is_dead else set()
        if held:
            former.ends[pid] = pidfd
            former.disks |= held
            return
        if waited_s > (timing.former_end_s if is_dead else timing.former_living_s):
            os.close(pidfd)
            if is_dead:
                raise RefusedError(f"{name}: its former daemon {pid} has not ended; see /proc/{pid}/task")
            raise RefusedError(f"{name}: its daemon is running already; see `commitlogfs status {name}`")
        time.sleep(_PAUSE_S)
    os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    """Whether no thread of the process is left."""
    return bool(select.select([pidfd], [], [], 0)[0])


def _is_dead(thread: Path) -> bool:
    """Whether a thread has ended; the first one of a process that was killed stays as long as the others."""
    return _read_thread(thread)[1] in _DEAD


def _held_by(pid: int) -> set[DiskNumber]:
    """The disks that hold a process of which nothing but their threads is left; empty if there is anything else."""
    held = set[DiskNumber]()
    with contextlib.suppress(FileNotFoundError):  # the process has just ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            name, state = _read_thread(thread)
            disk = disk_of_thread(name)
            if state not in _DEAD and disk is None:
                return set()
            if state not in _DEAD and disk is not None:
                held.add(disk)
    return held


def _read_thread(thread: Path) -> tuple[str, str]:
    """Name and state of a thread (proc(5)); one that is not there any more has ended."""
    try:
        head, _, fields = (thread / "stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return "", "X"
    return head.partition("(")[2], fields.split()[0]


def find_held(paths: Iterable[str], disks: Set[DiskNumber], within_s: float) -> set[str]:
    """The paths that lead to one of these disks, or to one that does not answer within this time. This process does
    not touch them."""
    unknown = set(paths)
    held = set(unknown)
    command = [sys.executable, "-P", "-m", "commitlogfs.store.checks.check_process"]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"".join(json.dumps({"look": path}).encode() + b"\n" for path in sorted(unknown)))
    child.stdin.flush()
    deadline, received = time.monotonic() + within_s, b""
    while unknown and select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(child.stdout.fileno(), 1 << 16)
        if not part:
            break
        *lines, received = (received + part).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            unknown.discard(answer["look"])
            place = answer["place"]
            if place is not None and place["number"] not in disks:
                held.discard(answer["look"])
    child.kill()  # a disk may hold it: it ends with that
    child.stdin.close()
    child.stdout.close()
    return held
