"""`commitlogfs check`: every finding in words, nothing changed, mounted or not."""

import os

import pytest
from support.command_line import CommandLine
from support.pools import MIB, PoolMount, segment_name
from support.refusals import degrade, write_segment
from support.scrubs import await_recorded
from support.snapshots import snapshot
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.full]


@pytest.fixture
def cli():
    return CommandLine()


def codes(ran):
    return {finding["code"] for finding in ran.json()["findings"]}


def test_a_sound_pool(make_pool, cli):
    pool = make_pool(1)
    for index in range(3):
        write_segment(pool.disks[0], index)
    before = snapshot(*pool.disks)
    ran = cli("check", pool.config)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("test: pool ")
    assert lines[1] == f"3 segments of 1MiB, log offsets 0 to {3 * MIB:,}"
    assert lines[-1] == "A mount would succeed."
    assert snapshot(*pool.disks) == before


def test_every_finding_is_told_and_nothing_is_changed(make_pool, cli):
    pool = make_pool(2)
    one, two = pool.disks
    write_segment(one, 0)
    write_segment(two, 0)  # a duplicate
    write_segment(one, 1)
    write_segment(one, 3)  # a gap
    write_segment(two, 4, size=5000)  # a wrong size
    (one / "alien.txt").write_text("x")
    (two / segment_name(5, MIB)).symlink_to("/etc/passwd")
    (one / f".{segment_name(6, MIB)}.abc").write_text("a copy")
    before = snapshot(one, two)
    ran = cli("check", pool.config, "--json")
    assert ran.status == 1
    assert codes(ran) >= {
        "duplicate-segment",
        "gap",
        "wrong-size",
        "alien-file",
        "not-a-regular-file",
        "unfinished-copy",
        "disks-share-filesystem",
    }
    assert ran.json()["mountable"] is False
    assert all(finding["message"] and finding["remedy"] for finding in ran.json()["findings"])

    words = cli("check", "--disks", f"{one},{two}")
    assert words.status == 1
    for finding in ran.json()["findings"]:
        assert finding["message"] in words.out
        assert finding["remedy"] in words.out
    assert words.out.splitlines()[-1].startswith("A mount would be refused: ")
    assert snapshot(one, two) == before


def test_a_missing_disk_and_what_degraded_makes_of_it(make_pool, cli):
    pool = make_pool(2)
    pool.start()
    pool.make_segments(range(3))
    pool.stop()
    away = pool.workdir / "away"
    pool.disks[1].rename(away)
    ran = cli("check", pool.config)
    assert ran.status == 1
    (finding,) = [line for line in ran.out.splitlines() if line.startswith(f"refuses: {pool.disks[1]}: ")]
    assert finding.endswith(" [disk-missing]")
    degrade(pool)
    pool.write_config()
    ran = cli("check", pool.config)
    assert ran.status == 1
    assert (
        ran.out.splitlines()[-1] == 'A mount would serve the disks that are there, because on_missing = "degraded".'
    )
    away.rename(pool.disks[1])


def test_no_disk_at_all(make_pool, cli, workdir):
    pool = make_pool(2)
    for disk in pool.disks:
        disk.rename(f"{disk}-away")
    ran = cli("check", pool.config)
    assert (ran.status, ran.out) == (4, "")
    assert ran.err.startswith("commitlogfs: test: the pool cannot be checked: \n  ")
    assert ran.err.count("no such directory") == 2


def test_no_identity_anywhere(make_pool, cli):
    pool = make_pool(2, born=False)
    pool.write_config()
    ran = cli("check", pool.config)
    assert (ran.status, ran.err.count("\n")) == (4, 1)
    assert "commitlogfs init" in ran.err


def test_while_the_pool_is_served(make_pool, cli):
    pool = make_pool(1)
    pool.start()
    pool.make_segments(range(3))
    # The daemon notes the newest segment in the background; afterwards it leaves the directory alone.
    eventually(lambda: os.getxattr(pool.disks[0], "user.commitlogfs.newest") == b"%d" % (2 * MIB))
    await_recorded(pool)
    before = snapshot(*pool.disks)
    with open(pool.path(2), "rb"):  # the daemon has the newest segment open: no finding
        ran = cli("check", pool.config)
    assert ran.status == 0
    assert f"served by daemon {pool.daemon.pid}" in ran.out.splitlines()[0]
    assert snapshot(*pool.disks) == before
    # The check has not locked the disk, and the mount continues.
    pool.make_segments([3])
    (pool.disks[0] / "alien").write_text("x")
    ran = cli("check", pool.config, "--json")
    assert (ran.status, codes(ran)) == (1, {"alien-file"})
    assert ran.json()["daemon"] == {"pid": pool.daemon.pid}
    assert ran.json()["segments"]["count"] == 4


def test_a_native_broker_on_the_directories(make_pool, cli):
    pool = make_pool(1)
    path = write_segment(pool.disks[0], 0)
    with open(path, "r+b"):
        ran = cli("check", pool.config, "--json")
    assert (ran.status, codes(ran)) == (1, {"segment-in-use"})
    assert cli("check", pool.config).status == 0


@pytest.mark.root
def test_a_pool_that_is_served_elsewhere_could_not_be_mounted(mounted, cli):
    other = mounted.workdir / "other.toml"
    mounted.write_config()
    other.write_text(mounted.config.read_text().replace("/store/commitlog", "/elsewhere/commitlog"))
    ran = cli("check", other)
    assert ran.status == 1
    assert f"daemon {mounted.daemon.pid} serves this pool, but not at" in ran.out
    assert ran.out.splitlines()[-1].startswith("A mount would be refused: 1 reason")
    assert mounted.cli("mount", "--no-keeper", other).status == 4
    assert "A mount would be refused" not in cli("check", mounted.config).out


@pytest.mark.root
def test_a_dead_mount_is_no_native_broker(mounted, cli):
    mounted.make_segments([0])
    with mounted.path(0).open("rb"):
        pass
    mounted.kill()
    ran = cli("check", mounted.config)
    assert "native broker" not in ran.out
    assert f"{mounted.mountpoint}: the mount is dead" in ran.out
    assert ran.out.splitlines()[-1].startswith("A mount would succeed")
    mounted.start()


@pytest.mark.parametrize("size", [MIB // 2, 2 * MIB])
def test_a_broker_with_another_segment_size_is_named(mounted: PoolMount, size: int) -> None:
    """The broker only repeats its attempt, which is refused."""
    fd = os.open(mounted.path(0), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=r"Invalid argument|File too large"):
                os.ftruncate(fd, size)
        for command in ("status", "check"):
            shown = " ".join(mounted.cli(command, mounted.name).out.split())
            assert f"a new segment was to have {size:,} bytes, and those of the pool have {MIB:,}" in shown
            assert f"set mappedFileSizeCommitLog={MIB}" in shown
        assert mounted.cli("check", mounted.name).status == 1
        assert mounted.log_since_start().count("size_refused") == 1
        os.ftruncate(fd, MIB)
        assert "mappedFileSizeCommitLog" not in mounted.cli("check", mounted.name).out
    finally:
        os.close(fd)
