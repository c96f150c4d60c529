"""RocketMQ's jars, fetched once from Maven Central through the ordinary client."""

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.bench.rocketmq.errors import ArtifactsUnavailableError
from commitlogfs.bench.rocketmq.helper import build_helper

VERSIONS = ("5.5.0", "5.1.4", "4.9.7")
"""Versions whose brokers are run, newest first."""
_STORE_ONLY = ("5.3.2", "4.9.4")
STORE_VERSIONS = (*VERSIONS, *_STORE_ONLY)
"""Versions whose store can run without a broker (`write_stores`)."""
DEFAULT_CACHE = Path("~/.cache/commitlogfs/rocketmq")
_MODULES = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
_STORE_MODULES = ("rocketmq-store",)
_DOWNLOAD_DEADLINE_S = 900


@dataclass(frozen=True)
class Distribution:
    """The jars of one version, and the compiled helper with its logging setup; both are only read."""

    version: str
    jars: Path
    helper: Path

    @property
    def class_path(self) -> str:
        """Class path with the helper first, so that its logging setup wins."""
        return f"{self.helper}:{self.jars}/*"


def fetch(version: str = VERSIONS[0], cache: Path = DEFAULT_CACHE) -> Distribution:
    """Make the jars of `version` and the helper available below `cache`; uses the network only once.

    Safe against parallel callers and against being killed. Raises ArtifactsUnavailableError with the missing part.
    """
    if version not in STORE_VERSIONS:
        raise ArtifactsUnavailableError(f"RocketMQ {version} is not one of {', '.join(STORE_VERSIONS)}")
    for command in ("java", "javac"):
        if shutil.which(command) is None:
            raise ArtifactsUnavailableError(f"{command} is not on PATH; install a JDK 17")
    directory = cache.expanduser() / version
    directory.mkdir(parents=True, exist_ok=True)
    jars = directory / "jars"
    with _locked(directory / "lock"):
        if not jars.exists():
            _download(version, jars)
        helper = build_helper(version, jars, directory, store_only=version in _STORE_ONLY)
    return Distribution(version, jars, helper)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(version: str, jars: Path) -> None:
    """Fill `jars`; the rename at the end is the stamp of completeness."""
    if shutil.which("mvn") is None:
        raise ArtifactsUnavailableError(
            f"mvn is not on PATH; install Maven, which is needed once to fetch RocketMQ {version}"
        )
    with tempfile.TemporaryDirectory(prefix="download-", dir=jars.parent) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom(version))
        target = Path(scratch, "jars")
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={target}",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_DOWNLOAD_DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ArtifactsUnavailableError(
                f"fetching RocketMQ {version} took more than {_DOWNLOAD_DEADLINE_S} s"
            ) from None
        if done.returncode != 0 or not list(target.glob(f"rocketmq-store-{version}.jar")):
            detail = "\n".join((done.stdout + done.stderr).strip().splitlines()[:5])
            raise ArtifactsUnavailableError(f"mvn could not fetch RocketMQ {version}: {detail}")
        target.rename(jars)


def _pom(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{module}</artifactId>"
        f"<version>{version}</version></dependency>"
        for module in (_STORE_MODULES if version in _STORE_ONLY else _MODULES)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>commitlogfs</groupId><artifactId>rocketmq</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )
