"""A keeper over stub daemons, for tests."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.timings import timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench import sweep
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.timing import KeeperTiming, Timing

STUB = Path(__file__).with_name("stub_daemon.py")


@dataclass(slots=True)
class KeptStub:
    """A keeper, started as `commitlogfs mount` starts it, over stub daemons. `end` whatever happens."""

    directory: Path
    name: str = "stub"
    watchdog_s: float = 0.0
    keeper: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    """Starts the keeper by exec."""

    @property
    def mountpoint(self) -> Path:
        return self.directory / "mnt"

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    @property
    def env(self) -> dict[str, str]:
        runs = f"{os.environ[sweep.RUNS_VARIABLE]}:{self.directory}"
        own = {"COMMITLOGFS_RUNTIME_DIR": str(self.runtime), sweep.RUNS_VARIABLE: runs}
        return {**os.environ, **own, **self.environment}

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    def plan(self, *runs: str) -> None:
        (self.directory / "plan").write_text("".join(f"{run}\n" for run in runs))

    def command(self) -> list[str]:
        return [sys.executable, str(STUB), str(self.directory), str(self.mountpoint), self.name]

    def start(self, **options: Any) -> None:
        self.mountpoint.mkdir(exist_ok=True)
        told = Options(self.name, str(self.mountpoint), tuple(self.command()), self.watchdog_s, **options)
        pass_fds = [told.report_fd] if told.report_fd is not None else []
        with (self.directory / "log").open("ab") as log:
            self.keeper = subprocess.Popen(
                [*self.launcher, *told.command_line()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                pass_fds=pass_fds,
            )

    def hurry(self) -> None:
        """Have the keeper that is started next try again after a tenth of a second at most."""
        self.environment.update(timing_variables(Timing(keeper=KeeperTiming(longest_delay_s=0.1))))

    def runs(self) -> list[dict[str, Any]]:
        path = self.directory / "runs"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def standbys(self) -> list[int]:
        """All that ever stood by."""
        path = self.directory / "standbys"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def wait_standby(self, count: int = 1) -> int:
        """Until `count` have stood by; the latest."""
        return eventually(lambda: self.standbys()[count - 1 :])[-1]

    def events(self, name: str) -> list[str]:
        """The keeper's log lines of one event."""
        return [line for line in self.log.splitlines() if f" event={name} " in f"{line} "]

    def wait_ready(self, count: int = 1) -> dict[str, Any]:
        """Until the keeper has seen READY `count` times; the latest run."""
        eventually(lambda: len(self.events("daemon_ready")) >= count)
        return self.runs()[-1]

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        assert self.keeper is not None
        try:
            return self.keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the keeper has not ended in {timeout_s:g} s:\n{self.log}") from None

    def mounts(self) -> list[mountinfo.MountEntry]:
        return [entry for entry in mountinfo.read_mounts() if entry.mountpoint == str(self.mountpoint)]

    def end(self) -> None:
        """Keepers and daemons get each other back: all at once."""
        sweep.kill_processes(self.directory)
        if self.keeper is not None:
            self.keeper.wait()
        while self.mounts():
            subprocess.run(["umount", "-l", str(self.mountpoint)], check=True, capture_output=True)
