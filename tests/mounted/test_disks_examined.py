"""`doctor` and `check` over disks in trouble: real full disks, failed disks, disks whose reads fail."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import CommandLine, Ran
from support.filling import fill_and_await, status
from support.freezing import frozen
from support.loop_disks import DiskFarm, LoopDisk, mkfs_available
from support.pools import MIB, PoolMount
from support.waiting import eventually

from commitlogfs.mount.doctor.disk_probe import DiskProbe, Probed, probe_disks

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

MakePool = Callable[..., PoolMount]


@pytest.fixture
def cli() -> CommandLine:
    return CommandLine()


def pool_on(make_pool: MakePool, disks: list[LoopDisk]) -> PoolMount:
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir(mode=0o700)
    return make_pool(disks=directories, retention={"interval": '"1s"'})


def found(ran: Ran, level: str) -> dict[str, str]:
    """The messages of one level, by name."""
    return {check["name"]: check["message"] for check in ran.json()["checks"] if check["level"] == level}


def problems(cli: CommandLine, pool: PoolMount) -> dict[str, str]:
    ran = cli("doctor", pool.config, "--json")
    assert (ran.status, ran.err) == (1, "")
    assert "All is well." not in cli("doctor", pool.config).out
    return found(ran, "problem")


def drop_from_memory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_disks_that_are_well(disk_farm: DiskFarm, make_pool: MakePool, cli: CommandLine, fstype: str) -> None:
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    pool = pool_on(make_pool, [disk_farm.add(fstype), disk_farm.add(fstype)])
    pool.start()
    pool.make_segments(range(4))
    eventually(lambda: status(pool)["scrub"]["unknown"] == [])  # the disks have answered what they record
    ran = cli("doctor", pool.config, "--json")
    assert found(ran, "problem") == {}
    names = found(ran, "ok")
    assert "daemon" in names, ran.out
    assert names["disk-probe"] == f"{pool.disks[1]}: segments can be read and made"
    assert pool.daemon is not None
    assert names["daemon"] == f"daemon {pool.daemon.pid} reports no trouble"
    checked = cli("check", pool.config)
    assert (checked.status, checked.err) == (0, "")
    assert all(not (Path(disk) / pool.path(9).name).exists() for disk in pool.disks)


def test_the_probe_takes_no_room_that_segments_need(disk_farm: DiskFarm) -> None:
    """A broker or a create that sees every disk that much fuller at this moment would delete old segments."""
    disk = disk_farm.add()
    fd = os.open(disk.path, os.O_RDONLY)
    try:
        more_than_there_is = 2 * disk.image.stat().st_size
        assert probe_disks([Probed(str(disk.path), fd, more_than_there_is, may_write=True)], 10) == [DiskProbe()]
    finally:
        os.close(fd)


def test_all_disks_full(disk_farm: DiskFarm, make_pool: MakePool, cli: CommandLine) -> None:
    pool = pool_on(make_pool, [disk_farm.add(), disk_farm.add()])
    pool.start()
    pool.make_segments(range(2))
    for index in range(2):
        fill_and_await(pool, index, 96)
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([2])
    assert refused.value.errno == errno.ENOSPC
    told = problems(cli, pool)
    assert told["all-full"].startswith("every disk is full")
    assert told["no-disk-for-the-next"] == "no disk takes the next segment, so its create will fail"
    warnings = found(cli("doctor", pool.config, "--json"), "warning")
    assert warnings["disk-full"].startswith(f"{pool.disks[1]}: ext4, ")
    assert warnings["disk-full"].endswith("% used; it takes no new segments")
    checked = cli("check", pool.config)
    assert checked.status == 1
    (alert,) = [line for line in checked.out.splitlines() if line.startswith("problem: every disk is full")]
    assert alert.endswith(" [all-full]")
    assert "all-full" in {alert["code"] for alert in cli("check", pool.config, "--json").json()["alerts"]}
    pool.stop()
    ran = cli("doctor", pool.config, "--json")
    assert (ran.status, found(ran, "warning")["disk-full"]) == (1, warnings["disk-full"]), "not mounted, too"


def test_a_disk_that_failed(
    disk_farm: DiskFarm, make_pool: MakePool, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal is aborted: statvfs says that it is writable, and its segments can be read."""
    bad, good = disk_farm.add(), disk_farm.add()
    bad.unmount()
    bad.mount("errors=remount-ro")
    pool = pool_on(make_pool, [bad, good])
    pool.start()
    pool.make_segments(range(2))
    Path(f"/sys/fs/ext4/{Path(bad.device).name}/trigger_fs_error").write_text("test\n")
    pool.make_segments([2])  # moves on to the other disk
    eventually(lambda: pool.ask("status")["disks"][0]["state"] == "failed")
    told = problems(cli, pool)
    assert told["disk-failed"].startswith(f"{pool.disks[0]}: segments cannot be made there")
    assert told["disk-unwritable"].startswith(f"{pool.disks[0]}: ")
    ran = cli("check", pool.config, "--json")
    assert ran.status == 1
    assert [disk["state"] for disk in ran.json()["disks"]] == ["failed", "rw"]
    assert "read-only" in ran.json()["disks"][0]["last_error"].lower()
    assert f"{pool.disks[0]}  ext4   failed" in cli("check", pool.config).out
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(pool.runtime))
    by_disks = cli("check", "--disks", ",".join(map(str, pool.disks)), "--json").json()
    assert [disk["state"] for disk in by_disks["disks"]] == ["failed", "rw"]


@pytest.mark.timing
def test_a_disk_that_hangs(disk_farm: DiskFarm, make_pool: MakePool, cli: CommandLine) -> None:
    """No file can be created on a frozen disk, and a process that tries cannot be killed."""
    bad, good = disk_farm.add(), disk_farm.add()
    pool = pool_on(make_pool, [bad, good])
    pool.start()
    pool.make_segments(range(2))
    with frozen(bad):
        started = time.monotonic()
        told = found(cli("doctor", pool.config, "--json"), "problem")
        assert told["disk-silent"] == f"{pool.disks[0]}: does not answer within 3 s"
        assert time.monotonic() - started < 30
    pool.stop()


@pytest.mark.alone
@pytest.mark.parametrize("served", [True, False])
def test_every_read_fails_before_anybody_asked(
    disk_farm: DiskFarm, make_pool: MakePool, cli: CommandLine, served: bool
) -> None:
    """The device has lost the part that holds the segments; the daemon has not looked since."""
    bad, good = disk_farm.add(), disk_farm.add()
    pool = pool_on(make_pool, [bad, good])
    pool.start()
    pool.make_segments(range(4))
    if served:
        eventually(lambda: status(pool)["checksums"]["with"])  # the daemon reads it no more
    else:
        pool.stop()
    for index in (0, 2):
        drop_from_memory(Path(pool.disks[0]) / pool.path(index).name)
    os.sync()
    whole = bad.image.stat().st_size
    os.truncate(bad.image, 2 * MIB)
    try:
        # Asked once: a write of the filesystem's journal or of the daemon makes the file longer again, with zeros.
        told = found(cli("doctor", pool.config, "--json"), "problem")
        names = ", ".join(pool.path(index).name for index in (0, 2))
        assert told["disk-unreadable"] == f"{pool.disks[0]}: cannot read {names}"
    finally:
        os.truncate(bad.image, whole)
        if served:
            pool.stop()
