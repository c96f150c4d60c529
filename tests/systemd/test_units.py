"""The units under a real systemd: it keeps the descriptors, replaces the daemon, and never takes a mount away."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.booted import Booted, booted, why_not
from support.loop_disks import DiskFarm
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be booted"),
]

UNITS = Path(__file__).parents[2] / "systemd"
SERVICE = "commitlogfs@log.service"
BROKER = "broker.service"
MOUNTPOINT = "/shared/store/commitlog"
SEGMENT = f"{MOUNTPOINT}/{0:020d}"
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
    (workdir / "shared/disks").mkdir(parents=True)
    (workdir / "shared/appender.py").write_text(APPENDER)
    disk = disk_farm.add("ext4")
    for number in range(2):
        (disk.path / f"cl{number}").mkdir(mode=0o700)
    subprocess.run(["mount", "--bind", str(disk.path), str(workdir / "shared/disks")], check=True)
    config = workdir / "etc/commitlogfs/log.toml"
    config.parent.mkdir(parents=True)
    disks = ", ".join(f'{{ path = "/shared/disks/cl{number}" }}' for number in range(2))
    config.write_text(f'mountpoint = "{MOUNTPOINT}"\nsegment_size = "1MiB"\ndisks = [{disks}]\n')
    units = {path.name: path.read_text() for path in UNITS.glob("*.service")}
    drop_in = (UNITS / "broker.service.d/commitlogfs.conf").read_text().replace("NAME", "log")
    units[f"{BROKER}.d/commitlogfs.conf"] = drop_in
    units[BROKER] = "[Service]\nExecStart=/usr/bin/python3 /shared/appender.py\n"
    try:
        with booted(workdir, units) as system:
            system.run("commitlogfs", "init", "log")
            yield system
    finally:
        subprocess.run(["umount", "-l", str(workdir / "shared/disks")], check=True)


def daemon_pid(system: Booted) -> int:
    return int(system.show(SERVICE, "MainPID"))


def has_segment(system: Booted) -> bool:
    found = system.run("stat", SEGMENT, check=False).returncode == 0
    assert found, system.journal(BROKER) + system.journal(SERVICE) + system.journal("commitlogfs-ready@log")
    return found


def test_the_broker_survives_every_death_of_the_daemon(system: Booted) -> None:
    system.systemctl("start", BROKER)
    assert system.show(SERVICE, "ActiveState") == "active"
    broker = system.show(BROKER, "MainPID")
    eventually(lambda: has_segment(system))
    for how in ("kill -9", "restart", "hang"):
        before = daemon_pid(system)
        if how == "kill -9":
            system.systemctl("kill", "-s", "KILL", "--kill-who=main", SERVICE)
        elif how == "restart":
            system.run("commitlogfs", "restart", "log")
        else:
            system.systemctl("kill", "-s", "STOP", "--kill-who=main", SERVICE)
        eventually(
            lambda before=before: (
                daemon_pid(system) not in (0, before) and system.show(SERVICE, "ActiveState") == "active"
            ),
            40,
        )
        assert system.run("stat", SEGMENT).returncode == 0
        assert (system.show(BROKER, "MainPID"), system.show(BROKER, "ActiveState")) == (broker, "active"), how
    assert system.run("grep", "-c", "fuse.commitlogfs", "/proc/mounts").stdout.strip() == "1"


def test_a_mount_in_use_is_not_taken_away(system: Booted) -> None:
    system.systemctl("start", BROKER)
    eventually(lambda: has_segment(system))
    system.systemctl("stop", "--no-block", SERVICE)
    eventually(lambda: "held by" in system.journal(SERVICE) or "python3" in system.journal(SERVICE), 40)
    assert system.run("stat", SEGMENT).returncode == 0
    assert system.show(BROKER, "ActiveState") == "active"
    system.systemctl("stop", BROKER)
    eventually(lambda: system.show(SERVICE, "ActiveState") in ("inactive", "failed"), 60)


def test_stop_unmounts_and_leaves_the_guard(system: Booted) -> None:
    system.systemctl("start", SERVICE)
    system.systemctl("stop", SERVICE)
    assert system.show(SERVICE, "ActiveState") == "inactive"
    assert system.run("grep", "-c", "fuse.commitlogfs", "/proc/mounts", check=False).stdout.strip() == "0"
    assert "COMMITLOG-NOT-MOUNTED" in system.run("ls", MOUNTPOINT).stdout


def test_a_broken_configuration_gives_up_without_a_mount(system: Booted) -> None:
    system.run("sh", "-c", "echo 'nonsense = 1' >> /etc/commitlogfs/log.toml")
    system.systemctl("start", SERVICE, check=False)
    eventually(lambda: system.show(SERVICE, "ActiveState") == "failed", 40)
    assert "nonsense: unknown key" in system.journal(SERVICE)
    assert system.run("grep", "-c", "fuse.commitlogfs", "/proc/mounts", check=False).stdout.strip() == "0"
