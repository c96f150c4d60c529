"""A standalone Spark cluster on loopback: a master and workers as processes, started from PySpark's own jars."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark
from support import spark_driver
from support.waiting import PATIENCE_S, eventually

_HOST = "127.0.0.1"
_SPARK_HOME = Path(pyspark.__file__).parent
_MASTER_URL = re.compile(rf"spark://{re.escape(_HOST)}:[0-9]+")
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """Started inside `with`; whatever it has started, executors too, is gone after."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory, self._count = directory, workers
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(exist_ok=True)
        try:
            master = self._start("master", "master.Master", "--port", "0")
            self.url = eventually(lambda: self._find(master, "master", _MASTER_URL))
            for number in range(self._count):
                name = f"worker{number}"
                work = self._directory / name
                arguments = ("--port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url)
                worker = self._start(name, "worker.Worker", *arguments)
                registered = re.compile("Successfully registered with master")
                eventually(lambda w=worker, n=name, r=registered: self._find(w, n, r))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def settings(self) -> dict[str, str]:
        """For a session on it: of the driver, which is on loopback, too."""
        return {"spark.driver.host": _HOST, "spark.driver.bindAddress": _HOST, "spark.executor.memory": "512m"}

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for daemon in self._daemons:
            for process in psutil.Process(daemon.pid).children(recursive=True):
                try:
                    if _EXECUTOR in process.cmdline():
                        found.append(process.pid)
                except psutil.Error:
                    continue  # ended meanwhile
        return found

    def _start(self, name: str, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": _HOST,  # its web page, too, is for this machine alone
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": (
                f"-XX:-UsePerfData -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={self._directory}"
            ),
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log(name).open("ab") as log:
            daemon = subprocess.Popen(
                [
                    *(_SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{main_class}"),
                    *("--host", _HOST, "--webui-port", "0", *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._directory,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _find(self, daemon: subprocess.Popen[bytes], name: str, pattern: re.Pattern[str]) -> str:
        text = self._log(name).read_text(errors="replace")
        if daemon.poll() is not None:
            raise SystemError(f"the Spark {name} ended with {daemon.returncode}: {text[-2000:]}")
        match = pattern.search(text)
        return match[0] if match else ""

    def _end(self) -> None:
        """Workers first: at their end they end their executors. Whatever is left of their sessions is killed."""
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
        self._daemons.clear()


def start_verb(*arguments: object) -> "subprocess.Popen[str]":
    """A verb of the pipeline, which reads the log in small splits, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "commitlogfs.pipeline", *map(str, arguments), "--split-size", "256k"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": _HOST},
        start_new_session=True,
    )


def kill_an_executor(cluster: SparkCluster, job: "subprocess.Popen[str]", begun: Callable[[], bool]) -> str:
    """Once the job has `begun`; the output of the job, which must end well."""
    try:

        def at_work() -> bool:
            spark_driver.require_running(job)
            return begun()

        eventually(at_work, spark_driver.BUSY_S)
        victim = cluster.executors()[-1]
        os.kill(victim, signal.SIGKILL)
        spark_driver.require_running(job)
        out = spark_driver.finish(job)
    finally:
        spark_driver.kill(job)
    assert victim not in cluster.executors()
    return out
