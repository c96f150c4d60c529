"""Under systemd, a daemon is killed while a disk holds a thread of it in the kernel: its process cannot end."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.booted import Booted, booted, why_not
from support.broker_unit import SERVICE
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk, loop_available
from support.waiting import eventually

from commitlogfs.bench import sweep

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(
        bool(why_not() or loop_available()), reason=why_not() or loop_available() or "can be booted"
    ),
]
UNITS = Path(__file__).parents[2] / "systemd"
MIB = 1 << 20
FROZEN_S = 60.0
STOP_TIMEOUT_S = 2
_DROP_IN = f"[Service]\nTimeoutStopSec={STOP_TIMEOUT_S}\n"


@dataclass
class Machine:
    system: Booted
    mountpoint: Path
    disks: list[LoopDisk]


@pytest.fixture
def machine(base_directory: Path) -> Iterator[Machine]:
    directory = base_directory / "held-unit"
    shared = directory / "shared"
    mountpoint = shared / "store/commitlog"
    (shared / "store").mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(sweep.remove_tree, directory)
        farm = stack.enter_context(DiskFarm(shared / "disks"))
        disks = [farm.add("ext4", 64 * MIB) for _ in range(3)]
        directories = [disk.path / "commitlog" for disk in disks]
        for one in directories:
            one.mkdir(mode=0o700)
        settings = directory / "etc/commitlogfs/log.toml"
        settings.parent.mkdir(parents=True)
        members = ", ".join(f'{{ path = "{disk}" }}' for disk in directories)
        settings.write_text(f'mountpoint = "{mountpoint}"\nsegment_size = {MIB}\ndisks = [{members}]\n')
        units = {path.name: path.read_text() for path in UNITS.glob("*.service")}
        units[f"{SERVICE}.d/test.conf"] = _DROP_IN
        system = stack.enter_context(booted(directory, units))
        system.run("commitlogfs", "init", "log")
        system.systemctl("start", SERVICE)
        yield Machine(system, mountpoint, disks)


def show(machine: Machine, what: str) -> str:
    return machine.system.show(SERVICE, what)


def test_the_mount_outlives_a_daemon_that_a_disk_holds(machine: Machine) -> None:
    """After the timeouts, systemd would give the unit up and close the descriptors."""
    paths = [machine.mountpoint / f"{index * MIB:020d}" for index in range(6)]
    for path in paths:
        machine.system.run("truncate", "-s", str(MIB), str(path))
    former, kept = show(machine, "MainPID"), show(machine, "NFileDescriptorStore")
    with frozen(machine.disks[0], FROZEN_S):
        assert machine.system.run("rm", str(paths[0]), check=False).returncode != 0  # its thread waits now
        machine.system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)
        eventually(lambda: show(machine, "SubState") == "stop-watchdog", 20)
        time.sleep(4 * STOP_TIMEOUT_S)
        assert (show(machine, "MainPID"), show(machine, "NFileDescriptorStore")) == (former, kept)
    eventually(
        lambda: show(machine, "MainPID") not in ("0", former) and show(machine, "ActiveState") == "active", 40
    )
    listed = machine.system.run("ls", str(machine.mountpoint)).stdout.split()
    assert {path.name for path in paths[1:]} <= set(listed)
    assert show(machine, "NRestarts") == "1"
