"""Checksums of sealed segments over takeovers and moves: the next daemon continues, and rot does not spread."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import checksums, faults
from support.checksums import NEWEST, await_checksums, backing, counts, is_valid, required, shown
from support.command_line import Ran
from support.faults import FaultPlan
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.processes import has_ended
from support.records import make_sealed
from support.scrubs import FAST
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_faults = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
COUNT = 9
SEALED = range(COUNT - NEWEST)
DEADLY_STEPS = 4
"""Sync and attribute of two segments."""


@pytest.fixture
def filled(keep: Callable[..., KeptMount]) -> KeptMount:
    kept = keep(3)
    checksums.fill(kept.pool, range(COUNT))
    return kept


def test_the_next_daemon_finds_them_and_continues(filled: KeptMount) -> None:
    pool = filled.pool
    await_checksums(pool, len(SEALED))
    filled.replace()
    checksums.fill(pool, range(COUNT, COUNT + 2))
    await_checksums(pool, len(SEALED) + 2)
    assert 'commitlogfs_checksums_computed_total{pool="test"} 2.0' in pool.metrics()
    checksums.require_right(pool, range(COUNT - NEWEST + 2))


@with_faults
def test_a_daemon_that_dies_at_any_step_leaves_no_wrong_one(keep: Callable[..., KeptMount], workdir: Path) -> None:
    plan = FaultPlan(workdir)
    kept = keep(1, variables=plan.variables)
    pool = kept.pool
    checksums.fill(pool, range(2 + NEWEST))
    killed = 0
    for step in range(1, DEADLY_STEPS + 1):
        await_checksums(pool, 2)
        before = kept.newest_daemon()
        for index in range(2):
            checksums.write(pool.path(index), b"%d" % step, checksums.LONG_AGO_NS + 100 * step)
        plan.die_at(before, step)
        eventually(lambda before=before: has_ended(before) or counts_or_none(pool) == 2)
        for index in range(2):
            found = checksums.recorded(backing(pool, index))
            assert found is not None
            if is_valid(backing(pool, index)):
                assert found.digest.hex() == required(backing(pool, index))
        if plan.disarm() >= step:
            killed += 1
            kept.await_successor()
    assert killed >= DEADLY_STEPS - 1
    await_checksums(pool, 2)
    checksums.require_right(pool, range(2))


def counts_or_none(pool: PoolMount) -> object:
    """How many segments have one; None if the daemon does not answer."""
    try:
        return counts(pool)["with"]
    except (UnreachableError, OSError):
        return None


@pytest.mark.alone
def read_beside_a_hung_disk(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount], run: Callable[[Callable[[], None]], None]
) -> None:
    """Read the attributes of the segments on the other disks; `run` calls the function that does it."""
    disks = [disk_farm.add("ext4") for _ in range(3)]
    directories = [disk.path / "commitlog" for disk in disks]
    for directory in directories:
        directory.mkdir()
    pool = keep(disks=directories).pool
    checksums.fill(pool, range(COUNT))
    on_it = {index for index in SEALED if pool.disk_of(index) == 1}
    with frozen(disks[1], 2 * PATIENCE_S) as thaw:  # reads work, the attribute cannot be set
        others = set(SEALED) - on_it
        eventually(lambda: all(shown(pool, index) is not None for index in others))

        def read() -> None:
            for index in range(COUNT):
                if index not in on_it:
                    assert (shown(pool, index) is not None) == (index in SEALED)
                pool.path(index).stat()

        run(read)
        thaw()
    await_checksums(pool, len(SEALED))
    checksums.require_right(pool, SEALED)


@pytest.mark.alone
def test_the_checksums_of_the_others_beside_a_hung_disk(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> None:
    read_beside_a_hung_disk(disk_farm, keep, lambda read: read())


@pytest.mark.timing
def test_a_hung_disk_delays_nothing(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    def measure(read: Callable[[], None]) -> None:
        began_s = time.monotonic()
        read()
        assert time.monotonic() - began_s < 10.0

    read_beside_a_hung_disk(disk_farm, keep, measure)


# --- moves -----------------------------------------------------------------------------------------------


def sealed_on(pool: PoolMount, number: int) -> list[int]:
    """The sealed segments on a disk, those that are just moved included."""
    return [index for index in SEALED if (Path(pool.disks[number]) / pool.path(index).name).exists()]


def drain(pool: PoolMount, number: int, *options: str) -> Ran:
    ran = pool.cli("disk", "drain", number, pool.name, "--rate", FAST, *options)
    assert ran.status == 0, ran.err
    return ran


def test_a_moved_segment_has_one_from_the_beginning(filled: KeptMount) -> None:
    """Whether its source has one already or not."""
    pool = filled.pool
    for number in (1, 2):
        indexes = sealed_on(pool, number)
        drain(pool, number + 1)
        eventually(lambda number=number: not sealed_on(pool, number))
        for index in indexes:
            assert is_valid(backing(pool, index))
        assert pool.cli("disk", "cancel", number + 1, pool.name).status == 0
        await_checksums(pool, len(SEALED))
    checksums.require_right(pool, SEALED)


def test_a_rotten_segment_stays_and_is_saved_from_a_failing_disk(filled: KeptMount) -> None:
    pool = filled.pool
    await_checksums(pool, len(SEALED))
    index = max(sealed_on(pool, 1))
    right = required(backing(pool, index))
    checksums.rot(backing(pool, index))
    drain(pool, 2)
    eventually(lambda: sealed_on(pool, 1) == [index])
    eventually(lambda: counts(pool)["mismatches"] == [pool.path(index).name])
    status = " ".join(pool.cli("status", pool.name).out.split())
    assert f"{pool.path(index).name}: has changed since it was sealed" in status
    assert "1 differs from its checksum; `disk drain --failing` moves it" in pool.cli("disk", "list", pool.name).out
    error = pool.ask("status")["moves"]["last_error"]
    assert error.startswith(f"{pool.path(index).name}: its content differs from its checksum")
    eventually(lambda: "event=checksum_mismatch" in pool.log_path.read_text())
    assert shown(pool, index) == right != required(backing(pool, index))

    drain(pool, 2, "--failing")
    eventually(lambda: not sealed_on(pool, 1))
    eventually(lambda: f"event=rotten_segment_copied segment={pool.path(index).name}" in pool.log_path.read_text())
    assert backing(pool, index).read_bytes()[MIB // 2] == 0xFF
    # The kernel may know the old file under the name until the daemon's message about the move has come.
    eventually(lambda: shown(pool, index) is not None)
    assert shown(pool, index) == right  # the next reader finds the difference again


def test_a_restored_segment_has_one(keep: Callable[..., KeptMount], workdir: Path) -> None:
    pool = keep(3).pool
    slave = workdir / "slave"
    slave.mkdir()
    pool.make_segments(range(COUNT))
    for index in range(COUNT):
        content = make_sealed(index * MIB, MIB)
        checksums.write(pool.path(index), content, checksums.LONG_AGO_NS)
        (slave / pool.path(index).name).write_bytes(content)
    pool.path(2).unlink()
    ran = pool.cli("restore", pool.name, "--from", slave, "--rate", FAST)
    assert ran.status == 0, ran.err + ran.out
    assert shown(pool, 2) == required(slave / pool.path(2).name)
