"""README's lines, typed literally, end in a broker that accepts messages and in a table of them; those of
docs/installing.md upgrade it.

On a machine of its own (a booted systemd on an overlay of this one), with packages from pip's index.
"""

import re
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.booted import Booted, booted, why_not
from support.broker_unit import BROKER, BrokerUnit
from support.brokers import send_all
from support.loop_disks import DiskFarm, loop_available
from support.releases import SOURCE, copy_source

from commitlogfs.bench import rocketmq, sweep
from commitlogfs.bench.rocketmq import Distribution, NameServer

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.broker,
    pytest.mark.soak,
    pytest.mark.skipif(
        bool(why_not() or loop_available()), reason=why_not() or loop_available() or "can be booted"
    ),
]

VERSION = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
NEXT_VERSION = "0.1.1"
STORE = "/var/rocketmq/store"
USER = "rocketmq"
DISK_BYTES = 4 << 30  # sparse; a segment of the default size reserves 1 GiB
TYPED_S = 600.0


def lines_of(document: str, heading: str) -> str:
    """The first block of commands under a heading."""
    text = (SOURCE / document).read_text().split(f"## {heading}\n", maxsplit=1)[1]
    found = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def copy_release(place: Path, version: str) -> None:
    """Content of a release with this version."""
    copy_source(place)
    project = place / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{VERSION}"', f'version = "{version}"'))


class Machine:
    """A booted machine with a user for the broker and three disks, on which nothing of ours is installed."""

    def __init__(self, system: Booted, broker: BrokerUnit, names: NameServer, distribution: Distribution) -> None:
        self.system, self.broker, self.names, self.distribution = system, broker, names, distribution

    def type(self, text: str, directory: Path) -> str:
        command = f"cd {directory}\n{text}"
        return self.system.run("env", "HOME=/root", "bash", "-euc", command, timeout_s=TYPED_S).stdout

    def versions(self) -> tuple[str, str]:
        """Versions of the installed program and of the daemon."""
        installed = self.system.run("commitlogfs", "--version").stdout.split()[1]
        found = re.search(r'"version": "([^"]*)"', self.system.run("commitlogfs", "status", "--json").stdout)
        assert found is not None
        return installed, found[1]

    def sends(self, topic: str) -> None:
        send_all(self.distribution, self.names, topic, 100)


@pytest.fixture
def machine(base_directory: Path) -> Iterator[Machine]:
    directory = base_directory / "installation"
    shared = directory / "shared"
    shared.mkdir(parents=True)
    fetched = rocketmq.fetch("5.5.0")
    with ExitStack() as stack:
        stack.callback(sweep.remove_tree, directory)
        farm = stack.enter_context(DiskFarm(shared / "disks"))
        disks = [farm.add("ext4", DISK_BYTES).path for _ in range(3)]
        shutil.copytree(fetched.jars, shared / "jars")  # the cache lies in root's home
        shutil.copytree(fetched.helper, shared / "helper")
        distribution = Distribution(fetched.version, shared / "jars", shared / "helper")
        names = stack.enter_context(NameServer(distribution, directory))
        placed: dict[str, object] = {"storePathRootDir": STORE, "storePathCommitLog": f"{STORE}/commitlog"}
        # RocketMQ's defaults, and ours
        placed |= {"mappedFileSizeCommitLog": 1 << 30, "maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
        broker = BrokerUnit(distribution, names, shared, placed)
        system = stack.enter_context(booted(directory, {BROKER: f"{broker.unit()}User={USER}\n"}))
        system.run("useradd", "--system", USER)
        system.run("chown", "-R", USER, str(broker.home))
        for number, disk in enumerate(disks, start=1):
            system.run("mkdir", f"/data{number}")
            system.run("mount", "--bind", str(disk), f"/data{number}")
        system.run("sh", "-c", "rm /usr/local/bin/commitlogfs*")
        yield Machine(system, broker, names, distribution)
        system.systemctl("stop", BROKER, check=False)
        system.run("commitlogfs", "umount", "broker", check=False)


def test_the_typed_lines_end_in_a_broker_that_works(machine: Machine) -> None:
    shared = machine.system.shared
    copy_release(shared / "release", VERSION)
    copy_release(shared / "next", NEXT_VERSION)
    machine.type(lines_of("README.md", "Ten lines to a running mount"), shared / "release")
    machine.system.run("commitlogfs", "ready", "broker", "--wait", "30")
    machine.broker.start_unit(machine.system)
    machine.sends("Installed")
    assert machine.versions() == (VERSION, VERSION)
    broker = machine.system.show(BROKER, "MainPID")

    upgrade = lines_of("docs/installing.md", "Upgrade and way back").replace("NAME", "broker")
    machine.type(upgrade, shared / "next")
    assert machine.versions() == (NEXT_VERSION, NEXT_VERSION)
    machine.sends("Upgraded")
    machine.type(f"ln -sfT /opt/commitlogfs-{VERSION} /opt/commitlogfs && commitlogfs restart broker", shared)
    assert machine.versions() == (VERSION, VERSION)
    machine.sends("Returned")
    assert machine.system.show(BROKER, "MainPID") == broker

    printed = machine.type(lines_of("README.md", "Ten lines to a table"), shared / "release")
    for topic in ("Installed", "Upgraded", "Returned"):
        assert re.search(rf"\| *{topic} *\|.*\| *100 *\|", printed), printed
