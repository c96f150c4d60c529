"""A disk that fails or hangs on demand: an image served by nbdkit's filters, through nbdfuse and a loop device.

The kernel sees a block device that answers reads or writes with EIO, as a failing drive does: journals abort by
themselves. Or one that answers late, or not at all.
"""

import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
from support.loop_disks import LoopDisk
from support.waiting import eventually

from commitlogfs.bench.targets_disks import drop_caches
from commitlogfs.mount.linux import mountinfo


def flaky_available() -> str:
    """Why such disks cannot be made here, in words; empty if they can."""
    lacking = [tool for tool in ("nbdkit", "nbdfuse") if shutil.which(tool) is None]
    return f"no {' and no '.join(lacking)}" if lacking else ""


class FlakyDisk(LoopDisk):
    """A LoopDisk over an image that fails on request. It is mounted and works at the start."""

    read_delay_ms: ClassVar[int] = 0
    write_delay_ms: ClassVar[int] = 0

    def __init__(self, directory: Path, fstype: str, size_bytes: int) -> None:
        super().__init__(directory, fstype, size_bytes)
        self._store = directory / "store"
        self._serving = directory / "nbd"
        self._writes_fail = directory / "writes-fail"
        self._reads_fail = directory / "reads-fail"
        self._servers: list[subprocess.Popen[bytes]] = []

    def mount(self, *options: str) -> None:
        """Serves the image first, if that is not done yet."""
        if not self._servers:
            self._serve()
        super().mount(*options)

    def fail_writes(self) -> None:
        """From now on every write to the device is answered with EIO."""
        self._writes_fail.touch()

    def fail_reads(self) -> None:
        """From now on every read from the device is answered with EIO; what is in memory can still be read."""
        self._reads_fail.touch()

    def bypass_cache(self) -> None:
        """Reads get what the device has: else the kernel may return a refused write from its cache of the image."""
        subprocess.run(["losetup", "--direct-io=on", self.device], check=True)

    def drop_caches(self) -> None:
        """The kernel has nothing of the disk in memory but what is in use, so that reads go to the device."""
        for device in (self.path.stat().st_dev, self.image.stat().st_dev):
            number = f"{os.major(device)}:{os.minor(device)}"
            Path(f"/sys/class/bdi/{number}/read_ahead_kb").write_text("0")  # one read brings no neighbours back
        drop_caches(inodes=True, first=self._write_all)

    def _write_all(self) -> None:
        """After that no journal holds on to blocks."""
        for flag in ("--freeze", "--unfreeze"):
            subprocess.run(["fsfreeze", flag, str(self.path)], check=True)

    def heal(self) -> None:
        """The device answers again; a filesystem that has given up does not know that."""
        self._writes_fail.unlink(missing_ok=True)
        self._reads_fail.unlink(missing_ok=True)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """No request to the device is answered meanwhile."""
        server = self._servers[0]
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send_signal(signal.SIGCONT)

    def holds_a_commit(self) -> bool:
        """Whether ext4 waits for the device in the middle of a commit. A change of the same blocks waits with it,
        while one that comes before is made in memory."""
        journal = f"jbd2/{Path(self.device).name}-8"
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == journal:
                    return bool(process.status() == psutil.STATUS_DISK_SLEEP)
        return False

    def destroy(self) -> None:
        self.heal()
        try:
            self.unmount()
            self._stop_serving()
        except BaseException:
            self._kill_servers()
            raise
        super().destroy()

    def _kill_servers(self) -> None:
        """The end of the test takes the mounts away, but not these processes."""
        for server in self._servers:
            server.kill()
            server.wait()
        self._servers.clear()

    def _serve(self) -> None:
        """Move the image behind nbdkit, and put nbdfuse's file in its place."""
        if not self._store.exists():
            self.image.rename(self._store)
            self._serving.mkdir()
            self.image.symlink_to(self._serving / "disk")
        path, served = self.directory / "socket", self._serving / "disk"
        self._start(
            *("nbdkit", "--foreground", "--exit-with-parent", "-U", str(path)),
            *("--filter=error", "--filter=delay", *self._plugin()),
            *("error-pwrite=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={self._writes_fail}"),
            *("error-pread=EIO", "error-pread-rate=100%", f"error-pread-file={self._reads_fail}"),
            *(f"delay-read={self.read_delay_ms}ms", f"delay-write={self.write_delay_ms}ms"),
        )
        eventually(lambda: _listens(path))
        self._start("nbdfuse", str(served), f"nbd+unix:///?socket={path}")
        eventually(lambda: served.is_file() and served.stat().st_size == self.size_bytes)

    def _plugin(self) -> tuple[str, ...]:
        """nbdkit's plugin, and its arguments."""
        return "file", str(self._store)

    def _start(self, *command: str) -> None:
        log = (self.directory / f"{command[0]}.log").open("wb")
        with log:
            self._servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _stop_serving(self) -> None:
        eventually(self._is_released)
        for server in reversed(self._servers):
            server.send_signal(signal.SIGTERM)
            server.wait()
        self._servers.clear()

    def _is_released(self) -> bool:
        """Whether nobody serves the disk to the kernel any more, after an attempt to end that."""
        if mountinfo.find_mount(self._serving) is None:
            return True
        done = subprocess.run(["umount", str(self._serving)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return False


class SlowDisk(FlakyDisk):
    """Each read of the device takes a while."""

    read_delay_ms = 600


class TurningDisk(FlakyDisk):
    """Each request takes as long as on a disk that turns."""

    read_delay_ms = write_delay_ms = 9


class AgeingDisk(FlakyDisk):
    """Every read and write of the device takes longer, on demand. It takes some milliseconds at the start, too,
    like those of a disk that turns."""

    def __init__(self, directory: Path, fstype: str, size_bytes: int) -> None:
        super().__init__(directory, fstype, size_bytes)
        self._delay = directory / "delay"

    def take(self, seconds: float) -> None:
        """From now on, each request takes at least so long."""
        new = self._delay.with_suffix(".new")
        new.write_text(f"{seconds}\n")
        new.rename(self._delay)

    def heal(self) -> None:
        super().heal()
        self.take(0)

    def _plugin(self) -> tuple[str, ...]:
        self.take(0)
        wait = f"read -r delay <{self._delay}; [ $delay = 0 ] || sleep $delay"
        return (
            "eval",
            f"get_size=echo {self.size_bytes}",
            f"pread={wait}; dd iflag=skip_bytes,count_bytes if={self._store} skip=$4 count=$3 status=none",
            f"pwrite={wait}; dd oflag=seek_bytes conv=notrunc of={self._store} seek=$4 status=none",
            "can_write=exit 0",
            "can_flush=exit 0",
            "flush=exit 0",
        )


class CachingDisk(FlakyDisk):
    """Writes reach the disk with a flush of its cache, and not before. So a power cut loses all others."""

    def lose_power(self) -> None:
        """Nothing is answered any more, and nobody can use the disk before `restore_power`."""
        server = self._servers[0]
        server.kill()
        server.wait()

    def restore_power(self) -> None:
        """Mount what the disk has; nobody has a file of it open any more."""
        self.unmount()
        self._stop_serving()
        (self.directory / "socket").unlink()
        self.mount()

    def _plugin(self) -> tuple[str, ...]:
        return "--filter=cache", *super()._plugin(), "cache=writeback"


class BadBlocksDisk(FlakyDisk):
    """Single blocks of the device cannot be read; writes do not make them well."""

    fails_writes_too: ClassVar[bool] = False

    def __init__(self, directory: Path, fstype: str, size_bytes: int) -> None:
        super().__init__(directory, fstype, size_bytes)
        self._bad = directory / "bad"

    def damage(self, name: str, begin: int, end: int) -> None:
        """These positions of a file, which has one extent, cannot be read any more."""
        path = self.path / name
        os.sync()
        shown = subprocess.run(["filefrag", "-b1", "-v", str(path)], capture_output=True, text=True, check=True)
        extents = [line.split(":") for line in shown.stdout.splitlines() if line.strip()[:1].isdigit()]
        assert len(extents) == 1, shown.stdout
        first = int(extents[0][2].split("..")[0])
        with self._bad.open("a") as bad:
            bad.write(f"{first + begin} {first + end}\n")
        self.drop_caches()

    def mend(self) -> None:
        """All of them can be read again."""
        self._bad.write_text("")

    def _plugin(self) -> tuple[str, ...]:
        self._bad.touch()
        is_bad = (
            f"while read -r b e; do [ $4 -lt $e ] && [ $(($4 + $3)) -gt $b ] && "
            f"{{ echo EIO bad block >&2; exit 1; }}; done <{self._bad}"
        )
        return (
            "eval",
            f"get_size=echo {self.size_bytes}",
            f"pread={is_bad}; dd iflag=skip_bytes,count_bytes if={self._store} skip=$4 count=$3 status=none",
            f"pwrite={is_bad if self.fails_writes_too else ':'}; "
            f"dd oflag=seek_bytes conv=notrunc of={self._store} seek=$4 status=none",
            "can_write=exit 0",
            "can_flush=exit 0",
            "flush=exit 0",
        )


class DeadBlocksDisk(BadBlocksDisk):
    """Single blocks can neither be read nor written. The journal is well, so the filesystem continues."""

    fails_writes_too = True

    def refuse_a_page(self, name: str, fd: int, content: bytes, page: int) -> None:
        """Write a file as a whole, and then one page of it again, which cannot be synced: that is left to do."""
        os.pwrite(fd, content, 0)
        os.fsync(fd)
        self.bypass_cache()
        self.damage(name, page * mmap.PAGESIZE, (page + 1) * mmap.PAGESIZE)
        os.pwrite(fd, b"y" * mmap.PAGESIZE, page * mmap.PAGESIZE)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
