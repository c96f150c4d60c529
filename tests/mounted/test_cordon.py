"""`commitlogfs disk cordon` and `uncordon`: from the next segment on, recorded by the disks."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command_line import run_process
from support.loop_disks import DiskFarm
from support.pools import PoolMount

from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def cordon_of(pool: PoolMount, index: int) -> dict[str, object] | None:
    found: dict[str, object] | None = pool.status()["disks"][index]["cordon"]
    return found


def test_new_segments_go_elsewhere_until_uncordoned(mounted: PoolMount):
    pool = mounted
    pool.make_segments(range(3))
    before = time.time()
    ran = pool.cli("disk", "cordon", 2, pool.name, "--reason", "smart warns")
    after = time.time()
    assert ran.status == 0, ran.err
    assert ran.out == f"test: disk 2 ({pool.disks[1]}) is cordoned; segments there: 1\n"
    pool.make_segments(range(3, 7))
    assert [pool.disk_of(index) for index in range(7)] == [0, 1, 2, 0, 2, 0, 2]
    disk = pool.status()["disks"][1]
    assert (disk["state"], disk["eligible"], disk["refusal"]) == ("cordoned", False, "cordoned")
    assert disk["cordon"]["reason"] == "smart warns"
    assert int(before) <= disk["cordon"]["since"] <= after + 1
    assert disk["eta_seconds"] is None
    listed = pool.cli("disk", "list", pool.name).out
    assert "(smart warns): its segments are served, new ones are made on other disks" in listed
    ran = pool.cli("disk", "uncordon", pool.disks[1], pool.name)
    assert ran.status == 0, ran.err
    pool.make_segments(range(7, 10))
    assert sorted(pool.disk_of(index) for index in range(7, 10)) == [0, 1, 2]
    assert cordon_of(pool, 1) is None


def test_it_holds_after_a_new_mount(mounted: PoolMount):
    pool = mounted
    pool.cli("disk", "cordon", 3, pool.name, "--reason", "old")
    before = cordon_of(pool, 2)
    pool.restart()
    assert cordon_of(pool, 2) == before
    pool.make_segments(range(4))
    assert 2 not in {pool.disk_of(index) for index in range(4)}


def test_a_cordoned_disk_is_written_and_cleaned_like_any_other(mounted: PoolMount):
    """Unlike a read-only one: its open segments are appended to, and expire."""
    pool = mounted
    pool.make_segments(range(2))
    with pool.path(1).open("r+b") as file:
        assert pool.cli("disk", "cordon", 2, pool.name).status == 0
        file.write(b"appended")
        file.flush()
        os.fsync(file.fileno())
    assert (pool.disks[1] / pool.path(1).name).read_bytes()[:8] == b"appended"
    pool.path(0).unlink()
    pool.path(1).unlink()
    assert not os.path.exists(pool.disks[1] / pool.path(1).name)


def test_a_dry_run_and_a_repetition_change_nothing(mounted: PoolMount):
    pool = mounted
    ran = pool.cli("disk", "cordon", 1, pool.name, "--dry-run")
    assert (ran.status, ran.out) == (0, f"test: disk 1 ({pool.disks[0]}) would be cordoned; segments there: 0\n")
    assert pool.status()["members"] == {"generation": 0, "lagging": [], "given_up": []}
    assert (
        pool.cli("disk", "uncordon", 1, pool.name).out == f"test: disk 1 ({pool.disks[0]}) is uncordoned already\n"
    )
    answer = pool.cli("disk", "cordon", 1, pool.name, "--json").json()
    assert answer == {
        "name": "test",
        "number": 1,
        "path": str(pool.disks[0]),
        "segments": 0,
        "changed": True,
        "lagging": [],
    }
    assert pool.cli("disk", "cordon", 1, pool.name, "--json").json()["changed"] is False
    assert pool.status()["members"]["generation"] == 1
    since = cordon_of(pool, 0)
    assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "known now").status == 0
    assert cordon_of(pool, 0) == {**(since or {}), "reason": "known now"}


def test_a_repeated_cordon_keeps_its_reason(mounted: PoolMount):
    pool = mounted
    assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "noisy").status == 0
    for disk in (1, pool.disks[0]):
        assert pool.cli("disk", "cordon", disk, pool.name, "--json").json()["changed"] is False
    assert (cordon_of(pool, 0) or {})["reason"] == "noisy"
    assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "").status == 0
    assert (cordon_of(pool, 0) or {})["reason"] == ""


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
@pytest.mark.parametrize("disk", ["4", "0", "/nowhere"])
def test_no_such_disk(mounted: PoolMount, verb: str, disk: str):
    ran = mounted.cli("disk", verb, disk, mounted.name)
    assert (ran.status, ran.out) == (4, "")
    assert ran.err.startswith(
        f"commitlogfs: test: {disk}: the pool has no disk of this number or path; its disks are "
    )
    assert ran.err.count("\n") == 1


def test_the_last_disk_that_takes_segments_is_not_cordoned(mounted: PoolMount):
    pool = mounted
    assert pool.cli("disk", "cordon", 1, pool.name).status == 0
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    ran = pool.cli("disk", "cordon", 3, pool.name)
    assert ran.status == 4
    assert "no other disk takes new segments now, so the broker could not write" in ran.err
    pool.make_segments(range(2))
    assert [pool.disk_of(index) for index in range(2)] == [2, 2]


def test_two_processes_race_for_the_last_disks(mounted: PoolMount):
    pool = mounted
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    with ThreadPoolExecutor() as threads:
        ran = list(threads.map(lambda n: run_process("disk", "cordon", n, pool.name, env=pool.env), (1, 2)))
    assert sorted(one.status for one in ran) == [0, 4]
    (refused,) = (one.err for one in ran if one.status == 4)
    assert "no other disk takes new segments now, so the broker could not write" in refused
    assert refused.count("\n") == 1
    assert [disk["state"] for disk in pool.status()["disks"]].count("rw") == 1
    pool.make_segments(range(2))


def test_a_reason_has_a_length(mounted: PoolMount):
    ran = mounted.cli("disk", "cordon", 1, mounted.name, "--reason", "x" * 81)
    assert ran.status == 2
    assert ran.err == "commitlogfs: --reason: give at most 80 printable characters\n"
    assert mounted.cli("disk", "cordon", 1, mounted.name, "--reason", "two\nlines").status == 2
    assert cordon_of(mounted, 0) is None


def test_without_a_daemon_nothing_is_changed(make_pool):
    pool = make_pool(3, name="not-mounted")
    for arguments in (
        ("disk", "cordon", 1),
        ("disk", "uncordon", 1),
        ("disk", "list"),
        ("disk", "add", pool.workdir / "new"),
        ("disk", "drain", 1),
        ("disk", "cancel", 1),
        ("disk", "safe-to-remove", 1),
        ("disk", "remove", 1),
        ("disk", "replace", 1, pool.workdir / "new"),
        ("rebalance", "plan"),
        ("rebalance", "start"),
        ("rebalance", "status"),
        ("rebalance", "cancel"),
        ("restore", "--from", pool.workdir),
    ):
        ran = pool.cli(*arguments, pool.config)
        assert ran.status == 3, arguments
        assert ran.err == "commitlogfs: not-mounted: no daemon is running; start it with `commitlogfs mount`\n"
    assert not (pool.workdir / "new").exists()
    for disk in pool.disks:
        assert "generation" not in json.loads(os.getxattr(disk, layout.XATTR_IDENTITY))


def test_a_change_that_no_disk_can_record_does_not_take_effect(disk_farm: DiskFarm, make_pool):
    """ext4 has one block for all attributes of a directory."""
    directories = [disk_farm.add("ext4").path / "commitlog" for _ in range(2)]
    for directory in directories:
        directory.mkdir()
    pool = make_pool(disks=directories)
    for directory in directories:
        for size in range(3500, 0, -10):
            try:
                os.setxattr(directory, "user.filler", b"x" * size)
                break
            except OSError:
                continue
    pool.start()
    ran = pool.cli("disk", "cordon", 1, pool.name, "--reason", "x" * 80)
    assert ran.status == 4
    assert "no disk could record the change within 2 s" in ran.err
    assert pool.status()["disks"][0]["state"] == "rw"
    for directory in directories:
        os.removexattr(directory, "user.filler")
    assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "x" * 80).status == 0
    pool.restart()
    assert pool.status()["disks"][0]["state"] == "cordoned"
