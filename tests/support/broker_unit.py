"""A real broker as broker.service of a systemd booted for the test, on the mount of commitlogfs@log.service."""

import shlex
import shutil
from pathlib import Path
from typing import Any

from support.booted import Booted
from support.waiting import eventually

from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer
from commitlogfs.bench.rocketmq.process import java_command

SERVICE = "commitlogfs@log.service"
READY = "commitlogfs-ready@log.service"
BROKER = "broker.service"


class BrokerUnit(Broker):
    """Its configuration and command line are those of any broker of a test; systemd starts and stops it."""

    def __init__(self, distribution: Distribution, names: NameServer, shared: Path, config: dict[str, Any]) -> None:
        super().__init__(distribution, names, shared, config, name="broker-unit")

    def unit(self) -> str:
        """The text of its unit, as an operator would write it."""
        java = shutil.which("java")
        assert java is not None
        main_class, *arguments = self._arguments()
        _, *rest = java_command(self.distribution, main_class, *arguments, jvm=self._jvm, user_home=self.home)
        return (
            "[Service]\n"
            f"ExecStart={shlex.join([java, *rest])}\n"
            f"WorkingDirectory={self.home}\n"
            f"Environment=ROCKETMQ_HOME={self.home}\n"
            "LimitNOFILE=65536\n"
            "SuccessExitStatus=143\n"
            f"StandardOutput=append:{self.log_file}\nStandardError=inherit\n"
        )

    def start_unit(self, system: Booted) -> None:
        """Start it and wait until it serves."""
        system.systemctl("start", BROKER)
        eventually(self._serves)

    def _serves(self) -> bool:
        try:
            return self._is_ready()
        except OSError:
            return False


def release(directory: Path, version: str, *, linked: bool = False) -> Path:
    """A copy of the package as another version, below the new `directory`; what to put into $PYTHONPATH.

    `linked`: its code is the project's own, compiled already, and only its version is another.
    """
    source = Path(__file__).parents[2]
    (directory / "commitlogfs").mkdir(parents=True)
    for package in ("bench", "fusefs", "mount", "store"):
        place = directory / "commitlogfs" / package
        if linked:
            place.symlink_to(source / package)
        else:
            shutil.copytree(source / package, place, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
    about = directory / f"commitlogfs-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: commitlogfs\nVersion: {version}\n")
    return directory
