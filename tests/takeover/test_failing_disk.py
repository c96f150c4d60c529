"""`commitlogfs disk drain --failing`: what can be read of a failing disk is saved, and the rest is known."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.disk_life import recorded_identity
from support.flaky_disks import BadBlocksDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LargeBlockDisk, LoopDisk
from support.pools import MIB, PoolMount
from support.records import make_sealed
from support.waiting import eventually

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.skipif(bool(flaky_available()), reason=flaky_available()),
    pytest.mark.alone,
]

BLOCK = 4096
SIZE = 64 * MIB


def content(index: int) -> bytes:
    return make_sealed(index * MIB, MIB)


def name(index: int) -> str:
    return f"{index * MIB:020d}"


@pytest.fixture(params=["ext4", "xfs"])
def fstype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class LargeBadBlocksDisk(BadBlocksDisk):
    """With blocks as on a large disk, so that its directory can record more of the pool."""

    MKFS_OPTIONS = LargeBlockDisk.MKFS_OPTIONS


class Failing:
    """Twelve segments in turn on three disks, of which the second gets bad blocks."""

    def __init__(self, disk_farm: DiskFarm, keep: Callable[..., KeptMount], fstype: str) -> None:
        is_xfs = fstype == "xfs"
        size = 320 * MIB if is_xfs else SIZE
        self.bad = disk_farm.add_of(BadBlocksDisk if is_xfs else LargeBadBlocksDisk, fstype, size)
        others = [disk_farm.add_of(LoopDisk if is_xfs else LargeBlockDisk, fstype, size) for _ in range(2)]
        self.kept = keep(disks=[others[0].path, self.bad.path, others[1].path])
        self.pool: PoolMount = self.kept.pool
        self.pool.make_segments(range(12))
        for index in range(12):
            with self.pool.path(index).open("r+b") as file:
                file.write(content(index))
                os.fsync(file.fileno())

    @property
    def path(self) -> str:
        return str(self.bad.path)

    def drain(self) -> None:
        ran = self.pool.cli("disk", "drain", "--failing", "--rate", "100MiB", self.path, self.pool.name)
        assert ran.status == 0, ran.err
        self.pool.make_segments(range(12, 15))  # the newest three are not moved

    def disk(self) -> dict[str, object]:
        (disk,) = [disk for disk in self.pool.status()["disks"] if disk["path"] == self.path]
        return dict(disk)

    def left(self) -> object:
        drain = self.disk()["drain"]
        assert isinstance(drain, dict)
        return drain["segments_left"]

    def safe_to_remove(self) -> tuple[int, str]:
        ran = self.pool.cli("disk", "safe-to-remove", self.path, self.pool.name)
        return ran.status, ran.out

    def give_up(self) -> None:
        ran = self.pool.cli("disk", "remove", "--lost", "--yes", self.path, self.pool.name)
        assert ran.status == 0, ran.err


@pytest.fixture
def failing(disk_farm: DiskFarm, keep: Callable[..., KeptMount], fstype: str) -> Failing:
    return Failing(disk_farm, keep, fstype)


def test_what_can_be_read_is_saved_and_the_rest_is_known(failing: Failing) -> None:
    pool = failing.pool
    failing.bad.damage(name(4), 3 * BLOCK, 5 * BLOCK)
    failing.drain()
    eventually(lambda: failing.left() == 0)
    lost = pool.status()["unreadable"]
    # nbdfuse's pages may be larger than a block, and fail as a whole.
    assert lost[0][0] <= 4 * MIB + 3 * BLOCK
    assert lost[-1][1] >= 4 * MIB + 5 * BLOCK
    assert sum(end - begin for begin, end in lost) <= 64 << 10
    expected = bytearray(content(4))
    for begin, end in lost:
        expected[begin - 4 * MIB : end - 4 * MIB] = bytes(end - begin)
    assert pool.path(4).read_bytes() == expected
    for index in {*range(12)} - {4}:
        assert pool.path(index).read_bytes() == content(index)
    eventually(lambda: f"event=unreadable segment={name(4)}" in pool.log_path.read_text())
    # Only the file whose copy is incomplete stays.
    eventually(lambda: segments_in(failing.bad.path) == [name(4)])
    status, said = failing.safe_to_remove()
    assert (status, "former files that could not be read or removed completely (1)" in said) == (0, True)
    refused = pool.cli("disk", "remove", failing.path, pool.name)
    assert refused.status == 4
    assert said.partition(": ")[2] in refused.err
    failing.give_up()
    failing.kept.newest_daemon()
    assert len(pool.status()["disks"]) == 2
    assert pool.status()["segments"]["gaps"] == []
    eventually(lambda: pool.status()["unreadable"] == lost)  # by the next daemon, too
    checked = pool.cli("check", pool.config, "--json").json()
    (finding,) = [f for f in checked["findings"] if f["code"] == "unreadable-range"]
    assert (finding["file"], finding["severity"]) == (name(4), "warning")
    assert f"{lost[0][0]} to {lost[0][1]}" in finding["message"]


def test_what_could_not_be_read_is_filled_from_a_slave(failing: Failing, workdir: Path) -> None:
    """Also by another daemon than the one that has moved the segment."""
    pool, slave = failing.pool, workdir / "slave"
    slave.mkdir()
    (slave / name(4)).write_bytes(content(4))
    failing.bad.damage(name(4), 3 * BLOCK, 5 * BLOCK)
    failing.drain()
    eventually(lambda: failing.left() == 0)
    (found,) = [one for one in pool.status()["scrub"]["damaged"] if one["segment"] == name(4)]
    assert (found["kind"], len(pool.status()["unreadable"])) == ("unreadable", len(found["ranges"]))
    failing.kept.replace()
    eventually(lambda: pool.status()["scrub"]["damaged"] == [found])
    early = pool.cli("restore", pool.name, "--segment", name(4), "--from", slave, "--rate", "100MiB")
    assert (early.status, f"its former file is still on {failing.path}" in early.out) == (1, True), early.out
    failing.give_up()
    failing.kept.newest_daemon()
    eventually(lambda: pool.status()["scrub"]["damaged"] == [found])
    ran = pool.cli("restore", pool.name, "--segment", name(4), "--from", slave, "--rate", "100MiB")
    assert (ran.status, "1 segment repaired" in ran.out) == (0, True), ran.out
    assert pool.path(4).read_bytes() == content(4)
    assert pool.status()["unreadable"] == pool.status()["scrub"]["damaged"] == []


def test_an_ordinary_drain_stops_at_a_bad_block(failing: Failing) -> None:
    failing.bad.damage(name(4), 3 * BLOCK, 4 * BLOCK)
    ran = failing.pool.cli("disk", "drain", "--rate", "100MiB", failing.path, failing.pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: failing.pool.status()["moves"]["last_error"] != "")
    assert failing.pool.path(4).exists()
    assert failing.pool.status()["unreadable"] == []


@pytest.mark.parametrize("fstype", ["ext4"], indirect=True)
def test_a_read_only_disk_is_saved_completely(failing: Failing) -> None:
    pool = failing.pool
    os.sync()
    failing.bad.turn_read_only()
    eventually(lambda: pool.cli("disk", "drain", failing.path, pool.name).status == 4)
    failing.drain()
    eventually(lambda: failing.left() == 0)
    for index in range(12):
        assert pool.path(index).read_bytes() == content(index)
    assert pool.status()["unreadable"] == []
    for index in range(3):  # by a broker; the disk cannot remove its files of them
        pool.path(index).unlink()
    eventually(lambda: recorded_identity(pool.disks[0]).get("removed_before") == 3 * MIB)
    failing.kept.replace()
    assert sorted(os.listdir(pool.mountpoint)) == [name(index) for index in range(3, 15)]
    status, said = failing.safe_to_remove()
    assert status == 0, said
    failing.give_up()
    assert sorted(os.listdir(pool.mountpoint)) == [name(index) for index in range(3, 15)]


def test_a_segment_of_which_nothing_can_be_read_stays(failing: Failing) -> None:
    pool = failing.pool
    failing.bad.damage(name(4), 0, MIB)
    failing.drain()
    eventually(lambda: failing.left() == 1)
    drain = failing.disk()["drain"]
    assert isinstance(drain, dict)
    eventually(lambda: failing.disk()["drain"]["unreadable_segments"] == 1)  # type: ignore[index]
    # The page of nbdfuse that holds an end of it may also hold an end of its neighbour on the disk.
    incomplete = {name(begin // MIB) for begin, _ in pool.status()["unreadable"]}
    eventually(lambda: set(segments_in(failing.bad.path)) == {name(4), *incomplete})
    status, _ = failing.safe_to_remove()
    assert status == 1
    planned = pool.cli("disk", "remove", "--lost", "--dry-run", "--json", failing.path, pool.name)
    assert planned.status == 4  # the disk works: the segment may become readable
    assert json.loads(pool.cli("disk", "cancel", "--json", failing.path, pool.name).out)["changed"]


def segments_in(directory: Path) -> list[str]:
    return sorted(entry for entry in os.listdir(directory) if entry.isdecimal())
