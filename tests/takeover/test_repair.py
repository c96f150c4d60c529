"""Repairs of damaged segments, and the files that they set aside, over kills, restarts, unmounts and cut logs."""

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import xxhash
from support import faults, repairs, scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.command_line import COMMAND
from support.faults import FaultPlan
from support.flaky_disks import BadBlocksDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount
from support.processes import has_ended
from support.records import make_sealed
from support.repairs import REPAIRED, content, files_aside, files_of, restore, rot, rotten, set_aside
from support.scrubs import damaged
from support.timings import BRISK
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.mount.location import control_socket
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_flaky_disks = pytest.mark.skipif(bool(flaky_available()), reason=flaky_available() or "can be made")
with_faults = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
COUNT = 9
INDEX = 4
PAGE = 4096
MOST_STEPS = 100
STEPS = 22
"""Steps of a repair by a daemon that has changed no name before; one more gives up a backing id."""


def fill(kept: KeptMount) -> None:
    scrubs.fill(kept.pool, range(COUNT))
    await_checksums(kept.pool, COUNT - NEWEST)


@pytest.fixture
def filled(kept: KeptMount) -> KeptMount:
    """Nine segments of records on three disks; all sealed ones have a checksum."""
    fill(kept)
    return kept


@pytest.fixture
def slave(filled: KeptMount, workdir: Path) -> Path:
    return repairs.make_slave(filled.pool, workdir / "slave", range(COUNT))


@contextmanager
def mapped(pool: PoolMount, index: int) -> Iterator[mmap.mmap]:
    """A writable mapping, as a broker has."""
    fd = os.open(pool.path(index), os.O_RDWR)
    mapping = mmap.mmap(fd, MIB)
    try:
        yield mapping
    finally:
        mapping.close()
        os.close(fd)


def repair(pool: PoolMount, slave: Path, index: int = INDEX) -> None:
    rot(pool, index)
    restore(pool, "--from", slave)
    eventually(lambda: len(set_aside(pool)) == 1)


def require_repaired(pool: PoolMount, index: int = INDEX) -> None:
    """The right content in one file, and the damaged file aside."""
    assert pool.path(index).read_bytes() == content(pool, index)
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(COUNT)]
    eventually(lambda: len(files_of(pool, index)) == 1)
    (aside,) = files_aside(pool)
    assert aside.read_bytes() == rotten(pool, index)
    eventually(lambda: [file["kind"] for file in set_aside(pool)] == ["rotted"])
    assert damaged(pool) == {}


def test_the_damaged_file_outlives_daemons_and_mounts(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    with mapped(pool, INDEX) as mapping:
        repair(pool, slave)
        for how in ("kill", "restart"):
            filled.change(how)
            require_repaired(pool)
            assert pool.ask("restore-state", base_offset=INDEX * MIB, repairs=True)["state"] == "done"
            assert mapping[PAGE:] == content(pool, INDEX)[PAGE:]  # memory may have the first page as it was
    filled.change("kill")
    require_repaired(pool)
    filled.end()
    findings = pool.cli("check", pool.config, "--json").json()["findings"]
    assert [(one["code"], one["severity"]) for one in findings if one["code"] == "set-aside"] == [
        ("set-aside", "note")
    ]
    filled.start()
    require_repaired(pool)
    assert pool.cli("scrub", "clear", pool.name).status == 0
    eventually(lambda: files_aside(pool) == [])


def test_a_changed_time_of_the_copy_brings_nothing_back(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    repair(pool, slave)
    os.utime(pool.path(INDEX))
    filled.replace()
    pool.path(COUNT - 1).unlink()  # the daemon checks whether the segment before it is needed in its former file
    pool.path(INDEX + 1).unlink()
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
    eventually(lambda: len(files_aside(pool)) == 1)  # a removed one is retired for a moment
    assert files_aside(pool)[0].read_bytes() == rotten(pool, INDEX)


def test_a_damaged_file_that_was_read_meanwhile_does_not_come_back(filled: KeptMount, slave: Path) -> None:
    """The next daemon only knows that a former one has opened it. Nobody continues in it when the log is cut."""
    pool = filled.pool
    with pool.path(INDEX).open("rb"):
        repair(pool, slave)
    filled.replace()
    pool.path(COUNT - 1).unlink()
    pool.path(INDEX + 1).unlink()
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_an_older_time_of_the_copy_brings_nothing_back(filled: KeptMount, slave: Path, how: str) -> None:
    """The next daemon sees a damaged file that is newer than the segment, but nobody has written to it."""
    pool = filled.pool
    repair(pool, slave)
    times = pool.path(INDEX).stat()
    os.utime(pool.path(INDEX), ns=(times.st_atime_ns, times.st_mtime_ns - 10**9))
    filled.change(how)
    time.sleep(BRISK.moves.source_s + 1)
    require_repaired(pool)


def test_a_log_that_is_cut_there_continues_in_the_damaged_file(filled: KeptMount, slave: Path) -> None:
    """A broker has that mapped, and appends to it."""
    pool = filled.pool
    name = pool.path(INDEX).name
    with mapped(pool, INDEX) as mapping:
        repair(pool, slave)
        for later in range(INDEX + 1, COUNT):
            pool.path(later).unlink()
        mapping[1000:1004] = b"cut!"
        mapping.flush()
        assert pool.path(INDEX).read_bytes()[1000:1004] == b"cut!"
    filled.replace()
    assert pool.path(INDEX).read_bytes()[1000:1004] == b"cut!"
    eventually(lambda: len(files_of(pool, INDEX)) == 1)
    eventually(lambda: damaged(pool).keys() == {name})
    assert set_aside(pool) == []


def test_a_disk_with_a_damaged_file_stays_in_the_pool(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    repair(pool, slave)
    number = next(n for n, disk in enumerate(pool.disks, 1) if str(disk) == set_aside(pool)[0]["disk"])
    assert pool.cli("disk", "drain", number, pool.name, "--rate", "1GiB").status == 0
    eventually(lambda: pool.ask("status")["disks"][number - 1]["drain"]["segments_left"] <= 1)
    scrubs.fill(pool, range(COUNT, COUNT + NEWEST))
    eventually(lambda: pool.ask("status")["disks"][number - 1]["segments"] == 0)
    eventually(lambda: pool.ask("status")["disks"][number - 1]["held_segments"] == 0)
    ran = pool.cli("disk", "safe-to-remove", number, pool.name)
    assert (ran.status, "1 damaged file of repaired segments, until" in ran.out) == (1, True)
    ran = pool.cli("disk", "remove", number, pool.name)
    assert (ran.status, "holds damaged files of repaired segments (1)" in ran.err) == (4, True)
    assert pool.cli("scrub", "clear", pool.name).status == 0
    eventually(lambda: pool.cli("disk", "safe-to-remove", number, pool.name).status == 0)
    ran = pool.cli("disk", "remove", number, pool.name)
    assert ran.status == 0, ran.err


def test_a_damaged_file_on_a_read_only_disk_stays_where_it_is(
    keep: Callable[..., KeptMount], workdir: Path
) -> None:
    """It cannot be renamed; the next daemons know by the copy's mark which of the two is right."""
    kept = keep(3)
    pool = kept.pool
    fill(kept)
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    rot(pool, INDEX)
    eventually(lambda: scrubs.has_verdict(pool, INDEX))
    former = backing(pool, INDEX)
    pool.disk_settings = {pool.disk_of(INDEX): {"readonly": "true"}}
    pool.write_config()
    filled_before = pool.cli("restart", pool.name)
    assert filled_before.status == 0, filled_before.err
    eventually(lambda: len(damaged(pool)) == 1)
    restore(pool, "--from", slave)
    for _ in range(2):
        assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
        assert former.read_bytes() == rotten(pool, INDEX)
        assert files_aside(pool) == []
        kept.newest_daemon()
        kept.replace()
    pool.disk_settings = {}
    pool.write_config()
    ran = pool.cli("restart", pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: len(files_aside(pool)) == 1)
    require_repaired(pool)


def test_disks_of_a_mount_without_daemon_are_not_repaired_offline(filled: KeptMount, slave: Path) -> None:
    """Its users may have files open that have left the log."""
    pool = filled.pool
    with mapped(pool, INDEX) as mapping:
        repair(pool, slave)
        filled.kill()
        ran = pool.cli("check", pool.config, "--repair")
        assert (ran.status, "test: is mounted, and its daemon repairs the pool" in ran.err) == (4, True)
        filled.go_on()
        assert mapping[PAGE:] == content(pool, INDEX)[PAGE:]
    require_repaired(pool)


@pytest.mark.alone
@with_flaky_disks
def test_a_segment_that_its_disk_cannot_read_is_repaired(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], workdir: Path
) -> None:
    bad = disk_farm.add_of(BadBlocksDisk, "ext4", 64 * MIB)
    assert isinstance(bad, BadBlocksDisk)
    kept = keep(disks=[bad.path, disk_farm.add_of(LoopDisk, "ext4", 64 * MIB).path])
    pool = kept.pool
    fill(kept)
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    name = pool.path(INDEX).name
    assert pool.disk_of(INDEX) == 0
    bad.damage(name, 100 * PAGE, 101 * PAGE)
    assert scrubs.scrub(pool)[name]["kind"] == "unreadable"
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
    eventually(lambda: [file["kind"] for file in set_aside(pool)] == ["unreadable"])
    kept.replace()
    eventually(lambda: [file["kind"] for file in set_aside(pool)] == ["unreadable"])
    assert damaged(pool) == {}
    assert scrubs.scrub(pool) == {}


# --- the log changes during a repair ---------------------------------------------------------------------


@contextmanager
def slow_restore(pool: PoolMount, slave: Path) -> Iterator[subprocess.Popen[str]]:
    """A restore that takes seconds for a segment, with its copy begun."""
    command = [*COMMAND, "restore", pool.name, "--from", str(slave), "--rate", "128KiB"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **pool.env}
    ) as process:
        try:
            eventually(lambda: pool.status()["moves"]["current"] is not None)
            yield process
        finally:
            process.kill()


def test_a_segment_that_expires_during_its_repair_stays_away(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    rot(pool, 0)
    with slow_restore(pool, slave) as command:
        pool.path(0).unlink()
        out, _ = command.communicate(timeout=PATIENCE_S)
    # The removal may still be under way when the repair looks.
    reasons = ("is not known to be damaged any more", "is moved or changed at this moment")
    assert (command.returncode, any(reason in out for reason in reasons)) == (1, True), out
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(1, COUNT)]
    assert (files_of(pool, 0), files_aside(pool)) == ([], [])


@pytest.mark.full
def test_a_segment_that_is_written_to_during_its_repair_stays(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    rot(pool, INDEX)
    with mapped(pool, INDEX) as mapping, slow_restore(pool, slave) as command:
        mapping[2 * PAGE : 2 * PAGE + 4] = b"late"
        mapping.flush()
        out, _ = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 1, out
        assert mapping[2 * PAGE : 2 * PAGE + 4] == b"late"
    assert pool.path(INDEX).read_bytes()[2 * PAGE : 2 * PAGE + 4] == b"late"
    assert len(files_of(pool, INDEX)) == 1
    assert files_aside(pool) == []


@pytest.mark.full
def test_a_segment_that_is_cleared_before_its_repair_is_not_repaired(filled: KeptMount, slave: Path) -> None:
    pool = filled.pool
    rot(pool, 0, INDEX)
    with slow_restore(pool, slave) as command:  # the newest first
        assert pool.cli("scrub", "clear", pool.name, "--segment", pool.path(0).name).status == 0
        out, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1, out
    assert "1 segment repaired" in out
    assert "is not known to be damaged any more" in out
    assert backing(pool, 0).read_bytes() == rotten(pool, 0)
    assert backing(pool, INDEX).read_bytes() == content(pool, INDEX)


def test_the_daemon_itself_compares_the_checksum(filled: KeptMount, workdir: Path) -> None:
    pool = filled.pool
    rot(pool, INDEX)
    other = workdir / "other"
    other.write_bytes(make_sealed(INDEX * MIB, MIB, store_ms=1_700_000_000_999))
    hand_in(pool, other, INDEX)
    eventually(lambda: pool.ask("restore-state", base_offset=INDEX * MIB, repairs=True)["state"] == "failed")
    reason = pool.ask("restore-state", base_offset=INDEX * MIB, repairs=True)["reason"]
    assert "the copy has another checksum than the segment had when it was sealed" in reason
    assert damaged(pool).keys() == {pool.path(INDEX).name}


# --- deaths ----------------------------------------------------------------------------------------------


def hand_in(pool: PoolMount, path: Path, index: int) -> None:
    """Give a copy to the daemon, as the command does, but without its checks and its patience."""
    fd = os.open(path, os.O_RDONLY)
    try:
        control_socket.ask_with(
            pool.socket,
            "restore-segment",
            [fd],
            base_offset=index * MIB,
            mtime_ns=1,
            xxh3=xxhash.xxh3_128(path.read_bytes()).hexdigest(),
            token="",
            repairs=True,
        )
    except UnreachableError:  # it has died
        pass
    finally:
        os.close(fd)


def is_over(pool: PoolMount, pid: int) -> bool:
    """Whether the daemon has died, or has set the damaged file aside and removed the copy's marks."""
    if has_ended(pid):
        return True
    try:
        if not set_aside(pool):
            return False
    except UnreachableError:
        return False
    return all(layout.XATTR_REPAIRS not in os.listxattr(path) for path in files_of(pool, INDEX))


@with_faults
@pytest.mark.full
@pytest.mark.parametrize(
    ("passthrough", "held", "every"),
    [
        ("auto", True, 3),
        ("off", False, 3),
        *(
            pytest.param(passthrough, held, 1, marks=pytest.mark.soak)
            for passthrough in ("auto", "off")
            for held in (False, True)
        ),
    ],
)
def test_the_daemon_dies_at_each_step(
    keep: Callable[..., KeptMount], workdir: Path, passthrough: str, held: bool, every: int
) -> None:
    """Afterwards the segment is the damaged one with its verdict, or the right copy, and the next restore ends the
    repair."""
    plan = FaultPlan(workdir)
    kept = keep(3, settings={"passthrough": f'"{passthrough}"'}, variables=plan.variables)
    pool, name, deaths, outcomes = kept.pool, kept.pool.path(INDEX).name, 0, set()
    steps = STEPS + (pool.status()["daemon"]["passthrough"] == "on" and not held)
    fill(kept)
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    for step in range(1, MOST_STEPS, every):
        rot(pool, INDEX)
        eventually(lambda: scrubs.has_verdict(pool, INDEX))
        fd = os.open(pool.path(INDEX), os.O_RDWR) if held else -1
        try:
            victim = kept.newest_daemon()
            plan.die_at(victim, step)
            hand_in(pool, slave / name, INDEX)
            # Three steps are the disks' records of the newest segment: they may come after the end of the repair.
            eventually(partial(has_ended if step <= steps else partial(is_over, pool), victim))
            has_died = plan.disarm() >= step
            if has_died:
                deaths += 1
                kept.await_successor()
            with pool.path(INDEX).open("rb") as file:  # a name that is not opened may still be known as before
                seen = Path(os.fsdecode(os.getxattr(file.fileno(), "user.commitlogfs.fullpath"))).read_bytes()
            assert seen in (content(pool, INDEX), rotten(pool, INDEX))
            is_repaired = seen == content(pool, INDEX)
            outcomes.add(is_repaired)
            assert len(os.listdir(pool.mountpoint)) == COUNT
            eventually(lambda expected=set() if is_repaired else {name}: damaged(pool).keys() == expected)
            assert restore(pool, "--from", slave).startswith("test: ")
            eventually(lambda: len(set_aside(pool)) == 1)
            require_repaired(pool)
            if held:
                assert os.pread(fd, MIB, PAGE) == content(pool, INDEX)[PAGE:]
        finally:
            if held:
                os.close(fd)
        assert pool.cli("scrub", "clear", pool.name).status == 0
        eventually(lambda: files_aside(pool) == [])
        if not has_died:
            break
    else:
        raise AssertionError(f"more than {MOST_STEPS} steps")
    assert deaths == len(range(1, steps + 1, every))
    assert outcomes == {True, False}
    pool.stop()
    for index in range(COUNT):
        assert len(files_of(pool, index)) == 1
