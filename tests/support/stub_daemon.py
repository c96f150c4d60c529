"""A daemon that does nothing but speak the keeper's protocol over a mount that nobody answers for.

Run as a program: `stub_daemon.py DIR MOUNTPOINT NAME`. Each run takes the first line of DIR/plan, a list
of steps, and appends one line of JSON to DIR/runs, which says what it was started with. One that stands by
notes its pid in DIR/standbys (and cannot be loaded if DIR/broken is there, and is busy for as many seconds as
DIR/slow says), and runs when it is called.
Without a plan it mounts (or takes over), is READY and feeds the watchdog until it is killed; a signal that
stops it is noted in DIR/signals and ends it with status 0 after an unmount.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

DEFAULT_STEPS = "mount store handle ready serve"
STANDBY_OPTION = "--standby-fd"


class Stub:
    def __init__(self, directory: Path, mountpoint: str, name: str) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked by the keeper while a daemon loads
        self.directory, self.mountpoint, self.name = directory, mountpoint, name
        self.received = self._stand_by() if STANDBY_OPTION in sys.argv else self._received()
        self.device = self.received.get("fuse", -1)

    def _received(self) -> dict[str, int]:
        if os.environ.get("LISTEN_PID") != str(os.getpid()):
            return {}
        names = os.environ.get("LISTEN_FDNAMES", "").split(":")
        return {name: 3 + index for index, name in enumerate(names[: int(os.environ.get("LISTEN_FDS", "0"))])}

    def _stand_by(self) -> dict[str, int]:
        from commitlogfs.mount.daemon.standby import wait_until_called
        from commitlogfs.store.timing import DEFAULT

        with (self.directory / "standbys").open("a") as standbys:
            standbys.write(f"{os.getpid()}\n")
        if (self.directory / "broken").exists():
            sys.exit(1)
        if (self.directory / "slow").exists():
            ready_at = time.monotonic() + float((self.directory / "slow").read_text())
            while time.monotonic() < ready_at:
                pass
        return wait_until_called(int(sys.argv[sys.argv.index(STANDBY_OPTION) + 1]), DEFAULT.keeper.start_s)

    def steps(self) -> Sequence[str]:
        path = self.directory / "plan"
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            return DEFAULT_STEPS.split()
        path.write_text("".join(f"{line}\n" for line in lines[1:]))
        return lines[0].split()

    def tell_run(self) -> None:
        manager = ("LISTEN_", "WATCHDOG_", "NOTIFY_")
        run = {
            "pid": os.getpid(),
            "keeper": os.getppid(),
            "time": time.monotonic(),
            "arguments": sys.argv[4:],
            "environment": {key: value for key, value in os.environ.items() if key.startswith(manager)},
            "fds": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds()},
            "cwd": os.getcwd(),
        }
        with (self.directory / "runs").open("a") as runs:
            runs.write(json.dumps(run) + "\n")

    def run(self) -> None:
        # What is open and set at the very start, before anything here adds to it.
        self.tell_run()
        for step in self.steps():
            verb, _, argument = step.partition(":")
            getattr(self, f"do_{verb}")(argument)

    def do_mount(self, _: str) -> None:
        if self.device >= 0:
            return
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        target = os.fsencode(self.mountpoint)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(self.name.encode(), target, b"fuse.commitlogfs", 6, options) == 0, ctypes.get_errno()

    def do_store(self, name: str) -> None:
        if not self.received:
            self._notify(f"FDSTORE=1\nFDNAME={name or 'fuse'}\nFDPOLL=0", [self.device])

    def do_ready(self, _: str) -> None:
        self._notify("READY=1\nSTATUS=serving")

    def do_say(self, text: str) -> None:
        self._notify(text.replace("|", "\n"))

    def do_barrier(self, _: str) -> None:
        reader, writer = os.pipe()
        self._notify("BARRIER=1", [writer])
        os.close(writer)
        os.read(reader, 1)
        (self.directory / "barrier").touch()

    def do_report(self, text: str) -> None:
        fd = int(sys.argv[sys.argv.index("--report-fd") + 1])
        os.write(fd, text.encode())
        os.close(fd)

    def do_prepare(self, _: str) -> None:
        """Its result goes to DIRECTORY/prepared."""
        from commitlogfs.mount.daemon.successor import prepare

        with (self.directory / "prepared").open("a") as prepared:
            prepared.write(f"{prepare(3.0)}\n")

    def do_exit(self, status: str) -> None:
        sys.exit(int(status))

    def do_crash(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_child(self, text: str) -> None:
        """Another process says it."""
        pid = os.fork()
        if pid == 0:
            self.do_say(text)
            os._exit(0)
        os.waitpid(pid, 0)

    def do_wait(self, name: str) -> None:
        while not (self.directory / name).exists():
            time.sleep(0.01)

    def do_hang(self, _: str) -> None:
        while True:
            signal.pause()

    def do_handle(self, _: str) -> None:
        """From here on, a signal that stops a daemon unmounts, unless DIRECTORY/busy is there."""

        def stop(number: int, _frame: object) -> None:
            with (self.directory / "signals").open("a") as signals:
                signals.write(f"{signal.Signals(number).name}\n")
            if not (self.directory / "busy").exists():
                self._notify("STOPPING=1")
                self._unmount()
                self._notify("FDSTOREREMOVE=1\nFDNAME=fuse")
                os._exit(0)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, lambda *_: (self.directory / "hung up").touch())

    def _unmount(self) -> None:
        """The keeper's probe makes it busy for a moment."""
        command = ["umount", "--no-canonicalize", self.mountpoint]
        while self._is_mounted() and subprocess.run(command, check=False).returncode != 0:
            time.sleep(0.02)

    def _is_mounted(self) -> bool:
        """By the kernel's table: a stat would wait for this daemon."""
        return f" {self.mountpoint} " in Path("/proc/self/mounts").read_text(errors="surrogateescape")

    def do_serve(self, _: str) -> None:
        interval_us = int(os.environ.get("WATCHDOG_USEC", "0"))
        while True:
            if interval_us:
                self._notify("WATCHDOG=1")
            time.sleep(interval_us / 3e6 if interval_us else 3600)

    def do_adoptable(self, _: str) -> None:
        """Serve with a watch over the keeper."""
        import trio

        from commitlogfs.mount.daemon.keeper_watch import KeeperWatch
        from commitlogfs.mount.linux import logs
        from commitlogfs.store.timing import DEFAULT

        with logs.logging_to():
            trio.run(KeeperWatch(DEFAULT.daemon).run, {"fuse": self.device})
            trio.run(trio.sleep_forever)

    def _notify(self, state: str, fds: Sequence[int] = ()) -> None:
        from commitlogfs.mount.linux import notify

        assert notify.notify(state, fds)


def _open_fds() -> list[int]:
    found = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in found if _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    Stub(Path(sys.argv[1]), sys.argv[2], sys.argv[3]).run()
