"""Segments removed by rule on real ext4 and xfs disks: never more than needed, never a hole, never a signal."""

import errno
import itertools
import mmap
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.files import size_if_there
from support.filling import fill_and_await, fill_to, status, used_percent
from support.loop_disks import DiskFarm, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes
from support.reader import a_reader
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

QUICK = {"interval": '"1s"', "force_after": '"1s"', "grace": '"1s"'}
NEVER = {"interval": '"1s"', "force_after": '"24h"'}
"""Only a create that finds no room removes anything."""
StartPool = Callable[..., PoolMount]


@pytest.fixture
def start_pool(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> StartPool:
    """A mounted pool on new disks of 64 MiB (xfs: 300 MiB), its members beside foreign files."""

    def start(fstypes: Sequence[str] = ("ext4", "ext4"), **options: object) -> PoolMount:
        directories = []
        for fstype in fstypes:
            directory = disk_farm.add(fstype).path / "commitlog"
            directory.mkdir(mode=0o700)
            directories.append(directory)
        pool = make_pool(disks=directories, **{"retention": QUICK, **options})
        pool.start()
        return pool

    return start


def indexes(pool: PoolMount) -> list[int]:
    """Base offsets of the listed segments, which must be whole and without a gap."""
    found = sorted(int(name) // pool.segment_size for name in os.listdir(pool.mountpoint))
    assert found == list(range(found[0], found[-1] + 1))
    for index in found:
        assert size_if_there(pool.path(index)) in (pool.segment_size, None)  # rules remove some meanwhile
    return found


def percents(pool: PoolMount) -> list[float]:
    return [used_percent(Path(disk).parent) for disk in pool.disks]


def removals(pool: PoolMount) -> list[dict[str, str]]:
    """The log lines of removals by rule: {"segment": ..., "reason": ...}."""
    lines = [line for line in pool.log_since_start().splitlines() if " event=removed " in line]
    fields = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return [found for found in fields if found["reason"] != "unlink"]


def fill_with_segments(pool: PoolMount, percent: float, start: int = 0) -> int:
    """Until every disk is at least that full; how many segments there are."""
    for index in itertools.count(start):
        if min(percents(pool)) >= percent:
            return index
        pool.make_segments([index])
    raise AssertionError


def test_pressure_that_holds_removes_the_oldest_until_below_resume(start_pool: StartPool) -> None:
    pool = start_pool()
    count = fill_with_segments(pool, 86)
    eventually(lambda: min(percents(pool)) < 83 or None)
    eventually(lambda: status(pool)["retention"]["force_in_seconds"] is None or None)
    left = indexes(pool)
    assert left[-1] == count - 1
    gone = removals(pool)
    assert [int(line["segment"]) // MIB for line in gone] == list(range(left[0]))
    assert {line["reason"] for line in gone} == {"force"}
    assert min(percents(pool)) > 80  # one or two more would show
    metrics = pool.metrics()
    assert f'commitlogfs_segments_removed_total{{pool="test",reason="force"}} {len(gone)}.0' in metrics


@pytest.mark.parametrize("order", ["reversed", "equal", "in the future"])
def test_the_oldest_by_offset_go_whatever_their_times_are(start_pool: StartPool, order: str) -> None:
    """A restored or copied segment, and a clock that was wrong, leave any times of change."""
    pool = start_pool(retention=NEVER)
    count = fill_with_segments(pool, 84)
    now_s = os.stat(pool.path(0)).st_mtime
    times = {
        "reversed": lambda index: now_s - index,
        "equal": lambda _: 1.0,
        "in the future": lambda _: now_s + 1e9,
    }
    for index in range(count):
        os.utime(pool.path(index), (0, times[order](index)))
    pool.restart()
    while len(removals(pool)) < 3:
        pool.make_segments([count])
        count += 1
    gone = removals(pool)
    assert [int(line["segment"]) // MIB for line in gone] == list(range(len(gone)))
    assert {line["reason"] for line in gone} == {"full"}
    assert indexes(pool) == list(range(len(gone), count))


@pytest.mark.parametrize("fstypes", [("ext4", "ext4"), ("ext4", "xfs")])
def test_a_create_never_fails_while_something_may_go(start_pool: StartPool, fstypes: Sequence[str]) -> None:
    """Several times the capacity, by a writer that nobody else helps."""
    if "xfs" in fstypes and not mkfs_available("xfs"):
        pytest.skip("no mkfs.xfs")
    pool = start_pool(fstypes, segment_size=4 * MIB, retention=NEVER)
    capacity = sum(disk["total_bytes"] for disk in status(pool)["disks"]) // (4 * MIB)
    for index in range(3 * capacity):
        pool.make_segments([index])
        assert max(percents(pool)) < 100
    left = indexes(pool)
    assert left[-1] == 3 * capacity - 1
    assert len(left) > capacity // 2
    assert {line["reason"] for line in removals(pool)} == {"full"}
    for index in left:
        assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)


def test_a_removed_segment_vanishes_at_once_from_caches_too(start_pool: StartPool) -> None:
    pool = start_pool(retention=NEVER)
    count = fill_with_segments(pool, 89.9)
    os.stat(pool.path(0))  # known to the kernel now
    fd = os.open(pool.path(0), os.O_RDONLY)
    index = count
    while "event=removed " not in pool.log_since_start():
        pool.make_segments([index])
        index += 1

    eventually(lambda: not pool.path(0).exists())  # a process of its own has the kernel forget it
    eventually(lambda: os.fstat(fd).st_nlink == 0)
    assert os.pread(fd, 64, 0) == segment_bytes(0, 64)
    os.close(fd)


def test_foreign_data_on_one_disk_is_told_and_does_not_empty_the_log(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.make_segments(range(12))
    fill_and_await(pool, 0, 97)
    eventually(lambda: {alert["code"] for alert in status(pool)["retention"]["alerts"]} == {"foreign-data"})
    pool.require_logged("event=alert code=foreign-data")
    pool.make_segments(range(12, 20))
    assert {pool.disk_of(index) for index in range(12, 20)} == {1}
    assert indexes(pool) == list(range(20))
    fill_and_await(pool, 0, 50)
    eventually(lambda: status(pool)["retention"]["alerts"] == [] or None)


def test_foreign_data_everywhere_refuses_creates_and_deletes_nothing(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.make_segments(range(4))
    for number in range(2):
        fill_and_await(pool, number, 97)
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([4])
    assert refused.value.errno == errno.ENOSPC
    eventually(lambda: "all-full" in {alert["code"] for alert in status(pool)["retention"]["alerts"]})
    assert indexes(pool) == list(range(4))
    for number in range(2):
        fill_and_await(pool, number, 50)
    pool.make_segments([4])


def await_cycles(pool: PoolMount, count: int) -> None:
    """Wait until that many cycles have ended."""
    before = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] >= before + count)


@pytest.mark.parametrize("keeps_descriptors", [True, False], ids=["open", "mapped"])
def test_held_by_a_reader_there_is_no_cascade(start_pool: StartPool, keeps_descriptors: bool) -> None:
    pool = start_pool()
    count = fill_with_segments(pool, 82)
    with a_reader(keeps_descriptors=keeps_descriptors) as reader:
        for index in range(count):
            reader.hold(pool.path(index))
        count = fill_with_segments(pool, 86, start=count)
        eventually(lambda: removals(pool))
        await_cycles(pool, 2)  # the second one has removed what it would
        gone = len(removals(pool))
        assert gone < count // 10
        assert min(percents(pool)) > 84  # nothing is free yet
        await_cycles(pool, 3)
        assert len(removals(pool)) == gone
        assert indexes(pool) == list(range(gone, count))
        assert [seen == segment_bytes(index, 64) for index, seen in enumerate(reader.look())].count(False) == 0
    eventually(lambda: min(percents(pool)) < 83 or None)
    assert len(removals(pool)) == gone


@pytest.mark.parametrize("punch", [True, False])
def test_punched_only_when_every_disk_is_full(start_pool: StartPool, punch: bool) -> None:
    pool = start_pool(retention={**QUICK, "punch": str(punch).lower()})
    count = fill_with_segments(pool, 84)
    with a_reader() as reader:
        for index in range(count):
            reader.hold(pool.path(index))
        count = fill_with_segments(pool, 88, start=count)
        eventually(lambda: removals(pool))
        eventually(lambda: status(pool)["retention"]["force_in_seconds"] is None or None)
        assert "event=punching" not in pool.log_since_start()
        directories = [Path(disk).parent for disk in pool.disks]
        for directory in directories:
            fill_to(directory, 91)
        if punch:
            eventually(lambda: min(percents(pool)) < 90 or None)
            pool.require_logged("event=punching")
            seen = reader.look()
            assert seen[0] == bytes(64)
            assert set(seen) <= {bytes(64), *(segment_bytes(index, 64) for index in range(count))}
        else:
            before = status(pool)["retention"]["cycles"]
            eventually(lambda: status(pool)["retention"]["cycles"] > before + 2)
            assert bytes(64) not in reader.look()
            assert min(percents(pool)) > 90.5
            assert "event=punching" not in pool.log_since_start()


@pytest.mark.full
@pytest.mark.parametrize("passthrough", ["auto", "off"])
def test_what_somebody_has_moved_or_linked_is_neither_punched_nor_counted(
    start_pool: StartPool, passthrough: str
) -> None:
    """The oldest go first: two that lie elsewhere on their disks now, two that have another name besides."""
    pool = start_pool(settings={"passthrough": f'"{passthrough}"'})
    count = fill_with_segments(pool, 84)
    with a_reader() as reader:
        for index in range(count):
            reader.hold(pool.path(index))
        kept = []
        for index in range(4):
            directory = Path(pool.disks[pool.disk_of(index)])
            kept.append(directory.parent / f"kept{index}")
            place = directory / pool.path(index).name
            if index < 2:
                place.rename(kept[index])
            else:
                os.link(place, kept[index])
        for disk in pool.disks:
            fill_to(Path(disk).parent, 88)
        eventually(lambda: len(removals(pool)) > 4 or None)
        eventually(lambda: status(pool)["retention"]["force_in_seconds"] is None or None)
        for disk in pool.disks:
            fill_to(Path(disk).parent, 91)
        eventually(lambda: min(percents(pool)) < 90 or None)
        assert reader.look()[:4] == [segment_bytes(index, 64) for index in range(4)]
    for index, path in enumerate(kept):
        assert path.read_bytes()[:4096] == segment_bytes(index, 4096)
    pool.require_logged("event=punching")
    told = pool.log_since_start()
    # What the kernel serves by itself is not open here: the kernel drops its pages, and a reader continues.
    assert told.count("event=vanished") == (0 if pool.passes_through else 2)
    assert told.count("event=punching") > told.count("event=punch_refused") > 0
    assert "retention_failed" not in told
    assert "traceback" not in told


@pytest.mark.full
@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
@pytest.mark.parametrize("is_sized", [True, False], ids=["sized", "without a size"])
@pytest.mark.parametrize("mode", ["auto", "off"], ids=["passed", "plain"])
def test_every_disk_full_to_the_last_block_while_a_segment_is_written(
    start_pool: StartPool, fstype: str, is_sized: bool, mode: str
) -> None:
    """All its blocks are reserved before it has a name: neither its size nor a store needs another one."""
    if not mkfs_available(fstype):
        pytest.skip(f"no mkfs.{fstype}")
    settings = {"passthrough": f'"{mode}"'}
    pool = start_pool([fstype] * 2, segment_size=8 * MIB, retention={**QUICK, "mode": '"off"'}, settings=settings)
    pool.make_segments([0])
    fd = os.open(pool.path(1), os.O_RDWR | os.O_CREAT)
    if is_sized:
        os.ftruncate(fd, 8 * MIB)
    for disk in pool.disks:
        hog = Path(disk).parent / "hog"
        with pytest.raises(OSError, match="No space left"), hog.open("wb") as file:  # noqa: PT012
            while True:
                file.write(bytes(MIB))
                file.flush()
    os.ftruncate(fd, 8 * MIB)
    with mmap.mmap(fd, 8 * MIB) as mapped:
        word = segment_bytes(7, 4096)
        for position in range(0, 8 * MIB, 4096):
            mapped[position : position + 4096] = word
        mapped.flush()
        os.fsync(fd)
        with pytest.raises(OSError) as refused:  # noqa: PT011
            pool.make_segments([2])
        assert refused.value.errno == errno.ENOSPC
        assert mapped[-4096:] == word
    os.close(fd)
    for disk in pool.disks:
        (Path(disk).parent / "hog").unlink()
    eventually(lambda: status(pool)["placement"]["next_disk"])
    pool.make_segments([2])


@pytest.mark.full
def test_a_segment_that_cannot_be_removed_keeps_all_later_ones(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.make_segments([0])
    backing = Path(pool.disks[pool.disk_of(0)]) / pool.path(0).name
    subprocess.run(["chattr", "+i", str(backing)], check=True)
    try:
        count = fill_with_segments(pool, 86, start=1)
        eventually(lambda: pool.log_since_start().count("event=remove_failed") >= 1)
        eventually(lambda: "retention_failed" in pool.log_since_start())
        assert indexes(pool) == list(range(count))
    finally:
        subprocess.run(["chattr", "-i", str(backing)], check=True)
    eventually(lambda: min(percents(pool)) < 83 or None)
    assert indexes(pool)[0] > 0


@pytest.mark.full
def test_a_disk_that_fails_has_no_say(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    """ext4 that has aborted its journal looks writable, and here nearly empty, to statvfs."""
    disks = [disk_farm.add("ext4") for _ in range(2)]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    pool = make_pool(disks=[disk.path / "commitlog" for disk in disks], retention=QUICK)
    pool.start()
    pool.make_segments(range(4))
    fill_and_await(pool, 1, 80)
    disks[0].vanish()
    pool.make_segments(range(4, 6))
    assert {pool.disk_of(index) for index in (4, 5)} == {1}
    eventually(lambda: "disk-failed" in {alert["code"] for alert in status(pool)["retention"]["alerts"]})
    st = os.statvfs(pool.mountpoint)
    assert 100 * (st.f_blocks - st.f_bfree) / st.f_blocks > 70  # of the other one


@pytest.mark.full
def test_a_disk_that_vanishes_during_a_cycle_ends_it(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    """The segments after its oldest one stay: their removal would make a gap."""
    disks = [disk_farm.add("ext4") for _ in range(2)]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    pool = make_pool(disks=[disk.path / "commitlog" for disk in disks], retention={**QUICK, "interval": '"2s"'})
    pool.start()
    count = fill_with_segments(pool, 86)
    eventually(lambda: removals(pool))
    disks[0].vanish()
    cycles = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] > cycles + 2)
    left = sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))
    assert left == list(range(left[0], count))
    survivors = {path.name for path in (disks[1].path / "commitlog").iterdir() if path.name.isdigit()}
    assert survivors == {pool.path(index).name for index in left if index % 2 == 1}


@pytest.mark.full
def test_mode_off_deletes_nothing_and_hides_nothing(start_pool: StartPool) -> None:
    pool = start_pool(retention={**QUICK, "mode": '"off"'})
    count = fill_with_segments(pool, 89)
    while status(pool)["placement"]["next_disk"] is not None:
        pool.make_segments([count])
        count += 1
    with pytest.raises(OSError, match="No space left"):
        pool.make_segments([count])
    assert indexes(pool) == list(range(count))
    st = os.statvfs(pool.mountpoint)
    shown = 100 * (st.f_blocks - st.f_bfree) / st.f_blocks
    assert shown == pytest.approx(min(percents(pool)), abs=1.1)


@pytest.mark.full
def test_mode_filesystem_hides_pressure_and_expires_by_age(start_pool: StartPool) -> None:
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    retention = {**NEVER, "mode": '"filesystem"', "reserved": '"1h"', "delete_when": f'"{hours}"'}
    pool = start_pool(retention=retention)
    fill_with_segments(pool, 80)
    st = os.statvfs(pool.mountpoint)
    assert (st.f_blocks - st.f_bfree) * 100 <= 75 * st.f_blocks
    for index in (0, 1, 2, 4):
        os.utime(pool.path(index), (0, os.stat(pool.path(index)).st_mtime - 7200))
    eventually(lambda: indexes(pool)[0] == 3)
    before = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] > before + 1)
    assert indexes(pool)[0] == 3  # 4 has expired, but 3 has not
    os.utime(pool.path(3), (0, os.stat(pool.path(5)).st_mtime + 30 * 24 * 3600))
    before = status(pool)["retention"]["cycles"]
    eventually(lambda: status(pool)["retention"]["cycles"] > before + 1)
    assert indexes(pool)[0] == 3, "nor has it with a time in the future"
    assert "age-unknown" in {alert["code"] for alert in status(pool)["retention"]["alerts"]}
    assert {line["reason"] for line in removals(pool)} == {"age"}


@pytest.mark.full
def test_reads_are_refused_when_full_if_that_is_wanted(start_pool: StartPool) -> None:
    pool = start_pool(settings={"refuse_reads_when_full": "true"}, retention={"mode": '"off"'})
    pool.make_segments(range(3))
    assert pool.path(0).read_bytes()[:64] == segment_bytes(0, 64)
    for number in range(2):
        fill_and_await(pool, number, 91)
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.path(0).read_bytes()
    assert refused.value.errno == errno.ENOSPC
    with (pool.mountpoint / ".commitlogfs" / "log").open("rb") as log, pytest.raises(OSError, match="No space"):
        log.read(64)
    fill_and_await(pool, 0, 50)
    assert pool.path(0).read_bytes()[:64] == segment_bytes(0, 64)


@pytest.mark.full
def test_the_dry_run_tells_what_would_go_and_removes_nothing(start_pool: StartPool) -> None:
    pool = start_pool(retention=NEVER)
    count = fill_with_segments(pool, 86)
    ran = pool.cli("retention", "--dry-run", pool.name, "--json")
    assert ran.status == 0, ran.err
    document = ran.json()
    assert document["would_remove"][0]["segment"] == pool.path(0).name
    assert document["would_remove"][0]["rule"] == "force"
    assert 0 < document["retention"]["force_in_seconds"] <= 24 * 3600
    assert indexes(pool) == list(range(count))
    ran = pool.cli("retention", "--dry-run", pool.name)
    assert ran.status == 0, ran.err
    assert pool.path(0).name in ran.out
