"""A real broker under a real systemd goes through everything that can become of the daemon, and notices nothing.

The tests of this file follow one another on one machine: whatever the daemon's unit goes through, the broker's
process stays the same, until it is stopped like everything else.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.booted import Booted, booted, commands, why_not
from support.broker_unit import BROKER, READY, SERVICE, BrokerUnit, release
from support.brokers import IDLE_S, digest, line_count
from support.loop_disks import DiskFarm, loop_available
from support.waiting import eventually

from commitlogfs.bench import rocketmq, sweep
from commitlogfs.bench.rocketmq import NameServer, Sender
from commitlogfs.mount.location.guard import GUARD_NAME

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.broker,
    pytest.mark.timing,
    pytest.mark.skipif(
        bool(why_not() or loop_available()), reason=why_not() or loop_available() or "can be booted"
    ),
]

UNITS = Path(__file__).parents[2] / "systemd"
MIB = 1 << 20
SEGMENT_SIZE = 4 * MIB
DISK_BYTES = 200 * MIB
RATE = 300
"""Messages per second: a segment every ten seconds or so, and few enough for a busy machine."""
TOPIC = "Unit"
NEW_VERSION = "9.8.7"
WATCHDOG_S = 3
SETTLED_S = 40.0
DAEMON_DROP_IN = f"[Service]\nWatchdogSec={WATCHDOG_S}\n"
# As in the units, but for how long they wait.
READY_DROP_IN = "[Service]\nExecStart=\nExecStart=/usr/local/bin/commitlogfs ready %i --wait 1\n"
BROKER_DROP_IN = "[Service]\nExecStartPre=\nExecStartPre=/usr/local/bin/commitlogfs ready log --wait 1\n"


@dataclass
class Machine:
    system: Booted
    broker: BrokerUnit
    names: NameServer
    mountpoint: Path
    disks: list[Path]

    def daemon(self) -> str:
        return self.system.show(SERVICE, "MainPID")

    def identity(self) -> dict[str, str]:
        """State that no death of a daemon may change."""
        broker = {what: self.system.show(BROKER, what) for what in ("MainPID", "ExecMainStartTimestampMonotonic")}
        return {
            **broker,
            "restarts of the broker": self.system.show(BROKER, "NRestarts"),
            "mount id": ",".join(self.mount_ids()),
            "descriptors": self.system.show(SERVICE, "NFileDescriptorStore"),
        }

    def mount_ids(self) -> list[str]:
        lines = self.system.run("cat", "/proc/self/mountinfo").stdout.splitlines()
        return [line.split()[0] for line in lines if " - fuse.commitlogfs log " in line]

    def version(self) -> str:
        """Process id of the daemon that answers through the mount."""
        metrics = self.system.run("cat", str(self.mountpoint / ".commitlogfs/metrics")).stdout
        found = re.search(r'commitlogfs_build_info\{.*version="([^"]*)"', metrics)
        assert found is not None, metrics
        return found[1]

    def wait_for_successor(self, former: str) -> None:
        eventually(
            lambda: self.daemon() not in ("0", former) and self.system.show(SERVICE, "ActiveState") == "active",
            SETTLED_S,
        )


@pytest.fixture(scope="module")
def machine(base_directory: Path) -> Iterator[Machine]:
    distribution = rocketmq.fetch("5.5.0")
    directory = base_directory / "broker-unit"
    shared = directory / "shared"
    mountpoint = shared / "store/commitlog"
    (shared / "store").mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(sweep.remove_tree, directory)
        farm = stack.enter_context(DiskFarm(shared / "disks"))
        disks = [farm.add("ext4", DISK_BYTES).path / "commitlog" for _ in range(2)]
        for disk in disks:
            disk.mkdir(mode=0o700)
        names = stack.enter_context(NameServer(distribution, directory))
        config = {
            "storePathRootDir": str(mountpoint.parent),
            "storePathCommitLog": str(mountpoint),
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "flushDiskType": "SYNC_FLUSH",
        }
        broker = BrokerUnit(distribution, names, shared, config)
        settings = directory / "etc/commitlogfs/log.toml"
        settings.parent.mkdir(parents=True)
        members = ", ".join(f'{{ path = "{disk}" }}' for disk in disks)
        settings.write_text(f'mountpoint = "{mountpoint}"\nsegment_size = {SEGMENT_SIZE}\ndisks = [{members}]\n')
        units = {path.name: path.read_text() for path in UNITS.glob("*.service")}
        drop_in = (UNITS / "broker.service.d/commitlogfs.conf").read_text().replace("NAME", "log")
        units |= {BROKER: broker.unit(), f"{BROKER}.d/commitlogfs.conf": drop_in}
        units |= {f"{SERVICE}.d/test.conf": DAEMON_DROP_IN, "commitlogfs-ready@.service.d/test.conf": READY_DROP_IN}
        units[f"{BROKER}.d/test.conf"] = BROKER_DROP_IN
        system = stack.enter_context(booted(directory, units))
        system.run("commitlogfs", "init", "log")
        yield Machine(system, broker, names, mountpoint, disks)


def kill_9(machine: Machine) -> None:
    machine.system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)


def hang(machine: Machine) -> None:
    machine.system.systemctl("kill", "-s", "STOP", "--kill-who=main", SERVICE)


def restart_command(machine: Machine) -> None:
    machine.system.run("commitlogfs", "restart", "log")


def restart_unit(machine: Machine) -> None:
    machine.system.systemctl("restart", SERVICE)


def restart_hung(machine: Machine) -> None:
    hang(machine)
    restart_unit(machine)


def kill_all(machine: Machine) -> None:
    machine.system.systemctl("kill", "-s", "KILL", SERVICE)


def upgrade(machine: Machine) -> None:
    """As docs/installing.md says: the commands become those of another version, and the unit is restarted."""
    directory = release(machine.system.shared / f"releases/{NEW_VERSION}", NEW_VERSION)
    commands(directory / "bin", "env", f"PYTHONPATH={directory}", sys.executable)
    machine.system.run("cp", "-r", "--remove-destination", f"{directory}/bin/.", "/usr/local/bin")
    restart_unit(machine)


DEATHS: list[Callable[[Machine], None]] = [
    kill_9,
    hang,
    restart_command,
    restart_unit,
    restart_hung,
    kill_all,
    upgrade,
]


@pytest.fixture(scope="module")
def acked(machine: Machine) -> Path:
    """Messages acknowledged to the only producer: sequence numbers from 0 on."""
    return machine.system.shared / "acked"


def check_all(machine: Machine, acked: Path) -> None:
    """Every acknowledged message is consumed, once, with its body as it was sent."""
    expected = {message.sequence for message in rocketmq.read_acked(acked)}
    received = machine.system.shared / "received"
    seen = rocketmq.consume(
        machine.broker.distribution,
        machine.names.address,
        TOPIC,
        expect=len(expected),
        received=received,
        idle_timeout_s=IDLE_S,
    )
    assert (seen.corrupted, seen.skipped, seen.duplicates) == (0, 0, 0)
    assert {message.sequence for message in rocketmq.read_received(received)} == expected


def sends_on(sender: Sender, acked: Path) -> None:
    assert sender.returncode is None
    goal = line_count(acked) + RATE // 2
    eventually(lambda: line_count(acked) >= goal, 20)


def test_no_death_of_the_daemon_is_noticed(machine: Machine, acked: Path) -> None:
    system, broker = machine.system, machine.broker
    broker.start_unit(system)
    sender = rocketmq.start_sender(
        broker.distribution, machine.names.address, TOPIC, rate=RATE, acked=acked, size_bytes=1024
    )
    with sender:
        sends_on(sender, acked)
        before = machine.identity()
        assert int(before["descriptors"]) > 0
        assert len(machine.mount_ids()) == 1
        assert machine.version() != NEW_VERSION
        for death in DEATHS:
            former = machine.daemon()
            death(machine)
            machine.wait_for_successor(former)
            sends_on(sender, acked)
            assert machine.identity() == before, death.__name__
        assert machine.version() == NEW_VERSION
        assert "releases" in system.run("cat", f"/proc/{machine.daemon()}/maps").stdout
        # SIGTERM is a request to unmount: refused, and nobody dies.
        former = machine.daemon()
        system.systemctl("kill", SERVICE)
        eventually(lambda: "event=stop_refused" in system.journal(SERVICE))
        sends_on(sender, acked)
        assert (machine.daemon(), machine.identity()) == (former, before)
        totals = sender.stop()
    assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
    assert totals.sent == len(rocketmq.read_acked(acked))
    check_all(machine, acked)


def test_stop_is_refused_under_the_broker(machine: Machine) -> None:
    system = machine.system
    before, former = machine.identity(), machine.daemon()
    stop = system.run("systemctl", "stop", SERVICE, check=False)
    assert stop.returncode != 0
    assert "canceled" in stop.stderr
    assert f"in use by java (pid {system.show(BROKER, 'MainPID')}" in system.journal(SERVICE)
    machine.wait_for_successor(former)
    assert machine.identity() == before
    # And it is served as well as before: the next death is one as any other.
    former = machine.daemon()
    kill_9(machine)
    machine.wait_for_successor(former)
    assert machine.identity() == before


def test_all_stops_and_starts_again(machine: Machine, acked: Path) -> None:
    system = machine.system
    former = machine.daemon()
    system.systemctl("stop", "--no-block", BROKER)
    kill_9(machine)  # a stopping broker closes and removes files: it waits for the successor, which must not wait
    machine.wait_for_successor(former)
    eventually(lambda: system.show(BROKER, "ActiveState") == "inactive", SETTLED_S)
    assert system.show(BROKER, "Result") == "success"
    system.systemctl("stop", SERVICE)
    assert system.show(SERVICE, "ActiveState") == "inactive", system.journal(SERVICE)
    assert machine.mount_ids() == []
    assert system.show(SERVICE, "NFileDescriptorStore") == "0"
    before = digest(machine.mountpoint.parent)
    assert any(path.startswith("consumequeue/") for path in before)
    with broken_configuration(system):
        gives_up_soon(system)
        # Over an empty directory it would remove its consumequeue and begin a new log. The oneshot is still active,
        # since the broker's former start: the broker asks the mount by itself.
        assert system.run("systemctl", "start", BROKER, check=False).returncode != 0
        assert (system.show(BROKER, "MainPID"), system.show(BROKER, "Result")) == ("0", "exit-code")
        system.systemctl("stop", READY)
        eventually(lambda: system.show(SERVICE, "ActiveState") == "failed")
        system.systemctl("reset-failed", SERVICE, BROKER)
        refused = system.run("systemctl", "start", BROKER, check=False)
        assert "dependency" in refused.stderr
        assert (system.show(BROKER, "MainPID"), system.show(BROKER, "ActiveState")) == ("0", "inactive")
        assert digest(machine.mountpoint.parent) == before
        assert system.run("ls", str(machine.mountpoint)).stdout.split() == [GUARD_NAME]
    system.systemctl("stop", SERVICE)
    system.systemctl("reset-failed", SERVICE)
    machine.broker.start_unit(system)
    check_all(machine, acked)


@contextmanager
def broken_configuration(system: Booted) -> Iterator[None]:
    system.run("sh", "-c", "cd /etc/commitlogfs && cp log.toml good && sed -i '1i nonsense = 1' log.toml")
    yield
    system.run("mv", "/etc/commitlogfs/good", "/etc/commitlogfs/log.toml")


def gives_up_soon(system: Booted) -> None:
    place = f"/etc/systemd/system/{SERVICE}.d/limit.conf"
    system.run("sh", "-c", f"printf '[Unit]\\nStartLimitBurst=2\\n' >{place}")
    system.systemctl("daemon-reload")
    system.systemctl("reset-failed", SERVICE)
