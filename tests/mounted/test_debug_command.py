"""`commitlogfs debug`: the archive of a healthy mount, a damaged one, a hung, a dead and a foreign daemon."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import checksums, scrubs, unprivileged
from support.checksums import NEWEST, await_checksums, backing
from support.flaky_disks import FlakyDisk, flaky_available
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import PoolMount
from support.records import make_sealed
from support.unprivileged import Desktop

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

MakePool = Callable[..., PoolMount]
BODY = b"MarkerOfABody"
TOPIC = b'Marker"Of"ATopic'
SECRET = "MarkerOfASecret"  # noqa: S105
PROPERTIES = b"TAGS\x01MarkerOfATag\x02"
COMPLETE = {
    *("check.json", "configuration.toml", "devices.json", "doctor.json", "limits.json", "log.txt", "manifest.json"),
    *("metrics.txt", "mounts.txt", "processes.json", "segments.json", "status.json", "versions.json"),
}
"""Pieces of a mount that runs without systemd."""
FROM_THE_DAEMON = {"metrics.txt", "segments.json", "status.json"}


class Archive:
    """An unpacked archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as archive:
            self.members = archive.getmembers()
            self.files = {member.name: archive.extractfile(member).read() for member in self.members}

    def text(self, name: str) -> str:
        return self.files[f"commitlogfs-debug/{name}"].decode()

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))

    @property
    def names(self) -> set[str]:
        return {name.removeprefix("commitlogfs-debug/") for name in self.files}

    @property
    def missing(self) -> dict[str, str]:
        return {one["file"]: one["reason"] for one in self.json("manifest.json")["not_collected"]}


def debug(pool: PoolMount, which: object, *options: str, file: str = "archive.tar.gz") -> Archive:
    output = pool.workdir / file
    ran = pool.cli("debug", which, "--output", output, *options)
    assert ran.status == 0, ran.err
    return Archive(output)


def test_the_archive_of_a_mount(mounted: PoolMount) -> None:
    mounted.make_segments(range(4))
    archive = debug(mounted, mounted.config, "--timeout", "60")
    assert archive.missing.keys() <= {"decisions.json", "units.txt"}, archive.missing
    assert archive.names - {"decisions.json"} == COMPLETE
    assert [member.name for member in archive.members] == sorted(archive.files)
    assert all((member.mode, member.uid, member.gid) == (0o600, 0, 0) for member in archive.members)
    assert stat.S_IMODE(archive.path.stat().st_mode) == 0o600

    assert mounted.daemon is not None
    status = archive.json("status.json")
    assert (status["daemon"]["pid"], status["segments"]["count"]) == (mounted.daemon.pid, 4)
    assert 'commitlogfs_disk_segments{disk="' in archive.text("metrics.txt")
    segments = archive.json("segments.json")
    assert (segments["count"], segments["gap_count"]) == (4, 0)
    assert sum(disk["segments"] for disk in segments["disks"]) == 4
    assert archive.text("configuration.toml") == mounted.config.read_text()
    assert "event=ready" in archive.text("log.txt")
    assert {"disks-share-filesystem"} <= {finding["code"] for finding in archive.json("check.json")["findings"]}
    assert "kernel" in {check["name"] for check in archive.json("doctor.json")["checks"]}
    lines = archive.text("mounts.txt").splitlines()
    own = [line for line in lines if str(mounted.workdir) in line]  # those of others come and go
    assert all(line in Path("/proc/self/mountinfo").read_text().splitlines() for line in own)
    assert any(f" {mounted.mountpoint} " in line for line in lines)
    versions = archive.json("versions.json")
    assert versions["kernel"].split()[1] == os.uname().release
    assert versions["libraries"]["pyfuse3"]
    assert versions["libfuse"]["loaded"].startswith("libfuse3.so.3")
    process = archive.json("processes.json")["daemon"]
    assert process["pid"] == mounted.daemon.pid
    assert any(line.startswith("Max open files") for line in process["limits"])
    assert str(mounted.daemon.pid) in process["threads"]
    assert archive.json("limits.json")["kernel"]["vm/max_map_count"].isdecimal()
    manifest = archive.json("manifest.json")
    assert {one["file"]: one["bytes"] for one in manifest["inside"]} == {
        name: len(archive.text(name).encode()) for name in archive.names - {"manifest.json"}
    }


def test_a_name_finds_the_mount_and_a_dry_run_makes_nothing(mounted: PoolMount) -> None:
    ran = mounted.cli("debug", mounted.name, "--output", mounted.workdir / "x.tar.gz", "--dry-run")
    assert ran.status == 0
    planned = {line.split()[0].removeprefix("commitlogfs-debug/") for line in ran.out.splitlines()[1:]}
    assert planned == COMPLETE | {"decisions.json", "units.txt"}
    assert not (mounted.workdir / "x.tar.gz").exists()
    archive = debug(mounted, mounted.name)
    assert archive.json("manifest.json")["mount"] == mounted.name


def test_an_existing_file_is_refused(mounted: PoolMount) -> None:
    output = mounted.workdir / "archive.tar.gz"
    output.write_text("a report of yesterday")
    ran = mounted.cli("debug", mounted.config, "--output", output)
    assert ran.status == 4
    assert "exists already; remove it" in ran.err
    assert output.read_text() == "a report of yesterday"
    output.unlink()
    output.symlink_to(mounted.workdir / "elsewhere")
    assert mounted.cli("debug", mounted.config, "--output", output).status == 4
    assert not (mounted.workdir / "elsewhere").exists()
    inside = mounted.mountpoint / "archive.tar.gz"
    assert "is inside a commitlogfs" in mounted.cli("debug", mounted.config, "--output", inside).err
    assert mounted.cli("debug", mounted.config, "--output", mounted.workdir / "no" / "x").status == 4


def test_no_bytes_of_messages_are_inside(make_pool: MakePool) -> None:
    """Not even where a scrub has found a damaged segment, whose messages the status names by topic."""
    pool = make_pool(2)
    pool.start()
    for index in range(NEWEST + 2):
        base = index * pool.segment_size
        content = make_sealed(base, pool.segment_size, topic=TOPIC, properties=PROPERTIES)
        content = content.replace(bytes([7]) * len(BODY), BODY)
        pool.make_segments([index], fill=False)
        checksums.write(pool.path(index), content, checksums.LONG_AGO_NS + index)
    await_checksums(pool, 2)
    damaged = backing(pool, 0)
    scrubs.flip(damaged, damaged.read_bytes().index(BODY))
    assert set(scrubs.scrub(pool)) == {damaged.name}
    text = TOPIC.decode()
    assert text in json.dumps(pool.status()).replace('\\"', '"')  # else this test proves nothing

    pool.config.write_text(
        f"# restored from s3://{SECRET}:{SECRET}@store/x?signature={SECRET}\n{pool.config.read_text()}"
    )
    archive = debug(pool, pool.config)
    assert damaged.name in archive.text("status.json")
    assert "s3://(removed)@store/x?(removed)" in archive.text("configuration.toml")
    for name, content in archive.files.items():
        assert not [word for word in (b"Marker", BODY[:6], b"ATopic") if word in content], name


def test_a_hung_daemon(mounted: PoolMount) -> None:
    mounted.make_segments(range(2))
    assert mounted.daemon is not None
    mounted.daemon.send_signal(signal.SIGSTOP)
    try:
        archive = debug(mounted, mounted.config, "--timeout", "4")
    finally:
        mounted.daemon.send_signal(signal.SIGCONT)
    assert {"configuration.toml", "log.txt", "mounts.txt", "processes.json"} <= archive.names
    assert "does not answer within 3 s" in archive.missing["status.json"]
    assert "not asked again" in archive.missing["metrics.txt"]
    process = archive.json("processes.json")["daemon"]
    assert process["threads"][str(process["pid"])]["state"] == "T (stopped)"
    assert set(archive.missing) <= {"check.json", "decisions.json", "doctor.json", *FROM_THE_DAEMON, "units.txt"}


def test_a_dead_daemon(mounted: PoolMount) -> None:
    mounted.make_segments(range(3))
    mounted.kill()
    archive = debug(mounted, mounted.config)
    assert "no daemon is running" in archive.missing["status.json"]
    assert archive.missing["processes.json"] == "neither a daemon nor a keeper lives"
    assert archive.json("check.json")["segments"]["count"] == 3
    assert f" {mounted.mountpoint} " in archive.text("mounts.txt")


def test_a_broken_configuration(mounted: PoolMount) -> None:
    mounted.stop()
    mounted.config.write_text(f'plcement = "modulo"\n{mounted.config.read_text()}')
    archive = debug(mounted, mounted.config)
    assert archive.text("configuration.toml").startswith("plcement")
    assert "did you mean placement?" in archive.missing["check.json"]
    assert archive.names >= {"mounts.txt", "devices.json", "versions.json"}


@pytest.mark.timing
@pytest.mark.skipif(bool(flaky_available()), reason=flaky_available())
def test_a_hanging_disk(disk_farm: DiskFarm, make_pool: MakePool) -> None:
    """The pieces that wait for the disk are given up; its device is named without a stat of the disk."""
    bad = disk_farm.add_of(FlakyDisk)
    disks = [disk_farm.add(), bad]
    pool = make_pool(disks=commitlog_directories(*disks))
    pool.start()
    pool.make_segments(range(4))
    bad.bypass_cache()
    bad.drop_caches()
    with bad.hanging():
        begun = time.monotonic()
        archive = debug(pool, pool.config, "--timeout", "4")
        assert time.monotonic() - begun < 15
    assert {"status.json", "metrics.txt", "mounts.txt", "devices.json", "log.txt"} <= archive.names
    assert "no answer within 4 s" in archive.missing["check.json"]
    named = archive.json("devices.json")["devices"].values()
    assert {f"/dev/{device['name']}" for device in named if device["name"].startswith("loop")} == {
        disk.device for disk in disks
    }
    assert [str(disk.path) in archive.text("mounts.txt") for disk in disks] == [True, True]


@pytest.fixture
def open_to_all(make_pool: MakePool) -> PoolMount:
    pool = make_pool(1, born=False, name=f"orders{os.getpid()}")
    pool.init("--mode", "0755")
    pool.start()
    return pool


def test_a_user_beside_a_mount_of_root(open_to_all: PoolMount, desktop: Desktop) -> None:
    """The mount comes first: nothing that is mounted later can be seen from the desktop."""
    pool = open_to_all
    output = desktop.home / "archive.tar.gz"
    command = [sys.executable, "-m", "commitlogfs.mount.cli", "debug", pool.mountpoint, "--output", output]
    ran = desktop.run(*command)
    assert ran.returncode == 0, ran.stderr
    archive = Archive(output)
    assert (output.stat().st_uid, stat.S_IMODE(output.stat().st_mode)) == (unprivileged.UID, 0o600)
    assert archive.json("status.json")["name"] == pool.name
    assert "commitlogfs_disk_segments" in archive.text("metrics.txt")
    assert f" {pool.mountpoint} " in archive.text("mounts.txt")
    assert archive.missing["segments.json"].startswith("the daemon answers only root")
    assert "processes.json" in archive.missing


def test_a_machine_without_a_mount(workdir: Path) -> None:
    """As a process of its own, which finds no configuration and no mount."""
    environment = {**os.environ, "COMMITLOGFS_RUNTIME_DIR": str(workdir / "run")}
    code = "from pathlib import Path; import sys; from commitlogfs.mount.config import model; "
    code += "model.SYSTEM_DIRECTORY = Path(sys.argv[1]); from commitlogfs.mount import cli; "
    code += "sys.exit(cli.main(['debug', '--json']))"
    command = [sys.executable, "-c", code, str(workdir / "none")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=workdir, env=environment)
    manifest = json.loads(ran.stdout)
    archive = Archive(Path(manifest["archive"]))
    assert archive.path.parent == workdir
    assert archive.path.name.startswith("commitlogfs-debug-machine-")
    assert archive.names >= {"versions.json", "limits.json", "doctor.json"}
