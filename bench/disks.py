"""Disks for measurements and the demo: ext4 and xfs in sparse image files, mounted through loop devices.

An image takes only the space that is written to it, and an unmount after `mount -o loop` also frees the
loop device. Needs root.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from commitlogfs.mount.linux import mountinfo

MIB = 1 << 20
XFS_MIN_BYTES = 300 * MIB
"""Minimum size for mkfs.xfs."""

_MKFS = {
    # No reserved blocks; inode tables and journal are written lazily: an image stays small and is ready at once.
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
_TOOL_DIRECTORIES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_UNMOUNT_TIMEOUT_S = 10.0


class DisksUnavailableError(Exception):
    """Loop disks cannot be made here; the message is the reason in one line."""


class LoopDisk:
    """One disk, mounted at `path`. A context manager: destroyed at the end."""

    def __init__(self, path: Path, fstype: str, size_bytes: int) -> None:
        """Makes `path`, which must not exist yet, and beside it the image file, `path`.img, and mounts it.

        Raises DisksUnavailableError, after removing what was made.
        """
        self.fstype = fstype
        self.path = path
        self.image = path.with_name(f"{path.name}.img")
        self.path.mkdir(parents=True)
        try:
            with self.image.open("wb") as image:
                image.truncate(size_bytes)
            _run(*_MKFS[fstype], str(self.image))
            _run("mount", "-t", fstype, "-o", "loop", str(self.image), str(self.path))
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Unmount it and delete directory and image. Raises OSError if it stays busy."""
        deadline = time.monotonic() + _UNMOUNT_TIMEOUT_S
        while mountinfo.find_mount(self.path) is not None:
            done = subprocess.run(["umount", str(self.path)], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                continue
            if time.monotonic() > deadline:
                raise OSError(f"{self.path}: cannot be unmounted: {done.stderr.strip()}")
            time.sleep(0.1)
        self.image.unlink(missing_ok=True)
        self.path.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.destroy()
        except OSError:
            # What has ended the run, such as Ctrl-C, may have left a file open: `sweep` detaches the disk.
            if error is None:
                raise


def why_no_loop_disks() -> str:
    """The reason why loop disks cannot be made; empty if none is known without making one."""
    if os.geteuid() != 0:
        return "loop devices need root"
    for tool in ("mkfs.ext4", "mkfs.xfs"):
        if shutil.which(tool, path=_TOOL_DIRECTORIES) is None:
            return f"{tool} is not installed"
    found = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else f"no loop device is free ({found.stderr.strip()})"


@contextmanager
def frozen(path: Path, at_most_s: float) -> Iterator[Callable[[], None]]:
    """Freeze the filesystem that is mounted there, as a disk that hangs: writes wait in the kernel until it is
    thawed. The value thaws it early. Never leaves it frozen: a watchman of its own process thaws it even when this
    process hangs in it, beyond the reach of any signal."""
    thaw_command = ["fsfreeze", "-u", str(path)]
    watchman = subprocess.Popen(
        ["sh", "-c", f'sleep {at_most_s}; exec "$@"', "watchman", *thaw_command], start_new_session=True
    )
    try:
        subprocess.run(["fsfreeze", "-f", str(path)], check=True)
        is_frozen = True

        def thaw() -> None:
            nonlocal is_frozen
            if is_frozen:
                is_frozen = False
                subprocess.run(thaw_command, check=True)

        try:
            yield thaw
        finally:
            thaw()
    finally:
        os.killpg(watchman.pid, signal.SIGKILL)  # its sleep too
        watchman.wait()


def _run(*command: str) -> None:
    # Its own session: Ctrl-C at the terminal must not interrupt mkfs or mount.
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env={**os.environ, "PATH": _TOOL_DIRECTORIES},
    )
    if done.returncode != 0:
        reason = done.stderr.strip().replace("\n", "; ") or f"status {done.returncode}"
        raise DisksUnavailableError(f"{command[0]}: {reason}")
