"""The Java helper, compiled against one version, together with the logging setup of every JVM we start."""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from commitlogfs.bench.rocketmq.errors import ArtifactsUnavailableError

_SOURCES = Path(__file__).parent
# Classes of the oracles have other constructors before 5.5: the oracles exist for that version only.
_ORACLES = ("CleaningOracle.java", "MultiPathOracle.java")
_ORACLE_VERSION = "5.5.0"
_STORE_WRITER = "StoreWriter.java"


def build_helper(version: str, jars: Path, directory: Path, *, store_only: bool = False) -> Path:
    """Directory below `directory` with classes and `conf/`, keyed by its sources' hash; built when missing.

    `store_only`: `jars` hold the store and what it needs, so only the store writer is compiled.
    """
    sources = sorted(_SOURCES.glob(_STORE_WRITER if store_only else "*.java"))
    if version != _ORACLE_VERSION:
        sources = [source for source in sources if source.name not in _ORACLES]
    digest = hashlib.sha256()
    for source in [*sources, _SOURCES / "logging.xml"]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    built = directory / f"helper-{digest.hexdigest()[:16]}"
    if not built.exists():
        _compile(sources, jars, built)
    return built


def write_conf(home: Path) -> None:
    """Make `home` usable as ROCKETMQ_HOME: 4.9 reads its logging setup from conf/ by fixed names."""
    text = (_SOURCES / "logging.xml").read_text()
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv", "tools"):
        (conf / f"logback_{name}.xml").write_text(text)


def _compile(sources: list[Path], jars: Path, built: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="compile-", dir=built.parent) as scratch:
        target = Path(scratch, "helper")
        write_conf(target)
        text = (_SOURCES / "logging.xml").read_text()
        # rmq.*: the logback renamed and bundled by 5.x; logback.xml: the ordinary one of 4.9.
        for name in ("rmq.logback.xml", "logback.xml"):
            (target / name).write_text(text)
        command = [
            "javac",
            "-nowarn",
            "-proc:none",
            "-d",
            str(target),
            "-cp",
            f"{jars}/*",
            *map(str, sources),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise ArtifactsUnavailableError(f"the Java helper does not compile: {done.stderr.strip()}")
        target.rename(built)
