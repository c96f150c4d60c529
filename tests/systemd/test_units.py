"""The units under a real systemd: it keeps the descriptors, replaces the daemon, and never takes a mount away."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.booted import Booted, booted, why_not
from support.loop_disks import DiskFarm
from support.waiting import eventually

from commitlogfs.mount.linux.priority import NICE

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be booted"),
]

UNITS = Path(__file__).parents[2] / "systemd"
SERVICE = "commitlogfs@log.service"
READY = "commitlogfs-ready@log.service"
BROKER = "broker.service"
CONFIG = "/etc/commitlogfs/log.toml"
MOUNTPOINT = "/shared/store/commitlog"
SEGMENT = f"{MOUNTPOINT}/{0:020d}"
SETTLED_S = 40.0
# Stands for a broker: holds a segment open and mapped, and appends for as long as it lives.
APPENDER = f"""
import mmap, os, time
fd = os.open("{SEGMENT}", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
mapped = mmap.mmap(fd, 1 << 20)
count = 0
while True:
    count += 1
    mapped[:8] = count.to_bytes(8, "little")
    mapped.flush()
    os.fsync(fd)
    time.sleep(0.01)
"""


@pytest.fixture
def system(disk_farm: DiskFarm, workdir: Path) -> Iterator[Booted]:
    shared = workdir / "shared"
    (shared / "disks").mkdir(parents=True)
    disk = disk_farm.add("ext4")
    for number in range(2):
        (disk.path / f"cl{number}").mkdir(mode=0o700)
    subprocess.run(["mount", "--bind", str(disk.path), str(shared / "disks")], check=True)
    try:
        with booted(workdir, units(workdir)) as system:
            system.run("commitlogfs", "init", "log")
            yield system
            # pytest shows it beside a failure. A test may have shut the system down.
            print(system.run("journalctl", "-u", SERVICE, "-o", "cat", "--no-pager", check=False).stdout)
    finally:
        subprocess.run(["umount", "-l", str(shared / "disks")], check=True)


def units(directory: Path) -> dict[str, str]:
    """The project's, and what stands for the broker's."""
    (directory / "shared/appender.py").write_text(APPENDER)
    config = directory / "etc/commitlogfs/log.toml"
    config.parent.mkdir(parents=True)
    disks = ", ".join(f'{{ path = "/shared/disks/cl{number}" }}' for number in range(2))
    config.write_text(f'mountpoint = "{MOUNTPOINT}"\nsegment_size = "1MiB"\ndisks = [{disks}]\n')
    for_broker = (UNITS / "broker.service.d/commitlogfs.conf").read_text().replace("NAME", "log")
    return {
        **{path.name: path.read_text() for path in UNITS.glob("*.service")},
        BROKER: "[Service]\nExecStart=/usr/bin/python3 /shared/appender.py\n",
        f"{BROKER}.d/commitlogfs.conf": for_broker,
        f"{SERVICE}.d/test.conf": "[Service]\nWatchdogSec=3\n",
    }


def daemon_pid(system: Booted) -> int:
    return int(system.show(SERVICE, "MainPID"))


def mount_count(system: Booted) -> int:
    mounts = system.run("cat", "/proc/mounts").stdout.splitlines()
    return sum(line.split()[2] == "fuse.commitlogfs" for line in mounts)


def start_broker(system: Booted) -> str:
    """Its process id, once it holds a segment."""
    system.systemctl("start", BROKER)
    eventually(lambda: system.run("stat", SEGMENT, check=False).returncode == 0)
    return system.show(BROKER, "MainPID")


def wait_for_successor(system: Booted, former: int, timeout_s: float = SETTLED_S) -> None:
    eventually(
        lambda: daemon_pid(system) not in (0, former) and system.show(SERVICE, "ActiveState") == "active", timeout_s
    )


def is_served(system: Booted, broker: str) -> bool:
    """The mount answers, it is the only one, and its broker has noticed nothing."""
    assert (system.show(BROKER, "MainPID"), system.show(BROKER, "ActiveState")) == (broker, "active")
    return system.run("stat", "-f", MOUNTPOINT).returncode == 0 and mount_count(system) == 1


def drop_in(system: Booted, text: str) -> None:
    system.run("sh", "-c", f"printf '{text}' >/etc/systemd/system/{SERVICE}.d/zz.conf")
    system.systemctl("daemon-reload")


def refused_starts(system: Booted) -> int:
    return system.journal(SERVICE).count("nonsense: unknown key")


@contextmanager
def broken_configuration(system: Booted) -> Iterator[None]:
    system.run("sed", "-i.good", "1i nonsense = 1", CONFIG)
    try:
        yield
    finally:
        system.run("mv", f"{CONFIG}.good", CONFIG)


def test_the_broker_survives_every_death_of_the_daemon(system: Booted) -> None:
    broker = start_broker(system)
    kept = system.show(SERVICE, "NFileDescriptorStore")
    for how in ("kill -9", "restart", "systemctl restart", "hang", "upgrade of systemd"):
        before = daemon_pid(system)
        if how == "upgrade of systemd":
            system.systemctl("daemon-reexec")
        if how in ("kill -9", "upgrade of systemd"):
            system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)
        elif how == "restart":
            system.run("commitlogfs", "restart", "log")
        elif how == "systemctl restart":
            system.systemctl("restart", SERVICE)
        else:
            system.systemctl("kill", "-s", "STOP", "--kill-who=main", SERVICE)
        wait_for_successor(system, before)
        assert is_served(system, broker), how
        assert system.show(SERVICE, "NFileDescriptorStore") == kept


def test_a_successor_waits_for_nothing_of_its_predecessor(system: Booted) -> None:
    """A probe that hangs in the mount ends when the successor answers."""
    broker = start_broker(system)
    group = f"/sys/fs/cgroup{system.show(SERVICE, 'ControlGroup')}/cgroup.procs"
    # Deaf to SIGTERM as a process that hangs in the kernel is.
    (system.shared / "leftover").write_text(f"trap '' TERM\necho $$ >{group}\nexec sleep 300\n")
    system.run("sh", "-c", "sh /shared/leftover >/dev/null 2>&1 &")
    eventually(lambda: len(system.run("cat", group).stdout.split()) >= 2)
    before = daemon_pid(system)
    system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)
    wait_for_successor(system, before, 10)
    assert is_served(system, broker)


def test_a_mount_in_use_is_not_taken_away(system: Booted) -> None:
    broker = start_broker(system)
    before = daemon_pid(system)
    stop = system.run("systemctl", "stop", SERVICE, check=False)
    assert stop.returncode != 0
    assert "canceled" in stop.stderr
    assert f"in use by python3 (pid {broker}" in system.journal(SERVICE)
    wait_for_successor(system, before)
    assert is_served(system, broker)


@pytest.mark.parametrize("kills", [10, pytest.param(25, marks=pytest.mark.soak)])
def test_a_storm_of_kills_does_not_reach_the_start_limit(system: Booted, kills: int) -> None:
    """20 starts a minute would make systemd forget the descriptors of a mount that is in use."""
    broker = start_broker(system)
    for _ in range(kills):
        before = daemon_pid(system)
        system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)
        eventually(lambda before=before: daemon_pid(system) not in (0, before), SETTLED_S)
    wait_for_successor(system, before)
    assert is_served(system, broker)
    assert "9 daemons have exited within a minute; the mount stays, the next start" in system.journal(SERVICE)


def test_the_daemon_has_priority_and_locked_memory(system: Booted) -> None:
    system.systemctl("start", SERVICE)
    directory = f"/proc/{daemon_pid(system)}"
    assert system.run("cat", f"{directory}/autogroup").stdout.split()[-1] == str(NICE)
    assert system.run("cat", f"{directory}/stat").stdout.rpartition(")")[2].split()[16] == str(NICE)
    status = system.run("cat", f"{directory}/status").stdout
    assert int(status.split("VmLck:")[1].split()[0]) > 8192


def test_a_refused_successor_is_waited_for(system: Booted) -> None:
    """The mount and its open files stay; after a correction it continues without further commands."""
    broker = start_broker(system)
    before = daemon_pid(system)
    kept = system.show(SERVICE, "NFileDescriptorStore")
    with broken_configuration(system):
        system.systemctl("restart", SERVICE, check=False)
        eventually(lambda: refused_starts(system) >= 2, SETTLED_S)
        assert system.show(SERVICE, "NFileDescriptorStore") == kept
        # Nor does a stop take it away now, before or during the pause that follows a refused start.
        system.systemctl("stop", SERVICE, check=False)
        tried = refused_starts(system)
        eventually(lambda: refused_starts(system) > tried, SETTLED_S)
        time.sleep(1)
        system.systemctl("stop", SERVICE, check=False)
        tried = refused_starts(system)
        eventually(lambda: refused_starts(system) > tried, SETTLED_S)
        assert system.show(SERVICE, "NFileDescriptorStore") == kept
    wait_for_successor(system, before)
    assert is_served(system, broker)


def test_shutdown_stops_the_broker_first(system: Booted) -> None:
    start_broker(system)
    system.power_off(SETTLED_S)
    told = system.last_journal(SERVICE, BROKER)
    assert told.index(f"Stopped {BROKER}") < told.index("event=unmounted")
    assert "not stopped" not in told


def test_stop_unmounts_and_leaves_the_guard(system: Booted) -> None:
    system.systemctl("start", SERVICE)
    # systemd knows every setting, but for the one that the unit says it may not know.
    unknown = {line for line in system.journal(SERVICE).splitlines() if "/systemd/system/" in line}
    assert all("FileDescriptorStorePreserve" in line for line in unknown), unknown
    system.systemctl("stop", SERVICE)
    assert system.show(SERVICE, "ActiveState") == "inactive"
    assert mount_count(system) == 0
    assert "COMMITLOG-NOT-MOUNTED" in system.run("ls", MOUNTPOINT).stdout


@pytest.mark.soak
def test_stop_ends_a_daemon_that_hangs(system: Booted) -> None:
    drop_in(system, "[Service]\\nWatchdogSec=0\\n")  # a probe that hangs in the mount would be a user of it
    system.systemctl("start", SERVICE)
    system.systemctl("kill", "-s", "STOP", "--kill-who=main", SERVICE)
    system.systemctl("stop", SERVICE)
    assert (daemon_pid(system), mount_count(system)) == (0, 0)
    assert system.show(SERVICE, "SubState") in ("dead", "failed")


def test_what_is_unmounted_by_hand_stays_unmounted(system: Booted) -> None:
    system.systemctl("start", SERVICE)
    system.run("commitlogfs", "umount", "log")
    eventually(lambda: system.show(SERVICE, "ActiveState") == "inactive")
    assert (system.show(SERVICE, "Result"), system.show(SERVICE, "NRestarts")) == ("success", "0")
    assert mount_count(system) == 0


def test_a_broken_configuration_gives_up_without_a_mount(system: Booted) -> None:
    drop_in(system, "[Unit]\\nStartLimitBurst=3\\n")
    with broken_configuration(system):
        system.systemctl("start", SERVICE, check=False)
        eventually(lambda: system.show(SERVICE, "ActiveState") == "failed", 40)
        assert "nonsense: unknown key" in system.journal(SERVICE)
        assert mount_count(system) == 0
