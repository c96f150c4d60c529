"""A pool served by the real daemon, started through the command line as an operator would."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.command_line import COMMAND, Ran, run_cli
from support.timings import BRISK, timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.location import control_socket
from commitlogfs.store.timing import Timing

MIB = 1 << 20


def segment_name(index: int, segment_size: int) -> str:
    return f"{index * segment_size:020d}"


@dataclass(slots=True)
class PoolMount:
    """One pool on some directories, and its mountpoint. `start` and `stop` any number of times."""

    workdir: Path
    disks: Sequence[Path]
    segment_size: int = MIB
    name: str = "test"
    settings: dict[str, str] = field(default_factory=dict)
    """Top-level keys of the configuration, as TOML text of the value: {"placement": '"modulo"'}."""
    disk_settings: dict[int, dict[str, str]] = field(default_factory=dict)
    thresholds: dict[str, str] = field(default_factory=dict)
    retention: dict[str, str] = field(default_factory=dict)
    scrub: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """Further environment of the daemon."""
    launcher: Sequence[str] = ()
    """A command that starts the daemon, in whose place it runs."""
    daemon: subprocess.Popen[bytes] | None = None
    _log_start: int = 0

    @property
    def mountpoint(self) -> Path:
        return self.workdir / "store" / "commitlog"

    @property
    def config(self) -> Path:
        return self.workdir / f"{self.name}.toml"

    @property
    def runtime(self) -> Path:
        return self.workdir / "run"

    @property
    def socket(self) -> Path:
        return self.runtime / f"{self.name}.sock"

    @property
    def log_path(self) -> Path:
        return self.workdir / "daemon.log"

    @property
    def env(self) -> dict[str, str]:
        return {"COMMITLOGFS_RUNTIME_DIR": str(self.runtime)}

    def path(self, index: int) -> Path:
        """The mounted path of segment `index`."""
        return self.mountpoint / segment_name(index, self.segment_size)

    def write_config(self) -> None:
        lines = [f'mountpoint = "{self.mountpoint}"', f"segment_size = {self.segment_size}"]
        lines += [f"{key} = {value}" for key, value in self.settings.items()]
        tables = {"thresholds": self.thresholds, "retention": self.retention, "scrub": self.scrub}
        for table, values in tables.items():
            if values:
                lines += [f"[{table}]", *(f"{key} = {value}" for key, value in values.items())]
        for index, disk in enumerate(self.disks):
            lines += ["[[disks]]", f"path = {json.dumps(str(disk))}"]  # a TOML basic string has the same escapes
            lines += [f"{key} = {value}" for key, value in self.disk_settings.get(index, {}).items()]
        self.config.write_text("\n".join(lines) + "\n")

    def cli(self, verb: str, *arguments: object) -> Ran:
        return run_cli(verb, *arguments, env=self.env)

    def init(self, *arguments: object) -> None:
        self.write_config()
        ran = self.cli("init", self.config, *arguments)
        assert ran.status == 0, ran.err

    def adopt(self, *arguments: object) -> None:
        self.write_config()
        ran = self.cli("adopt", self.config, *arguments)
        assert ran.status == 0, ran.err

    @property
    def passes_through(self) -> bool:
        """Whether the kernel serves the segments by itself, as it does for root by default."""
        return self.settings.get("passthrough") != '"off"'

    def start(self, *options: str) -> None:
        """Serve in a child process; returns when the mount answers. That process is the daemon itself, and with it
        the mount lives and dies, unless `options` of `mount` say otherwise."""
        self.write_config()
        self.launch([*COMMAND, "mount", "-v", *(options or ("--no-keeper",)), str(self.config)])

    def launch(self, command: Sequence[str]) -> None:
        """As `start`, with a command that serves the written configuration."""
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self.daemon = subprocess.Popen(
                [*self.launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env, **self.variables},
            )
        daemon = self.daemon
        eventually(
            lambda: "event=ready" in self.log_since_start() or daemon.poll() is not None,
            shown=self.log_path.read_text,
        )
        assert daemon.poll() is None, self.log_path.read_text()

    def has_open(self, backing: Path) -> bool:
        """Whether the daemon has a file of a disk open: a close(2) is through before the daemon has heard of it.

        By inode: a file that was made without a name is not shown under its present one.
        """
        assert self.daemon is not None
        for link in Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if link.samefile(backing):
                    return True
        return False

    def stop(self) -> None:
        """Unmount plainly and wait for the daemon, which must end well."""
        if self.daemon is None:
            return
        ran = self.cli("umount", self.mountpoint)
        assert ran.status == 0, ran.err
        assert self.daemon.wait(timeout=PATIENCE_S) == 0, self.log_path.read_text()
        self.daemon = None

    def kill(self) -> None:
        """SIGKILL: the mount is dead afterwards."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = None

    def abandon(self) -> None:
        """At the end of a test, whatever happened in it: end the daemon, take the mount and the guard away."""
        subprocess.run(["umount", "-l", str(self.mountpoint)], capture_output=True, check=False)
        if self.daemon is not None:
            try:
                self.daemon.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._kill_all()
            self.daemon = None
        if self.mountpoint.is_dir():
            self.cli("umount", "--unguard", self.mountpoint)

    def _kill_all(self) -> None:
        """The daemons with their keeper: one that outlives it would start another."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGSTOP)
        for process in psutil.Process(self.daemon.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.daemon.kill()
        self.daemon.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_since_start(self) -> str:
        """The complete lines that the daemon started last has logged.

        A reader may see a page of a line before the rest of it, so an unfinished line is left out.
        """
        with self.log_path.open() as log:
            log.seek(self._log_start)
            lines, newline, _unfinished = log.read().rpartition("\n")
            return lines + newline

    def require_logged(self, text: str) -> None:
        """The daemon started last logs this. A thread writes the log, so a line may come after its effect."""
        eventually(lambda: text in self.log_since_start(), shown=self.log_since_start)

    def status(self) -> Any:
        ran = self.cli("status", self.name, "--json")
        assert ran.status == 0, ran.err
        return ran.json()

    def metrics(self) -> str:
        """As they are now; the file in the mount may be a second old."""
        return str(self.ask("metrics")["text"])

    def ask(self, verb: str, **arguments: object) -> Any:
        """The daemon's answer, without a process for the command line."""
        return control_socket.ask(self.socket, verb, PATIENCE_S, **arguments)

    # --- content -------------------------------------------------------------------------------------

    def make_segments(self, indexes: Iterable[int], fill: bool = True) -> None:
        """Make segments the way a broker does: create, one ftruncate, then store."""
        for index in indexes:
            fd = os.open(self.path(index), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.ftruncate(fd, self.segment_size)
                if fill:
                    os.pwrite(fd, segment_bytes(index, 4096), 0)
            finally:
                os.close(fd)

    def disk_of(self, index: int) -> int:
        """Position (0 ...) of the disk that holds segment `index`; exactly one must."""
        name = segment_name(index, self.segment_size)
        holders = [number for number, disk in enumerate(self.disks) if (Path(disk) / name).exists()]
        assert len(holders) == 1, holders
        return holders[0]


@contextmanager
def pool_in(
    directory: Path,
    count: int = 3,
    *,
    disks: Sequence[Path] | None = None,
    born: bool = True,
    times: Timing = BRISK,
    **options: Any,
) -> Iterator[PoolMount]:
    """A pool with `count` new disk directories in `directory`, or with `disks`: born, not yet mounted; unmounted at
    the end. The directories are left.

    `options` are PoolMount's. `variables` with times, such as WITHOUT_CHECKS, replace `times`.
    """
    if disks is None:
        disks = [directory / f"disk{number}" for number in range(count)]
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
    pool = PoolMount(directory, disks, **options)
    pool.variables = timing_variables(times) | pool.variables
    try:
        if born:
            pool.init()
        yield pool
    finally:
        pool.abandon()


def segment_bytes(index: int, length: int) -> bytes:
    """Content that tells which segment it belongs to and where in it."""
    word = b"%020d|" % index
    return (word * (length // len(word) + 1))[:length]
