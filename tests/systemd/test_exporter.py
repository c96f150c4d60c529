"""The exporter's unit under a real systemd: a user without rights of his own reads the state of a mount."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.booted import Booted, booted, why_not
from support.waiting import eventually

from commitlogfs.bench.rocketmq.ports import ReservedPort

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be booted"),
]

ROOT = Path(__file__).parents[2]
SERVICE = "commitlogfs@log.service"
EXPORTER = "commitlogfs-exporter.service"


@pytest.fixture
def port() -> Iterator[int]:
    reserved = ReservedPort()
    yield reserved.number
    del reserved


@pytest.fixture
def system(workdir: Path, port: int) -> Iterator[Booted]:
    shared = workdir / "shared/disks"
    shared.mkdir(parents=True)
    for number in range(2):
        (workdir / f"shared/disks/cl{number}").mkdir(mode=0o700)
    config = workdir / "etc/commitlogfs/log.toml"
    config.parent.mkdir(parents=True)
    disks = ", ".join(f'{{ path = "/shared/disks/cl{number}" }}' for number in range(2))
    config.write_text(f'mountpoint = "/shared/store/commitlog"\nsegment_size = "1MiB"\ndisks = [{disks}]\n')
    sysusers = workdir / "etc/sysusers.d/commitlogfs.conf"
    sysusers.parent.mkdir(parents=True)
    sysusers.write_text((ROOT / "systemd/commitlogfs.sysusers").read_text())
    units = {path.name: path.read_text() for path in (ROOT / "systemd").glob("*.service")}
    start = f"[Service]\nExecStart=\nExecStart=/usr/local/bin/commitlogfs exporter --listen 127.0.0.1:{port}\n"
    # This test's interpreter may lie in a home directory, or below /var/tmp, of which the unit has one of its own.
    units[f"{EXPORTER}.d/test.conf"] = f"{start}ProtectHome=no\nBindReadOnlyPaths={ROOT}\n"
    with booted(workdir, units) as system:
        system.run("systemd-sysusers")
        # In the overlay only: root's home, where the interpreter may lie, is closed to other users.
        system.run("chmod", "a+x", "/root")
        system.run("commitlogfs", "init", "log")
        yield system


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def is_up(port: int, value: int) -> bool:
    try:
        return f'commitlogfs_up{{pool="log"}} {value}.0' in get(port, "/metrics")
    except OSError:
        return False


def test_a_user_without_rights_shows_a_mount(system: Booted, port: int) -> None:
    system.systemctl("start", SERVICE)
    system.systemctl("start", EXPORTER)
    eventually(lambda: is_up(port, 1), 30, lambda: system.journal(EXPORTER))
    status = f"/proc/{system.show(EXPORTER, 'MainPID')}/status"
    facts = dict(line.split(":", 1) for line in system.run("cat", status).stdout.splitlines())
    assert int(facts["Uid"].split()[0]) > 0
    assert int(facts["CapEff"], 16) == 0
    assert 'commitlogfs_disk_state{disk="/shared/disks/cl0"' in get(port, "/metrics")
    system.systemctl("stop", SERVICE)
    eventually(lambda: is_up(port, 0), 30)
    mounts = system.run("cat", "/proc/mounts").stdout
    assert "fuse.commitlogfs" not in mounts
    system.systemctl("start", SERVICE)
    eventually(lambda: is_up(port, 1), 30)
    system.systemctl("stop", EXPORTER)
    assert system.show(EXPORTER, "Result") == "success"
