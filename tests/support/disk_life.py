"""A pool whose disks come, go and die, with the real daemon under its keeper: for the model of disk life.

Reads the disks themselves, beside the daemon: it stands still (SIGSTOP) while a test reads them.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.command_line import Ran
from support.faults import FaultPlan
from support.kept import KeptMount
from support.pools import PoolMount
from support.processes import has_ended
from support.timings import BRISK, timing_variables
from support.waiting import eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.store import layout

SIZE = 64 * 1024
"""Bytes of a segment."""
WINDOW_S = 0.05
"""Pause of a daemon before and after each of its steps, so that a test can kill it within a move."""
WINDOW_PATIENCE_S = 30.0
"""How long a daemon may take to its next move."""
STEPS_PATIENCE_S = 0.5
"""How long a daemon may take to the step before which it is to die."""


@dataclass(frozen=True, slots=True)
class BackingFile:
    """One file with a segment's name on a disk."""

    path: Path
    content: bytes
    ino: int
    mtime_ns: int
    moved_from: tuple[int, int, int] | None
    """Disk number, inode and mtime of the file that it was copied from; None without a mark."""


def read_disk(directory: Path) -> dict[int, BackingFile]:
    """The segments of a disk by their index. Raises AssertionError for any other file, and for one that is moved
    or removed meanwhile."""
    found = {}
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if os.fsencode(entry.name) != layout.RETIRED_DIRECTORY]
    for name in names:
        path = directory / name
        assert name.isdecimal(), path
        try:
            status, content = path.stat(), path.read_bytes()
        except FileNotFoundError:
            raise AssertionError(f"{path} was moved or removed meanwhile") from None
        mark = None
        with contextlib.suppress(OSError):
            disk, ino, _, mtime_ns = json.loads(os.getxattr(path, layout.XATTR_MOVED_FROM))
            mark = (int(disk), int(ino), int(mtime_ns))
        found[int(name) // SIZE] = BackingFile(path, content, status.st_ino, status.st_mtime_ns, mark)
    return found


def find_twice(disks: list[Path]) -> int | None:
    """Index of a segment with files on several disks; None if there is none."""
    seen: set[str] = set()
    for disk in disks:
        names = {name for name in os.listdir(disk) if name.isdecimal()}
        if both := seen & names:
            return int(min(both)) // SIZE
        seen |= names
    return None


def set_aside(directory: Path) -> list[str]:
    """Names of the files that a disk keeps because they are open."""
    try:
        return os.listdir(directory / os.fsdecode(layout.RETIRED_DIRECTORY))
    except FileNotFoundError:  # the daemon removes the directory when it is empty
        return []


def recorded_identity(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(os.getxattr(directory, layout.XATTR_IDENTITY))
    return document


def recorded_newest(directory: Path) -> int:
    """Index of the newest segment of the pool, as a disk records it; -1 if it records none."""
    raw = b""
    with contextlib.suppress(OSError):
        raw = os.getxattr(directory, layout.XATTR_NEWEST)
    return int(raw) // SIZE if raw else -1


class DiskLife:
    """The pool, its daemon and keeper, and the faults of the daemon."""

    def __init__(self, directory: Path, count: int, *, passthrough: bool, faults: FaultPlan | None) -> None:
        disks = [directory / f"disk{number}" for number in range(1, count + 1)]
        for disk in disks:
            disk.mkdir(parents=True)
        self._faults = faults
        self.pool = PoolMount(
            directory,
            disks,
            segment_size=SIZE,
            settings={"passthrough": '"auto"' if passthrough else '"off"'},
            variables=timing_variables(BRISK) | ({} if faults is None else faults.variables),
        )
        self.kept = KeptMount(self.pool)
        self.pool.init()

    def start(self) -> None:
        self.kept.start()
        self.await_daemon()

    def stop(self) -> None:
        """Unmount; nobody may have a file of it open."""
        self.pool.stop()

    def kill(self, step: int | None, begin: Callable[[], object] = lambda: None) -> None:
        """Kill the daemon, before its `step`th step since `begin` was called if it comes so far. None comes before
        `kept.go_on`."""
        pid = self.kept.newest_daemon()
        if step is not None and self._faults is not None:
            assert self.pool.daemon is not None
            os.kill(self.pool.daemon.pid, signal.SIGSTOP)
            self._faults.die_at(pid, step)
            with contextlib.suppress(UnreachableError):
                begin()
            with contextlib.suppress(AssertionError):
                eventually(lambda: has_ended(pid), STEPS_PATIENCE_S)
            self._faults.disarm()
        with contextlib.suppress(ProcessLookupError):
            self.kept.kill()

    def kill_within_a_move(self, disk: int) -> int | None:
        """Drain a disk, and kill the daemon between the new name of a copy and the removal of its source. Index of
        the segment; None if the daemon has made no move in time: it is killed then, too. No daemon comes before
        `kept.go_on`."""
        disks = [Path(one["path"]) for one in self.status()["disks"]]
        if self._faults is not None:
            self._faults.slow_down(self.kept.newest_daemon(), WINDOW_S)
            with contextlib.suppress(UnreachableError):
                self.pool.ask("disk-drain", disk=str(disk))
            with contextlib.suppress(AssertionError):
                eventually(lambda: find_twice(disks) is not None, WINDOW_PATIENCE_S)
        self.kept.kill()
        if self._faults is not None:
            self._faults.disarm()
        return find_twice(disks)

    def kill_all(self, step: int | None) -> None:
        """Kill daemon and keeper at once: the mount is dead."""
        self.kill(step)
        self.pool.kill()

    def unmount_dead(self) -> None:
        ran = self.pool.cli("umount", self.pool.mountpoint)
        assert ran.status == 0, ran.err

    def end(self) -> None:
        """At the end of an example, whatever happened in it."""
        if self._faults is not None:
            self._faults.disarm()
        with contextlib.suppress(ProcessLookupError):
            if self.pool.daemon is not None:
                os.kill(self.pool.daemon.pid, signal.SIGCONT)
        self.pool.abandon()

    def use(self, configured: list[Path], *, is_degraded_allowed: bool) -> None:
        """Write the configuration."""
        self.pool.disks = configured
        self.pool.settings["on_missing"] = '"degraded"' if is_degraded_allowed else '"refuse"'
        self.pool.write_config()

    def disk(self, verb: str, *arguments: object) -> Ran:
        """Run `commitlogfs disk VERB ARGUMENTS` for the mount."""
        return self.pool.cli("disk", verb, *arguments, self.pool.name)

    def status(self) -> Any:
        return self.pool.ask("status")

    def restart(self) -> Ran:
        """A daemon that takes a disk back hands over by itself, and for that moment none answers."""

        def asked() -> Ran | None:
            ran = self.pool.cli("restart", self.pool.name)
            return None if ran.status == ExitCode.UNREACHABLE else ran

        return eventually(asked)

    def await_daemon(self) -> None:
        """Wait until the daemon that got ready last answers, and every disk records the list of members."""

        def is_settled() -> bool:
            try:
                document = self.status()
            except (UnreachableError, OSError):
                return False
            is_newest = document["daemon"]["pid"] == self.kept.newest_daemon()
            is_joining = any(disk["state"] == "joining" for disk in document["disks"])
            return is_newest and not is_joining and not document["members"]["lagging"]

        eventually(is_settled, shown=self.pool.log_path.read_text)

    def await_disk(self, number: int) -> None:
        """Wait until a daemon serves the disk: it takes one that is back by itself."""

        def is_served() -> bool:
            try:
                return any(disk["number"] == number for disk in self.status()["disks"])
            except (UnreachableError, OSError):
                return False

        eventually(is_served, shown=self.pool.log_path.read_text)
        self.await_daemon()

    @contextlib.contextmanager
    def dying_at(self, step: int | None) -> Iterator[None]:
        """The daemon dies before its `step`th step in the body, unless that has fewer; None: it does not."""
        if step is None or self._faults is None:
            yield
            return
        before = self.kept.newest_daemon()
        self._faults.die_at(before, step)
        yield
        if self._faults.disarm() >= step:
            eventually(lambda: self.kept.newest_daemon() != before, shown=self.pool.log_path.read_text)
        self.await_daemon()

    def _stop_newest(self) -> int:
        """Its process id; 0 if it has just ended: a daemon hands over by itself when a disk is back."""
        pid = self.kept.newest_daemon()
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return 0
        return pid

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """The daemon does nothing in the body."""
        pid = eventually(self._stop_newest)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
