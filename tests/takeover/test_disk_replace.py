"""`commitlogfs disk replace`: another disk takes the place of a living or a dead one, in a running mount."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ran
from support.filling import fill_to
from support.kept import KeptMount
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import MIB, PoolMount
from support.waiting import eventually

from commitlogfs.mount.commands import disk_replace

pytestmark = [pytest.mark.mounted, pytest.mark.root]

COUNT = 12
FAST = "1GiB"


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    kept = keep(3)
    kept.pool.make_segments(range(COUNT))
    return kept


def new_directory(pool: PoolMount) -> Path:
    directory = pool.workdir / "new"
    directory.mkdir()
    return directory


def replace_and_wait(pool: PoolMount, disk: object, new: Path, *options: str) -> Ran:
    return pool.cli("disk", "replace", disk, new, pool.name, "--rate", FAST, "--wait", *options)


def content(pool: PoolMount) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pool.mountpoint.iterdir()}


def test_a_living_disk_is_emptied_into_the_others_and_leaves(kept: KeptMount) -> None:
    pool = kept.pool
    before, new = content(pool), new_directory(pool)
    ran = pool.cli("disk", "replace", 2, new, pool.name, "--rate", FAST)
    assert ran.status == 0, ran.err
    assert ran.out == (
        f"test: {new} is disk 4; {pool.disks[1]} drains; `commitlogfs disk remove {pool.disks[1]}` when "
        "`disk safe-to-remove` says so\n"
    )
    pool.make_segments(range(COUNT, COUNT + 4))  # so that the newest can go, too
    eventually(lambda: pool.ask("status")["disks"][1]["segments"] == 0)
    ran = pool.cli("disk", "remove", 2, pool.name)
    assert ran.status == 0, ran.err
    assert [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4]
    assert str(pool.disks[1]) not in pool.config.read_text()
    assert os.listdir(pool.disks[1]) == os.listxattr(pool.disks[1]) == []
    assert {name: data for name, data in content(pool).items() if name in before} == before
    assert any(name.isdecimal() for name in os.listdir(new))


@pytest.mark.parametrize("option", ["--failing", "--by-expiry"])
def test_a_disk_that_drains_already_keeps_the_mode_of_its_drain(kept: KeptMount, option: str) -> None:
    pool, mode = kept.pool, option.removeprefix("--by-").removeprefix("--")
    rate = ("--rate", "1KiB") if mode == "failing" else ()
    assert pool.cli("disk", "drain", 2, pool.name, option, *rate).status == 0
    before = pool.ask("status")["disks"][1]["drain"]
    new = new_directory(pool)
    how = {"failing": " as far as it can be read", "expiry": " by expiry"}[mode]
    planned = pool.cli("disk", "replace", 2, new, pool.name, "--dry-run").out
    assert f"{pool.disks[1]} would drain{how}: " in planned
    ran = pool.cli("disk", "replace", 2, new, pool.name)
    assert ran.status == 0, ran.err
    assert f"; {pool.disks[1]} drains{how}; " in ran.out
    drain = pool.ask("status")["disks"][1]["drain"]
    assert [drain[key] for key in ("mode", "rate", "since")] == [before[key] for key in ("mode", "rate", "since")]
    assert drain["mode"] == mode
    ran = pool.cli("disk", "replace", 2, new, pool.name, "--rate", FAST)
    if mode == "failing":
        assert (ran.status, pool.ask("status")["disks"][1]["drain"]["rate"]) == (0, 1 << 30)
    else:
        assert ran.status == 4
        assert f"{pool.disks[1]}: drains by expiry, and nothing is copied; leave out --rate" in ran.err


def test_waiting_for_the_end(kept: KeptMount) -> None:
    pool = kept.pool
    new = new_directory(pool)
    assert pool.cli("disk", "drain", 2, pool.name, "--rate", FAST).status == 0
    pool.make_segments(range(COUNT, COUNT + 4))
    fd = os.open(pool.path(pool.ask("status")["segments"]["count"] - 1), os.O_RDONLY)
    ran = replace_and_wait(pool, pool.disks[1], new, "--json")
    os.close(fd)
    assert ran.status == 0, ran
    document = ran.json()
    assert (document["number"], document["path"], document["left"]) == (4, str(new), True)
    assert [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4]


def test_moved_while_it_waits(kept: KeptMount) -> None:
    """The segments move at once, after the hand-over: files opened under a former daemon are set aside first."""
    pool = kept.pool
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    pool.make_segments(range(COUNT, COUNT + 4))
    ran = replace_and_wait(pool, 2, new_directory(pool))
    assert ran.status == 0, ran
    assert [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4]


def test_a_disk_that_is_held_cannot_leave_yet(kept: KeptMount) -> None:
    pool = kept.pool
    new = new_directory(pool)
    index = next(index for index in range(COUNT) if pool.disk_of(index) == 1)
    fd = os.open(pool.path(index), os.O_RDWR)
    try:
        assert pool.cli("disk", "drain", 2, pool.name, "--rate", FAST).status == 0
        pool.make_segments(range(COUNT, COUNT + 4))
        ran = replace_and_wait(pool, 2, new)
        assert ran.status == 1
        assert f"{pool.disks[1]} is drained, but cannot leave yet (" in ran.out
    finally:
        os.close(fd)
    eventually(lambda: pool.cli("disk", "remove", 2, pool.name).status == 0)


def test_a_missing_disk_is_given_up(keep: Callable[..., KeptMount]) -> None:
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(COUNT))
    index = next(n for n in range(COUNT) if pool.disk_of(n) not in (pool.disk_of(COUNT - 1), pool.disk_of(0)))
    number = pool.disk_of(index)
    pool.stop()
    pool.disks[number].rename(pool.workdir / "away")
    kept.start()
    assert pool.status()["degraded"]
    new = new_directory(pool)
    ran = pool.cli("disk", "replace", number + 1, new, pool.name, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"Giving up disk {number + 1} (" in ran.out
    assert ran.out.endswith(f"{new} would become disk 4 of the pool.\n")
    planned = pool.cli("disk", "replace", number + 1, new, pool.name, "--dry-run", "--json").json()
    assert planned["joins"] == {"number": 4, "path": str(new)}
    assert pool.status()["degraded"]
    ran = pool.cli("disk", "replace", number + 1, new, pool.name)
    assert (ran.status, "the loss cannot be confirmed" in ran.err) == (2, True)
    ran = pool.cli("disk", "replace", number + 1, new, pool.name, "--yes")
    assert ran.status == 0, ran.err
    assert ran.out.endswith(f"is given up, and {new} is disk 4 of the pool\n")
    status = pool.status()
    assert (status["degraded"], status["members"]["given_up"][0]["number"]) == (False, number + 1)
    assert status["segments"]["accepted_gaps"] == len(status["segments"]["gaps"]) > 0
    pool.disks = [disk for disk in pool.disks if disk != pool.disks[number]] + [new]
    pool.make_segments(range(COUNT, COUNT + 3))
    assert {pool.disk_of(n) for n in range(COUNT, COUNT + 3)} == {0, 1, 2}


@pytest.mark.parametrize("is_named_by", ["number", "path"])
def test_a_missing_disk_is_replaced_at_its_path(keep: Callable[..., KeptMount], is_named_by: str) -> None:
    """The new directory is checked before the missing disk is given up."""
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(COUNT))
    number = next(n for n in range(3) if n not in (pool.disk_of(COUNT - 1), pool.disk_of(0)))
    pool.stop()
    path = pool.disks[number]
    path.rename(pool.workdir / "away")
    path.mkdir()
    (path / "photo.jpg").touch()
    kept.start()
    before = (pool.config.read_text(), pool.ask("status")["members"])
    old = path if is_named_by == "path" else number + 1
    ran = pool.cli("disk", "replace", old, path, pool.name, "--yes")
    assert (ran.status, "not empty (it holds 'photo.jpg')" in ran.err) == (4, True)
    assert (pool.config.read_text(), pool.ask("status")["members"]) == before
    (path / "photo.jpg").unlink()
    planned = pool.cli("disk", "replace", old, path, pool.name, "--dry-run", "--json").json()
    assert (planned["number"], planned["joins"]) == (number + 1, {"number": 4, "path": str(path)})
    ran = pool.cli("disk", "replace", old, path, pool.name, "--yes")
    assert ran.status == 0, ran.err
    assert 4 in [disk["number"] for disk in pool.ask("status")["disks"]]
    assert not pool.status()["degraded"]


def test_after_a_loss_the_way_to_the_new_disk_is_named(
    keep: Callable[..., KeptMount], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(COUNT))
    number = next(n for n in range(3) if n not in (pool.disk_of(COUNT - 1), pool.disk_of(0)))
    pool.stop()
    pool.disks[number].rename(pool.workdir / "away")
    kept.start()
    new = new_directory(pool)
    give_up = disk_replace.give_up_served

    def give_up_beside(*arguments: Any) -> dict[str, Any]:
        given_up = give_up(*arguments)
        (new / "photo.jpg").touch()
        return given_up

    with monkeypatch.context() as patch:
        patch.setattr(disk_replace, "give_up_served", give_up_beside)
        ran = pool.cli("disk", "replace", number + 1, new, pool.name, "--yes")
    assert ran.status == 4
    assert f"; disk {number + 1} is given up already: correct that, and run `disk add {new}`" in ran.err
    (new / "photo.jpg").unlink()
    assert pool.cli("disk", "add", new, pool.name).status == 0


def test_refusals_change_nothing(kept: KeptMount) -> None:
    pool = kept.pool
    new = new_directory(pool)
    before = (pool.config.read_text(), pool.ask("status")["members"])
    ran = pool.cli("disk", "replace", 2, new, pool.name, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"{new} would become disk 4, and {pool.disks[1]} would drain: " in ran.out
    (new / "photo.jpg").touch()
    ran = pool.cli("disk", "replace", 2, new, pool.name)
    assert (ran.status, "photo.jpg" in ran.err) == (4, True)
    other = pool.workdir / "of-another-pool"
    assert pool.cli("init", "--disks", other).status == 0
    ran = pool.cli("disk", "replace", 2, other, pool.name)
    assert (ran.status, f"{other}: is a disk of pool " in ran.err, ran.err.count("\n")) == (4, True, 1)
    ran = pool.cli("disk", "replace", 9, pool.workdir / "other", pool.name, "--yes")
    assert (ran.status, "no disk of this number" in ran.err) == (4, True)
    ran = pool.cli("disk", "replace", 2, pool.workdir / "other", pool.name, "--rate", "slow")
    assert ran.status == 2
    assert (pool.config.read_text(), pool.ask("status")["members"]) == before
    assert not (pool.workdir / "other").exists()


def test_repeated_after_an_interruption_it_continues(kept: KeptMount) -> None:
    """The new disk has joined, and the old one drains; the command that was to wait for the end was interrupted."""
    pool = kept.pool
    new = new_directory(pool)
    assert pool.cli("disk", "replace", 2, new, pool.name, "--rate", FAST).status == 0
    before = pool.ask("status")["members"]["generation"]
    ran = pool.cli("disk", "replace", 2, new, pool.name, "--dry-run")
    assert (ran.status, f"{new} is disk 4 already, and {pool.disks[1]} drains" in ran.out) == (0, True)
    assert pool.ask("status")["members"]["generation"] == before
    pool.make_segments(range(COUNT, COUNT + 4))
    ran = replace_and_wait(pool, 2, new)
    assert ran.status == 0, ran
    assert [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4]
    ran = pool.cli("disk", "replace", 1, new, pool.name)
    assert (ran.status, "is disk 4 of this pool already; to empty" in ran.err) == (4, True)


def test_repeated_after_an_interruption_of_the_end_it_names_what_is_left(kept: KeptMount) -> None:
    """The old disk is empty and leaves; the command was interrupted before the configuration was changed."""
    pool = kept.pool
    new = new_directory(pool)
    assert pool.cli("disk", "replace", 2, new, pool.name, "--rate", FAST).status == 0
    pool.make_segments(range(COUNT, COUNT + 4))
    eventually(lambda: pool.ask("status")["disks"][1]["segments"] == 0)
    pool.ask("disk-leave", disk="2")
    ran = pool.cli("disk", "replace", 2, new, pool.name, "--wait")
    old = pool.disks[1]
    assert (ran.status, ran.err) == (
        4,
        f"commitlogfs: test: {new} is disk 4 already, and {old} leaves; run `disk remove {old}`\n",
    )
    assert pool.cli("disk", "remove", old, pool.name).status == 0


@pytest.fixture
def full_pool(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> Callable[..., PoolMount]:
    """Makes a pool of two disks, of which the first is full up to this percentage. Options as for `keep`."""

    def make(percent: int, count: int = 40, **options: object) -> PoolMount:
        disks = [disk_farm.add("ext4", 64 * MIB) for _ in range(2)]
        pool = keep(disks=commitlog_directories(*disks), **options).pool
        pool.make_segments(range(count))
        fill_to(disks[0].path, percent)
        eventually(lambda: pool.ask("status")["disks"][0]["used_percent"] > percent - 1)
        return pool

    return make


def check_refused(pool: PoolMount, new: Path) -> None:
    """Said with figures, before anything changes: what is to move, and the room for it on all disks together."""
    count = pool.ask("status")["disks"][1]["segments"]
    before = (pool.config.read_text(), pool.ask("status")["members"])
    for options in ((), ("--dry-run",)):
        ran = pool.cli("disk", "replace", 2, new, pool.name, *options)
        assert ran.status == 4, ran
        assert ran.err.count("\n") == 1
        assert f"{pool.disks[1]}: {count} segments ({count * MIB:,} bytes) would have to go to the " in ran.err
        assert "bytes) below their `force` threshold; give a larger disk" in ran.err
    assert (pool.config.read_text(), pool.ask("status")["members"]) == before
    assert not new.exists() or not os.listxattr(new)
    assert pool.ask("status")["moves"]["bytes"] == 0


def test_a_smaller_disk_that_cannot_take_what_it_must_is_refused(
    disk_farm: DiskFarm, full_pool: Callable[..., PoolMount]
) -> None:
    check_refused(full_pool(84), disk_farm.add("ext4", 8 * MIB).path / "commitlog")


@pytest.mark.full
def test_its_own_thresholds_count_not_those_of_the_old_disk(
    disk_farm: DiskFarm, full_pool: Callable[..., PoolMount]
) -> None:
    """With the thresholds of the old disk, the new one would have room."""
    pool = full_pool(
        49,
        thresholds={"clean": "40", "resume": "45", "force": "50", "full": "90"},
        disk_settings={1: {"thresholds": "{clean = 75, resume = 80, force = 85, full = 90}"}},
    )
    check_refused(pool, disk_farm.add("ext4", 38 * MIB).path / "commitlog")


@pytest.mark.full
def test_foreign_data_on_the_new_disk_takes_room(disk_farm: DiskFarm, full_pool: Callable[..., PoolMount]) -> None:
    """If it were empty, that share of its available space would be room."""
    third = disk_farm.add("ext4", 64 * MIB)
    fill_to(third.path, 50)
    pool = full_pool(84, 44)
    check_refused(pool, third.path / "commitlog")


@pytest.mark.full
@pytest.mark.parametrize("setting", ["readonly = true", 'thresholds = {min_free = "55MiB"}'])
def test_settings_that_the_file_has_for_the_new_disk_count(
    disk_farm: DiskFarm, full_pool: Callable[..., PoolMount], setting: str
) -> None:
    pool = full_pool(84)
    new = commitlog_directories(disk_farm.add("ext4", 64 * MIB))[0]
    with pool.config.open("a") as file:
        file.write(f'\n[[disks]]\npath = "{new}"\n{setting}\n')
    check_refused(pool, new)


@pytest.mark.full
def test_the_new_disk_is_the_only_one_that_takes_segments(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> None:
    disk, new = (disk_farm.add("ext4", 64 * MIB) for _ in range(2))
    pool = keep(disks=commitlog_directories(disk)).pool
    pool.make_segments(range(COUNT))
    planned = pool.cli("disk", "replace", 1, new.path / "commitlog", pool.name, "--dry-run")
    assert planned.status == 0, planned.err
    ran = pool.cli("disk", "replace", 1, new.path / "commitlog", pool.name, "--rate", FAST)
    assert ran.status == 0, ran.err
    pool.make_segments(range(COUNT, COUNT + 3))
    eventually(lambda: pool.ask("status")["disks"][0]["segments"] == 0)


@pytest.mark.full
def test_an_old_disk_that_fails_while_the_new_one_joins(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = [disk_farm.add("ext4", 64 * MIB) for _ in range(2)]
    pool = keep(disks=commitlog_directories(*disks)).pool
    pool.make_segments(range(COUNT))
    new = disk_farm.add("ext4", 64 * MIB).path / "commitlog"
    join = disk_replace.join_pool

    def join_beside(*arguments: Any) -> dict[str, Any]:
        joined = join(*arguments)
        disks[1].turn_read_only()
        eventually(lambda: pool.ask("status")["disks"][1]["state"] != "rw")
        return joined

    with monkeypatch.context() as patch:
        patch.setattr(disk_replace, "join_pool", join_beside)
        ran = pool.cli("disk", "replace", 2, new, pool.name)
    assert ran.status == 4
    old = pool.disks[1]
    assert f"; {new} is disk 3 of the pool by now: correct that, and run `disk drain {old}`" in ran.err
    ran = pool.cli("disk", "drain", old, pool.name, "--failing")
    assert ran.status == 0, ran.err


@pytest.mark.full
def test_room_that_is_lost_while_the_new_disk_joins(
    disk_farm: DiskFarm, full_pool: Callable[..., PoolMount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new disk has joined, so the old one drains; `status` shows that it waits for room."""
    pool = full_pool(84)
    third = disk_farm.add("ext4", 64 * MIB)
    join = disk_replace.join_pool

    def join_beside(*arguments: Any) -> dict[str, Any]:
        joined = join(*arguments)
        fill_to(third.path, 84.9)
        eventually(lambda: pool.ask("status")["disks"][2]["used_percent"] > 84)
        return joined

    with monkeypatch.context() as patch:
        patch.setattr(disk_replace, "join_pool", join_beside)
        ran = pool.cli("disk", "replace", 2, third.path / "commitlog", pool.name, "--rate", FAST)
    assert ran.status == 0, ran.err
    eventually(lambda: pool.ask("status")["disks"][1]["drain"]["no_room"])
    ran = pool.cli("disk", "replace", 2, third.path / "commitlog", pool.name, "--dry-run")
    assert (ran.status, "is disk 3 already, and" in ran.out) == (0, True)
