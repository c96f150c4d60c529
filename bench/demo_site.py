"""Creates the demo's directories, disks and mount, and removes all of them."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from commitlogfs.bench import sweep
from commitlogfs.bench.disks import DisksUnavailableError, LoopDisk, why_no_loop_disks
from commitlogfs.bench.served import CommandFailedError, cli_command
from commitlogfs.mount.daemon import daemonize
from commitlogfs.mount.daemon.arguments import name_from
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory

PREFERRED_ROOT = Path("/var/rocketmq")
DISK_BYTES = 1 << 30
FSTYPES = ("ext4", "xfs", "ext4")
_LOG_DIRECTORY = Path("/var/log/commitlogfs")
_COMMAND_TIMEOUT_S = 180.0


class Site:
    """Directories, disks and the mount. Every `make_*` registers how to undo it; `clear` undoes all in reverse
    order.

    If one step of `clear` fails, the others still run.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self.mountpoint = Path()
        self.disks: list[Path] = []

    def later(self, what: str, undo: Callable[[], None]) -> None:
        """Register `undo` for `clear`, which runs it before those registered earlier."""
        self._undo.append((what, undo))

    def clear(self) -> list[str]:
        """Undo everything; one line for each failure."""
        left = []
        while self._undo:
            what, undo = self._undo.pop()
            try:
                undo()
            except Exception as error:
                left.append(f"{what}: {error}")
        return left

    def make_work_directory(self, show: Callable[[str], None]) -> Path:
        """Make the working directory of this run, after removing the remains of aborted runs."""
        for line in sweep.sweep_stale():
            show(f"removed, left by an aborted run: {line}")
        work = sweep.create_base("demo")
        self.later(f"directory {work}", lambda: sweep.remove_tree(work))
        belonging = contextlib.ExitStack()
        belonging.enter_context(sweep.belonging_to(work))
        self.later("environment", belonging.close)
        return work

    def make_root(self, work: Path) -> Path:
        """The RocketMQ root: /var/rocketmq, or a directory in the base directory if that exists."""
        root = PREFERRED_ROOT
        try:
            root.mkdir()
        except OSError:
            root = work / "rocketmq"
            root.mkdir()
        sweep.claim(work, root)
        self.later(f"directory {root}", lambda: sweep.remove_tree(root))
        self.mountpoint = root / "store" / "commitlog"
        return root

    def make_disks(self, work: Path) -> str:
        """Make three loop disks, or three directories; returns the reason for directories, else ""."""
        lack = why_no_loop_disks()
        for number, fstype in enumerate(FSTYPES, start=1):
            path = work / f"disk{number}"
            if not lack:
                try:
                    disk = LoopDisk(path, fstype, DISK_BYTES)
                except DisksUnavailableError as error:
                    lack = str(error)
                else:
                    self.later(f"disk {path}", disk.destroy)
            path.mkdir(exist_ok=True)
            self.disks.append(path)
        return lack

    def mount(self, segment_size: str) -> list[str]:
        """Make a pool of the disks and mount it; the command's arguments. Raises CommandFailedError."""
        made = [
            directory
            for directory in (runtime_directory.runtime_directory(), _LOG_DIRECTORY)
            if not directory.exists()
        ]
        name = name_from(str(self.mountpoint))
        self.later("service files", lambda: self._forget_service_files(name, made))
        self.later(f"mount {self.mountpoint}", self._unmount)
        arguments = ["mount", "--init", ",".join(map(str, self.disks))]
        arguments += ["--segment-size", segment_size, "--daemon", str(self.mountpoint)]
        self.run(*arguments)
        return arguments

    def run(self, *arguments: str, script: str = "commitlogfs") -> str:
        """Run one command to its end and return what it prints. Raises CommandFailedError with its error message.

        It runs in its own session: an interrupt at the terminal must reach only the demo.
        """
        width = str(shutil.get_terminal_size().columns)
        command = cli_command(*arguments, script=script)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMMAND_TIMEOUT_S,
                env={**os.environ, "COLUMNS": width},
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise CommandFailedError(
                f"{script} {arguments[0]}: not finished after {_COMMAND_TIMEOUT_S:g} s"
            ) from None
        if done.returncode != 0:
            raise CommandFailedError(done.stderr.strip() or f"{script} {arguments[0]}: {done.returncode}")
        return done.stdout

    def _unmount(self) -> None:
        """Unmount in any state: nothing else uses this mount, and its disks are removed, too."""
        if mountinfo.find_mount(self.mountpoint) is not None or self.mountpoint.is_dir():
            self.run("umount", "--unguard", str(self.mountpoint))

    def _forget_service_files(self, name: str, made: list[Path]) -> None:
        """Remove the locks and the log of the mount `name`, and the directories that it made for them."""
        for file in (
            runtime_directory.lock_path(name),
            runtime_directory.keeper_lock_path(name),
            daemonize.log_file(name),
        ):
            file.unlink(missing_ok=True)
        for directory in made:
            with contextlib.suppress(OSError):  # another mount uses the directory
                directory.rmdir()
