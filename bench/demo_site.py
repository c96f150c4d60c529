"""What the demo puts on the machine, and how all of it goes away again."""

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
_LOG_FOLDER = Path("/var/log/commitlogfs")
_COMMAND_TIMEOUT_S = 180.0


class Site:
    """Folders, disks and the mount. Every `make_*` registers its own undoing; `clear` does them in reverse.

    A failed undoing does not keep the others from being tried.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self.mountpoint = Path()
        self.disks: list[Path] = []

    def later(self, what: str, undo: Callable[[], None]) -> None:
        """Have `undo` done by `clear`, before all that was registered earlier."""
        self._undo.append((what, undo))

    def clear(self) -> list[str]:
        """Undo everything; one line per thing that would not go."""
        left = []
        while self._undo:
            what, undo = self._undo.pop()
            try:
                undo()
            except Exception as error:
                left.append(f"{what}: {error}")
        return left

    def make_work_folder(self, show: Callable[[str], None]) -> Path:
        """What an aborted demo has left is cleared away first; what this one starts is known to belong to it."""
        for line in sweep.sweep_stale():
            show(f"swept, left by an aborted run: {line}")
        work = sweep.create_base("demo")
        self.later(f"folder {work}", lambda: sweep.remove_tree(work))
        belonging = contextlib.ExitStack()
        belonging.enter_context(sweep.belonging_to(work))
        self.later("environment", belonging.close)
        return work

    def make_root(self, work: Path) -> Path:
        """The RocketMQ root: /var/rocketmq, or a folder of ours if that exists."""
        root = PREFERRED_ROOT
        try:
            root.mkdir()
        except OSError:
            root = work / "rocketmq"
            root.mkdir()
        sweep.claim(work, root)
        self.later(f"folder {root}", lambda: sweep.remove_tree(root))
        self.mountpoint = root / "store" / "commitlog"
        return root

    def make_disks(self, work: Path) -> str:
        """Three loop disks, or else three folders; then the reason in words, else ""."""
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
        made = [folder for folder in (runtime_directory.runtime_folder(), _LOG_FOLDER) if not folder.exists()]
        name = name_from(str(self.mountpoint))
        self.later("service files", lambda: self._forget_service_files(name, made))
        self.later(f"mount {self.mountpoint}", self._unmount)
        arguments = ["mount", "--init", ",".join(map(str, self.disks))]
        arguments += ["--segment-size", segment_size, "--daemon", str(self.mountpoint)]
        self.run(*arguments)
        return arguments

    def run(self, *arguments: str, script: str = "commitlogfs") -> str:
        """Run one command to its end and return what it prints. Raises CommandFailedError with its words.

        In a session of its own: an interrupt at the terminal is for the demo alone.
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
            raise CommandFailedError(f"{script} {arguments[0]}: not done after {_COMMAND_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            raise CommandFailedError(done.stderr.strip() or f"{script} {arguments[0]}: {done.returncode}")
        return done.stdout

    def _unmount(self) -> None:
        """Whatever state the mount is in; it is nobody's but ours, and the disks under it go away too."""
        if mountinfo.find_mount(self.mountpoint) is not None or self.mountpoint.is_dir():
            self.run("umount", "--unguard", str(self.mountpoint))

    def _forget_service_files(self, name: str, made: list[Path]) -> None:
        """The locks and the log that the mount called `name` leaves, and the folders that it made for them."""
        for file in (
            runtime_directory.lock_path(name),
            runtime_directory.keeper_lock_path(name),
            daemonize.log_file(name),
        ):
            file.unlink(missing_ok=True)
        for folder in made:
            with contextlib.suppress(OSError):  # somebody else's mount uses it by now
                folder.rmdir()
