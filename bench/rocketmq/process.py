"""Java processes: command lines, and servers with a home directory, a log file and a clean end."""

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import StartFailedError, StopTimeoutError
from commitlogfs.bench.rocketmq.helper import write_conf

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 120.0
_KILL_DEADLINE_S = 20.0
JVM_FLAGS = "COMMITLOGFS_JVM_FLAGS"
"""An environment variable: flags for every JVM that is started here."""
_POLL_S = 0.05
_TAIL_BYTES = 4000


def java_command(
    distribution: Distribution, main_class: str, *arguments: str, jvm: Sequence[str] = (), user_home: Path
) -> list[str]:
    """Command line of one JVM; `jvm` flags come last and so win. Nothing is written outside `user_home`."""
    return [
        "java",
        # 4.9.7 and 5.1.4 reach into these on JDK 17.
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "-XX:-UsePerfData",
        # RocketMQ formats segment names in the default locale: keep the digits ASCII.
        "-Duser.language=en",
        "-Duser.country=US",
        "-Drocketmq.client.logUseSlf4j=true",
        f"-Drmq.logback.configurationFile={distribution.helper / 'rmq.logback.xml'}",
        f"-Duser.home={user_home}",
        *os.environ.get(JVM_FLAGS, "").split(),
        *jvm,
        "-cp",
        distribution.class_path,
        main_class,
        *arguments,
    ]


class JavaServer:
    """One server in its own session and process group; as a context manager, started at the beginning and killed at
    the end.

    Subclasses define the command line and the readiness check. The home directory, `work_dir`/`name`, survives
    restarts; the output of all starts is appended to `log_file` in it.
    """

    def __init__(
        self,
        distribution: Distribution,
        work_dir: Path,
        name: str,
        *,
        jvm: Sequence[str] = (),
        log_level: str = "WARN",
        user: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        self.distribution = distribution
        self.name = name
        self.home = work_dir / name
        self.log_file = self.home / f"{name}.log"
        self._jvm = (
            f"-Dcommitlogfs.log.level={log_level}",
            f"-XX:ErrorFile={self.home}/hs_err.log",
            f"-Djava.io.tmpdir={self.home}",  # a killed server leaves its TLS keys and native libraries there
            *jvm,
        )
        self._user = user
        self._env = dict(env or {})
        self._preexec = preexec
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.home.mkdir(parents=True, exist_ok=True)
        write_conf(self.home)

    def _arguments(self) -> list[str]:
        """Main class and its arguments; writes the configuration they name."""
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Process id of the last start; StartFailedError before the first."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """None while running and before the first start; -9 after `kill`, 143 after a clean stop."""
        return None if self._process is None else self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_DEADLINE_S) -> Self:
        """Spawn and wait until it serves; StartFailedError (with the log's tail) leaves nothing running."""
        self.spawn()
        self.wait_ready(timeout_s)
        return self

    def spawn(self) -> None:
        """Start without waiting, for tests that expect it to fail or to hang."""
        if self.is_running:
            raise StartFailedError(f"{self.name} is already running as pid {self.pid}")
        main_class, *arguments = self._arguments()
        command = java_command(self.distribution, main_class, *arguments, jvm=self._jvm, user_home=self.home)
        uid, gid = self._user or (None, None)
        if self._user is not None:
            self._give_home(*self._user)
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env={**os.environ, "ROCKETMQ_HOME": str(self.home), **self._env},
                start_new_session=True,
                user=uid,
                group=gid,
                extra_groups=None if gid is None else [],
                preexec_fn=self._preexec,
            )
        _running.add(self)

    def wait_ready(self, timeout_s: float = START_DEADLINE_S) -> None:
        """Wait until it serves; otherwise end it and raise StartFailedError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise StartFailedError(f"{self.name} exited with {self.returncode}\n{self.log_tail()}")
            try:
                if self._is_ready():
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(_POLL_S)
        self.kill()
        raise StartFailedError(f"{self.name} was not ready after {timeout_s:g} s\n{self.log_tail()}")

    # A clean stop of 4.9.7 takes some 6 s, of 5.x 12 to 19 s, most of it asleep in thread joins.
    def stop(self, timeout_s: float = STOP_DEADLINE_S) -> int:
        """Clean stop (SIGTERM), returns the exit status. Too slow: killed, and StopTimeoutError."""
        process = self._started()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise StopTimeoutError(f"{self.name} did not stop in {timeout_s:g} s\n{self.log_tail()}") from None
        _running.discard(self)
        return process.returncode

    def kill(self) -> None:
        """SIGKILL and wait; harmless when it is not running. StopTimeoutError when it hangs in the kernel."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise StopTimeoutError(
                f"{self.name} (pid {self.pid}) did not end after SIGKILL: it hangs in the kernel"
            ) from None
        _running.discard(self)

    def wait(self, timeout_s: float) -> int:
        """Exit status, once it ends by itself; StopTimeoutError when it does not."""
        try:
            return self._started().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise StopTimeoutError(f"{self.name} still runs after {timeout_s:g} s") from None

    def log_text(self, *, all_starts: bool = False) -> str:
        """Output of the process and its log from `log_level` up, since its last start or the first."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(0 if all_starts else self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        return self.log_text()[-_TAIL_BYTES:]

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.is_running:
            self.stop()
        else:
            self.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StartFailedError(f"{self.name} was never started")
        return self._process

    def _give_home(self, uid: int, gid: int) -> None:
        for directory in self.distribution.jars, *self.distribution.jars.parents:
            status = directory.stat()
            if status.st_uid != uid and not status.st_mode & 0o001:
                raise StartFailedError(f"user {uid} cannot enter {directory}: fetch into another cache directory")
        for path in self.home, *self.home.rglob("*"):
            os.chown(path, uid, gid, follow_symlinks=False)


_running: set[JavaServer] = set()


@atexit.register
def _kill_leftovers() -> None:
    for server in list(_running):
        server.kill()
