"""`commitlogfs disk drain`: the segments of a disk of a running mount are moved to the other disks."""

import errno
import json
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import faults
from support.command_line import Ran
from support.faults import FaultPlan
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount, segment_bytes
from support.processes import waits_for_fuse
from support.scrubs import FAST
from support.timings import BRISK
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.console.units import parse_size
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_faults = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
COUNT = 16
NEWEST = 3
MOST_STEPS = 60


def fill(pool: PoolMount, indexes: range) -> None:
    pool.make_segments(indexes)
    for index in indexes:
        path = pool.path(index)
        with path.open("r+b") as file:
            file.write(segment_bytes(index, MIB))
        os.utime(path, ns=(1_600_000_000_000_000_000 + index, 1_600_000_000_123_456_789 + index))


@pytest.fixture
def filled(kept: KeptMount) -> KeptMount:
    """Three disks, and more segments than a broker writes to."""
    fill(kept.pool, range(COUNT))
    return kept


def drain(pool: PoolMount, disk: object, *options: str) -> Ran:
    """Use a rate: without one, a move slows down on a busy machine."""
    rate = () if {"--rate", "--by-expiry"} & {*options} else ("--rate", FAST)
    return pool.cli("disk", "drain", disk, pool.name, *rate, *options)


def on_disk(disk: Path) -> set[int]:
    return {int(name) // MIB for name in os.listdir(disk) if name.isdecimal()}


def set_aside(disk: Path) -> list[str]:
    try:
        return os.listdir(disk / os.fsdecode(layout.RETIRED_DIRECTORY))
    except FileNotFoundError:  # the daemon removes the directory when it is empty
        return []


def is_drained(pool: PoolMount, number: int) -> bool:
    try:
        disk = pool.ask("status")["disks"][number - 1]
    except UnreachableError:  # its daemon has just died
        return False
    drained = disk["drain"] is not None and disk["drain"]["segments_left"] == disk["drain"]["segments_kept"]
    return bool(drained and not (on_disk(pool.disks[number - 1]) - set(range(COUNT - NEWEST, COUNT))))


def drain_beside_user(pool: PoolMount, number: int) -> None:
    """Drain disk `number` (0, 1 ...), of which a process has one segment open."""
    assert drain(pool, number + 1).status == 0
    eventually(lambda: is_drained(pool, number + 1))
    eventually(lambda: len(set_aside(pool.disks[number])) == 1)


def require_whole(pool: PoolMount, count: int = COUNT, but: tuple[int, ...] = ()) -> None:
    """Each segment is listed once, and holds what was written to it."""
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(count)]
    for index in set(range(count)) - set(but):
        assert pool.path(index).read_bytes() == segment_bytes(index, MIB), index


def require_on_one_disk(pool: PoolMount, count: int = COUNT) -> None:
    places = [on_disk(disk) for disk in pool.disks]
    assert sorted(index for place in places for index in place) == list(range(count))


# --- the whole drain -------------------------------------------------------------------------------------


def test_segments_go_to_the_other_disks_and_keep_their_attributes(filled: KeptMount) -> None:
    pool = filled.pool
    moved = on_disk(pool.disks[1]) - set(range(COUNT - NEWEST, COUNT))
    assert len(moved) >= 4
    one = min(moved)
    os.chown(pool.path(one), 1000, 1001)
    pool.path(one).chmod(0o640)
    before = {index: pool.path(index).stat() for index in moved}
    ran = drain(pool, 2)
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"test: disk 2 ({pool.disks[1]}) drains: {len(moved)} segments to move now (")
    eventually(lambda: is_drained(pool, 2))
    require_whole(pool)
    require_on_one_disk(pool)
    for index, known in before.items():
        eventually(lambda index=index, known=known: pool.path(index).stat().st_ino != known.st_ino)
        seen = pool.path(index).stat()
        for name in ("st_mtime_ns", "st_uid", "st_gid", "st_mode", "st_size", "st_nlink"):
            assert getattr(seen, name) == getattr(known, name), name
    assert (before[one].st_uid, stat.S_IMODE(before[one].st_mode)) == (1000, 0o640)
    copies = [disk / pool.path(index).name for disk in pool.disks for index in on_disk(disk)]
    eventually(lambda: not any(layout.XATTR_MOVED_FROM in os.listxattr(copy) for copy in copies))
    eventually(lambda: set_aside(pool.disks[1]) == [])
    moves = pool.ask("status")["moves"]
    assert (moves["segments"], moves["bytes"], moves["failed"]) == (len(moved), len(moved) * MIB, 0)


@pytest.mark.full
def test_without_a_rate_a_drain_ends_too(filled: KeptMount) -> None:
    """It gives way to other users of the disks."""
    pool = filled.pool
    ran = pool.cli("disk", "drain", 2, pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: is_drained(pool, 2))
    require_whole(pool)
    require_on_one_disk(pool)


def test_the_newest_follow_when_newer_ones_are_made_and_the_disk_leaves(filled: KeptMount) -> None:
    pool = filled.pool
    assert drain(pool, 2).status == 0
    eventually(lambda: is_drained(pool, 2))
    assert "draining" in pool.cli("disk", "list", pool.name).out
    fill(pool, range(COUNT, COUNT + 6))
    eventually(lambda: not on_disk(pool.disks[1]))
    assert drain(pool, 2, "--wait").status == 0
    eventually(lambda: pool.cli("disk", "safe-to-remove", 2, pool.name).status == 0)
    ran = pool.cli("disk", "remove", 2, pool.name)
    assert ran.status == 0, ran.err
    pool.disks = [pool.disks[0], pool.disks[2]]
    require_whole(pool, COUNT + 6)


def test_an_open_segment_is_held_and_read_on_until_it_is_closed(filled: KeptMount) -> None:
    """A broker maps every segment, and never opens one again."""
    pool = filled.pool
    index = min(on_disk(pool.disks[1]))
    fd = os.open(pool.path(index), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    try:
        assert drain(pool, 2).status == 0
        eventually(lambda: is_drained(pool, 2))
        eventually(lambda: [name.rpartition(".")[2] for name in set_aside(pool.disks[1])] == ["moved"])
        eventually(lambda: pool.path(index).stat().st_ino != os.fstat(fd).st_ino)
        for how in ("as it is", "kill", "restart"):
            if how != "as it is":
                filled.change(how)
            assert mapping[:] == segment_bytes(index, MIB)
            assert os.pread(fd, 100, 5000) == segment_bytes(index, MIB)[5000:5100]
        fill(pool, range(COUNT, COUNT + 6))
        eventually(lambda: not on_disk(pool.disks[1]) and pool.ask("status")["disks"][1]["held_segments"] == 1)
        ran = pool.cli("disk", "safe-to-remove", 2, pool.name)
        assert ran.status == 1
        assert "(1 moved segment still open, until the broker restarts or deletes it" in ran.out
        assert f"(pid {os.getpid()}): 1 file" in ran.out
        assert "drained, held: 1 moved segment still open" in pool.cli("disk", "list", pool.name).out
        ran = pool.cli("disk", "remove", 2, pool.name)
        assert (ran.status, "1 moved segment still open, until the broker restarts" in ran.err) == (4, True)
    finally:
        mapping.close()
        os.close(fd)
    eventually(lambda: pool.cli("disk", "safe-to-remove", 2, pool.name).status == 0)
    assert os.listdir(pool.disks[1]) == []
    require_whole(pool, COUNT + 6)


def test_removing_a_moved_segment_frees_both_files(filled: KeptMount) -> None:
    """An expired segment: the broker deletes it by its path, and closes what it has open."""
    pool = filled.pool
    first = pool.path(0)
    number = pool.disk_of(0)
    fd = os.open(first, os.O_RDWR)
    try:
        assert drain(pool, number + 1).status == 0
        eventually(lambda: 0 not in on_disk(pool.disks[number]))
        eventually(lambda: len(set_aside(pool.disks[number])) == 1)
        first.unlink()
        assert not any(0 in on_disk(disk) for disk in pool.disks)
        eventually(lambda: not any(name.endswith(".moved") for name in set_aside(pool.disks[number])))
        assert os.pread(fd, 100, 0) == segment_bytes(0, 100)
    finally:
        os.close(fd)
    eventually(lambda: set_aside(pool.disks[number]) == [])


def test_readers_notice_nothing(filled: KeptMount) -> None:
    """Programs that open, read or stat a segment in the moment of its move."""
    pool, has_ended, rounds = filled.pool, threading.Event(), [0] * 3

    def read_on(reader: int) -> None:
        while not has_ended.is_set():
            for index in range(COUNT):
                path = pool.path(index)
                assert path.stat().st_size == MIB
                assert os.getxattr(path, "user.commitlogfs.disk")
                assert path.read_bytes() == segment_bytes(index, MIB)
            rounds[reader] += 1

    with ThreadPoolExecutor() as threads:
        readers = [threads.submit(read_on, reader) for reader in range(len(rounds))]
        try:
            for number in (1, 2, 3, 1):
                assert drain(pool, number).status == 0
                eventually(lambda number=number: is_drained(pool, number))
                assert pool.cli("disk", "cancel", number, pool.name).status == 0
            eventually(lambda: min(rounds) > 1 or any(reader.done() for reader in readers))
        finally:
            has_ended.set()
        for reader in readers:
            reader.result()
    assert pool.ask("status")["moves"]["failed"] == 0
    eventually(lambda: [set_aside(disk) for disk in pool.disks] == [[]] * 3)
    require_on_one_disk(pool)


def test_a_segment_that_changes_while_it_is_copied_is_copied_again(filled: KeptMount) -> None:
    pool = filled.pool
    index = max(on_disk(pool.disks[1]) - set(range(COUNT - NEWEST, COUNT)))
    assert drain(pool, 2, "--rate", "32KiB").status == 0
    eventually(lambda: (pool.ask("status")["moves"]["current"] or {}).get("done_bytes", 0) > 0)
    with pool.path(index).open("r+b") as file:
        file.write(b"changed")
    pool.path(index).chmod(0o604)
    assert drain(pool, 2, "--rate", "1GiB").status == 0
    eventually(lambda: "event=move_failed" in pool.log_path.read_text())
    eventually(lambda: "was changed while it was copied" in pool.log_path.read_text())
    assert drain(pool, 2).status == 0  # tries again at once
    eventually(lambda: is_drained(pool, 2))
    assert pool.path(index).read_bytes() == b"changed" + segment_bytes(index, MIB)[7:]
    assert stat.S_IMODE(pool.path(index).stat().st_mode) == 0o604


# --- cutting the log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["as it is", "kill"])
def test_a_segment_to_which_a_cut_log_returns_is_put_back(filled: KeptMount, how: str) -> None:
    """A slave whose master has another history deletes what is behind the cut, and appends through its old mapping
    to the segment before, which was moved meanwhile."""
    pool = filled.pool
    index = 5
    number = pool.disk_of(index)
    fd = os.open(pool.path(index), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    inode = os.fstat(fd).st_ino
    try:
        drain_beside_user(pool, number)
        if how == "kill":
            filled.replace()
        for later in range(index + 1, COUNT):
            pool.path(later).unlink()
        eventually(lambda: pool.path(index).stat().st_ino == inode)
        mapping[1000:1004] = b"cut!"
        mapping.flush()
    finally:
        mapping.close()
        os.close(fd)
    assert pool.disk_of(index) == number
    filled.replace()
    assert pool.path(index).read_bytes()[1000:1004] == b"cut!"
    assert pool.path(index).read_bytes()[1004:] == segment_bytes(index, MIB)[1004:]
    require_on_one_disk(pool, index + 1)


def test_a_segment_is_put_back_if_its_old_file_changes(filled: KeptMount) -> None:
    """Found by its mtime, should a program write to a sealed segment that it has open."""
    pool = filled.pool
    index = 5
    number = pool.disk_of(index)
    fd = os.open(pool.path(index), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    try:
        drain_beside_user(pool, number)
        mapping[2000:2005] = b"late!"
        mapping.flush()
        eventually(lambda: "event=put_back" in pool.log_path.read_text())
        eventually(lambda: pool.disk_of(index) == number)
        assert pool.path(index).read_bytes()[2000:2005] == b"late!"
    finally:
        mapping.close()
        os.close(fd)
    eventually(lambda: [set_aside(disk) for disk in pool.disks] == [[]] * 3)
    require_on_one_disk(pool)


@pytest.mark.parametrize("how", ["as it is", "kill"])
def test_a_put_back_segment_keeps_its_mode_and_moves_again(filled: KeptMount, how: str) -> None:
    """A caller has changed mode and owner of the copy. A descriptor of the former file cannot do so."""
    pool = filled.pool
    index = 5
    number, path = pool.disk_of(index), pool.path(index)
    fd = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    try:
        if how == "kill":
            filled.replace()
        drain_beside_user(pool, number)
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            os.fchmod(fd, 0o666)
        path.chmod(0o604)
        os.chown(path, 1000, 1001)
        mapping[2000:2005] = b"late!"
        mapping.flush()
        eventually(lambda: pool.disk_of(index) == number)
        seen = path.stat()
        assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o604, 1000, 1001)
        assert not is_drained(pool, number + 1)
    finally:
        mapping.close()
        os.close(fd)
    eventually(lambda: is_drained(pool, number + 1))
    assert path.read_bytes()[2000:2005] == b"late!"
    seen = path.stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o604, 1000, 1001)


@contextmanager
def opened(pool: PoolMount, index: int) -> Iterator[mmap.mmap]:
    """A writable mapping, as a broker has."""
    fd = os.open(pool.path(index), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    try:
        yield mapping
    finally:
        mapping.close()
        os.close(fd)


def is_verifying(pool: PoolMount) -> bool:
    return (pool.ask("status")["moves"]["current"] or {}).get("phase") == "verifying"


def store(mapping: mmap.mmap) -> None:
    mapping[1000:1004] = b"cut!"
    mapping.flush()


def require_stored(filled: KeptMount, index: int) -> None:
    """Also for a broker that restarts, after everything has settled."""
    pool = filled.pool
    assert pool.path(index).read_bytes()[1000:1004] == b"cut!"
    eventually(lambda: [set_aside(disk) for disk in pool.disks] == [[]] * 3)
    filled.replace()
    assert pool.path(index).read_bytes()[1000:1004] == b"cut!"


@pytest.mark.parametrize("cut", [False, pytest.param(True, marks=pytest.mark.full)], ids=["sealed", "cut"])
def test_a_store_during_the_verification_is_not_lost(filled: KeptMount, cut: bool) -> None:
    pool = filled.pool
    number = 1
    index = max(on_disk(pool.disks[number]) - set(range(COUNT - NEWEST, COUNT)))
    with opened(pool, index) as mapping:
        assert drain(pool, number + 1, "--rate", "128KiB").status == 0
        eventually(lambda: is_verifying(pool))
        for later in range(index + 1, COUNT if cut else index + 1):
            pool.path(later).unlink()
        store(mapping)
        assert drain(pool, number + 1, "--rate", "1GiB").status == 0
        eventually(lambda: pool.ask("status")["moves"]["current"] is None)
        assert (pool.disk_of(index) == number) or not cut
    require_stored(filled, index)


def test_a_slow_cut_while_the_drain_continues(filled: KeptMount) -> None:
    pool = filled.pool
    index = 5
    number = pool.disk_of(index)
    with opened(pool, index) as mapping:
        drain_beside_user(pool, number)
        for later in range(index + 1, COUNT):
            pool.path(later).unlink()
            time.sleep(0.2)
            if later == index + 3:
                filled.replace()
        store(mapping)
    require_stored(filled, index)


def test_a_writer_of_the_copy_keeps_it(filled: KeptMount) -> None:
    """A reader has the old file open, and a broker that was started since has the copy."""
    pool = filled.pool
    index = 5
    number = pool.disk_of(index)
    fd = os.open(pool.path(index), os.O_RDONLY)
    try:
        drain_beside_user(pool, number)
        with opened(pool, index) as mapping:
            for later in range(index + 1, COUNT):
                pool.path(later).unlink()
            store(mapping)
            assert os.pread(fd, 4, 1000) != b"cut!"
    finally:
        os.close(fd)
    require_stored(filled, index)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_reader_of_an_older_copy_brings_it_not_back(filled: KeptMount, taken_over: bool) -> None:
    """A store to the old file made it the segment again; the copy, which somebody reads, lacks that store."""
    pool = filled.pool
    index = 5
    number = pool.disk_of(index)
    with opened(pool, index) as mapping:
        assert drain(pool, number + 1).status == 0
        eventually(lambda: is_drained(pool, number + 1))
        fd = os.open(pool.path(index), os.O_RDONLY)
        try:
            store(mapping)
            eventually(lambda: pool.disk_of(index) == number)
            if taken_over:
                filled.replace()
            time.sleep(BRISK.moves.source_s + 1)
            assert taken_over or pool.disk_of(index) == number  # the next daemon may move it again
            assert pool.path(index).read_bytes()[1000:1004] == b"cut!"
            assert os.pread(fd, 4, 1000) != b"cut!"
        finally:
            os.close(fd)
    require_stored(filled, index)
    eventually(lambda: pool.log_path.read_text().count("event=put_back") == 1)
    assert "both_changed" not in pool.log_path.read_text()


@pytest.mark.alone
def change_beside_a_hung_disk(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], run: Callable[[Callable[[], None]], None]
) -> None:
    """Make a segment while a removal waits for the disk; `run` calls the function that does it."""
    disks = [disk_farm.add("ext4") for _ in range(3)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = keep(disks=directories).pool
    fill(pool, range(COUNT))
    index = 5
    number = pool.disk_of(index)
    with opened(pool, index):
        drain_beside_user(pool, number)
        with frozen(disks[number], 2 * PATIENCE_S), ThreadPoolExecutor() as threads:
            unlinking = threads.submit(pool.path(index + 1).unlink)
            eventually(lambda: waits_for_fuse(os.getpid()) or unlinking.done())
            run(lambda: threads.submit(pool.make_segments, [COUNT], fill=False).result())
            with pytest.raises(OSError, match="rror"):
                unlinking.result()
        eventually(lambda: "event=put_back" in pool.log_path.read_text(), shown=pool.log_path.read_text)
    require_whole(pool, COUNT + 1, but=(COUNT,))


@pytest.mark.alone
def test_a_hung_old_disk_keeps_no_other_change_from_its_end(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> None:
    change_beside_a_hung_disk(disk_farm, keep, lambda make: make())


@pytest.mark.timing
def test_a_hung_old_disk_delays_no_other_change(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    def measure(make: Callable[[], None]) -> None:
        began = time.monotonic()
        make()
        assert time.monotonic() - began < 8

    change_beside_a_hung_disk(disk_farm, keep, measure)


# --- deaths ----------------------------------------------------------------------------------------------


@with_faults
@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "held", "every"),
    [
        ("auto", True, 3),
        ("off", False, 3),
        *(
            pytest.param(mode, held, 1, marks=pytest.mark.soak)
            for mode in ("auto", "off")
            for held in (False, True)
        ),
    ],
)
def test_the_daemon_dies_at_each_step(
    keep: Callable[..., KeptMount], workdir: Path, mode: str, held: bool, every: int
) -> None:
    """The next daemon completes or undoes the move without a question, and continues the drain."""
    plan = FaultPlan(workdir)
    kept = keep(3, settings={"passthrough": f'"{mode}"'}, variables=plan.variables)
    pool = kept.pool
    fill(pool, range(COUNT))
    fds = [os.open(pool.path(index), os.O_RDWR) for index in range(COUNT)] if held else []
    source = 0
    deaths = 0
    try:
        for step in deaths_of(kept, plan, every):
            deaths += 1
            source = step % 3
            drain_again(pool, source + 1)
            eventually(lambda number=source: is_drained(pool, number + 1), shown=pool.log_path.read_text)
            require_whole(pool)
            require_on_one_disk(pool)
            if held:
                for index, fd in enumerate(fds):
                    assert os.pread(fd, MIB, 0) == segment_bytes(index, MIB), index
            plan.disarm()
            kept.await_handover()
            pool.ask("disk-cancel", disk=str(source + 1))
    finally:
        for fd in fds:
            os.close(fd)
    assert deaths > 8
    eventually(lambda: [set_aside(disk) for disk in pool.disks] == [[]] * 3)
    pool.stop()
    require_on_one_disk(pool)


def drain_again(pool: PoolMount, number: int) -> None:
    """Ask until a daemon answers: the one that begins with it may die."""

    def asked() -> bool:
        try:
            return "refused" not in pool.ask("disk-drain", disk=str(number), rate=parse_size(FAST))
        except UnreachableError:
            return False

    eventually(asked)


def deaths_of(kept: KeptMount, plan: FaultPlan, every: int) -> Iterator[int]:
    """The number of the step, from the beginning of the body, before which the daemon dies."""
    for step in range(1, MOST_STEPS, every):
        plan.die_at(kept.await_handover(), step)
        yield step


# --- pace, cancelling, refusals --------------------------------------------------------------------------


@pytest.mark.timing
def test_a_rate_is_kept_and_a_cancelled_drain_ends_soon(filled: KeptMount) -> None:
    pool = filled.pool
    assert drain(pool, 2, "--rate", "256KiB").status == 0
    eventually(lambda: (pool.ask("status")["moves"]["current"] or {}).get("done_bytes", 0) > 0)
    began = time.monotonic()
    time.sleep(1.0)
    seen = pool.ask("status")["moves"]
    elapsed = time.monotonic() - began
    assert (seen["segments"], seen["current"]["phase"]) == (0, "copying")
    assert seen["current"]["done_bytes"] < (elapsed + 2) * 256 * 1024
    assert pool.cli("disk", "cancel", 2, pool.name).status == 0
    cancelled = time.monotonic()
    eventually(lambda: pool.ask("status")["moves"]["current"] is None)
    assert time.monotonic() - cancelled < 5


def test_a_rate_can_be_changed_and_the_drain_cancelled(filled: KeptMount) -> None:
    """At the first rate, a segment takes minutes."""
    pool = filled.pool
    before = on_disk(pool.disks[1])
    ran = drain(pool, 2, "--rate", "4KiB", "--json")
    assert ran.status == 0, ran.err
    assert ran.json()["changed"]
    eventually(lambda: (pool.ask("status")["moves"]["current"] or {}).get("done_bytes", 0) > 0)
    seen = pool.ask("status")["moves"]
    assert seen["current"]["from"] == str(pool.disks[1])
    assert (seen["segments"], seen["current"]["phase"]) == (0, "copying")
    ran = pool.cli("disk", "cancel", 2, pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: pool.ask("status")["moves"]["current"] is None)
    assert on_disk(pool.disks[1]) == before
    assert pool.ask("status")["disks"][1]["state"] == "rw"
    assert "does not drain" in pool.cli("disk", "cancel", 2, pool.name).out
    assert drain(pool, 2, "--rate", "256KiB").status == 0
    assert drain(pool, 2, "--rate", "1GiB").status == 0
    eventually(lambda: is_drained(pool, 2))
    require_whole(pool)


def test_a_drain_by_expiry_copies_nothing(filled: KeptMount) -> None:
    pool = filled.pool
    before = on_disk(pool.disks[1])
    ran = drain(pool, 2, "--by-expiry")
    assert ran.status == 0, ran.err
    assert "nothing is copied" in ran.out
    fill(pool, range(COUNT, COUNT + 4))
    assert on_disk(pool.disks[1]) == before
    for index in range(max(before) + 1):
        pool.path(index).unlink()
    assert drain(pool, 2, "--by-expiry", "--wait").status == 0
    assert pool.cli("disk", "safe-to-remove", 2, pool.name).status == 0
    assert pool.ask("status")["moves"]["bytes"] == 0


@pytest.mark.parametrize("verb", ["cordon", "remove"])
def test_a_target_that_takes_no_more_segments_gets_none(keep: Callable[..., KeptMount], verb: str) -> None:
    """Not even the one that is on its way: a disk that is about to leave would take it out of the log."""
    kept = keep(3)
    pool, target = kept.pool, kept.pool.disks[2]
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    fill(pool, range(COUNT))
    assert pool.cli("disk", "uncordon", 3, pool.name).status == 0
    assert drain(pool, 1, "--rate", "16KiB").status == 0
    eventually(lambda: target_of_move(pool) == str(target))
    if verb == "remove":
        ran = pool.cli("disk", "remove", 3, pool.name)
        assert (ran.status, "is being copied to it" in ran.err) == (4, True), ran.err
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    eventually(lambda: target_of_move(pool) in (None, str(pool.disks[1])))
    if verb == "remove":
        eventually(lambda: pool.cli("disk", "remove", 3, pool.name).status == 0)
    assert drain(pool, 1, "--rate", "1GiB").status == 0
    eventually(lambda: is_drained(pool, 1))
    assert on_disk(target) == set()
    require_whole(pool)


def target_of_move(pool: PoolMount) -> str | None:
    """The disk to which a segment is being moved."""
    current = pool.ask("status")["moves"]["current"]
    return None if current is None else str(current["to"])


def test_a_salvaged_segment_can_be_moved_once_more(filled: KeptMount) -> None:
    """Its source lacks the same, so it is not worth keeping."""
    pool = filled.pool
    index = min(on_disk(pool.disks[1]))
    file = pool.disks[1] / pool.path(index).name
    os.setxattr(file, layout.XATTR_UNREADABLE, b"[[0,4096]]")
    assert drain(pool, 2, "--rate", "1GiB").status == 0
    eventually(lambda: index not in on_disk(pool.disks[1]))
    (copy,) = [disk / file.name for disk in pool.disks if (disk / file.name).exists()]
    assert os.getxattr(copy, layout.XATTR_UNREADABLE) == b"[[0,4096]]"


def test_refusals_change_nothing(filled: KeptMount) -> None:
    pool = filled.pool
    before = pool.ask("status")["members"]
    for arguments, status, text in [
        (("drain", 7), 4, "no disk of this number"),
        (("drain", 2, "--rate", "fast"), 2, "is not a size"),
        (("drain", 2, "--rate", "0"), 2, "--rate: 0 would move nothing; give a rate above 0"),
        (("drain", 2, "--by-expiry", "--rate", "1MiB"), 2, "--rate: by expiry, nothing is copied"),
        (("cancel", 7), 4, "no disk of this number"),
    ]:
        verb, disk, *options = arguments
        ran = pool.cli("disk", verb, disk, pool.name, *options)
        assert (ran.status, text in ran.err) == (status, True), ran.err
    assert json.loads(drain(pool, 2, "--dry-run", "--json").out)["to_move"] > 0
    assert pool.cli("disk", "cancel", 2, pool.name, "--dry-run").status == 0
    assert pool.ask("status")["members"] == before
    assert pool.cli("disk", "cordon", 1, pool.name).status == 0
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    ran = drain(pool, 2)
    assert (ran.status, "no other disk takes new segments" in ran.err) == (4, True)
    assert pool.cli("disk", "uncordon", 1, pool.name).status == 0
    assert drain(pool, 3, "--by-expiry").status == 0
    ran = pool.cli("disk", "uncordon", 3, pool.name)
    assert (ran.status, "`disk cancel` ends that" in ran.err) == (4, True)
