"""Scrubs over takeovers, moves and failing disks: the next daemon continues, and verdicts follow their segments."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.flaky_disks import BadBlocksDisk, flaky_available
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount
from support.records import make_sealed
from support.scrubs import damaged, records_of, report, scrub
from support.waiting import eventually

from commitlogfs.store import layout
from commitlogfs.store.scrub.verdict import Kind, Message, Range, Verdict, format_verdict, parse_verdict

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_flaky_disks = pytest.mark.skipif(bool(flaky_available()), reason=flaky_available() or "can be made")
COUNT = 27
SEALED = range(COUNT - NEWEST)
KILLS = 4
BLOCK = 4096


@pytest.fixture
def filled(keep: Callable[..., KeptMount]) -> KeptMount:
    kept = keep(3)
    scrubs.fill(kept.pool, range(COUNT))
    await_checksums(kept.pool, len(SEALED))
    return kept


def read_bytes(pool: PoolMount) -> float:
    """Bytes that the present daemon has read."""
    (line,) = (one for one in pool.metrics().splitlines() if one.startswith("commitlogfs_scrub_bytes_total"))
    return float(line.split()[-1])


@pytest.mark.full
def test_the_next_daemon_reads_at_most_one_segment_again(filled: KeptMount) -> None:
    """One of each disk; and a damage that the former daemon has found stays known."""
    pool = filled.pool
    for index in SEALED[::5]:
        scrubs.flip(backing(pool, index), 100)
    assert pool.cli("scrub", "start", pool.name, "--rate", "128KiB").status == 0
    read = 0.0
    for kill in range(KILLS):
        before = report(pool)["done_bytes"]
        eventually(lambda before=before: report(pool)["done_bytes"] > before + MIB)
        at_kill = read_bytes(pool)
        done = report(pool)["done_bytes"]
        filled.change("restart" if kill == KILLS - 1 else "kill")
        read += at_kill
        assert report(pool)["done_bytes"] >= done - len(pool.disks) * MIB
    assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--wait").status == 1
    read += read_bytes(pool)
    second_reads = len(SEALED[::5])
    again = read / MIB - len(SEALED) - second_reads
    assert again <= KILLS * len(pool.disks)
    assert report(pool)["done_bytes"] == len(SEALED) * MIB
    assert list(damaged(pool)) == [pool.path(index).name for index in SEALED[::5]]


def test_orders_are_known_to_the_next_daemon(filled: KeptMount) -> None:
    pool = filled.pool
    assert pool.cli("scrub", "start", pool.name, "--rate", "64KiB").status == 0
    assert pool.cli("scrub", "pause", pool.name).status == 0
    filled.replace()
    scrubs.await_state(pool, "paused")
    read = read_bytes(pool)
    time.sleep(4.0)
    assert read_bytes(pool) == read
    assert pool.cli("scrub", "resume", pool.name).status == 0
    filled.replace()
    scrubs.await_state(pool, "running")
    assert report(pool)["rate"] == 65536
    assert pool.cli("scrub", "cancel", pool.name).status == 0
    filled.replace()
    scrubs.await_state(pool, "cancelled")


def test_kills_and_takeovers_lead_to_no_verdict(filled: KeptMount) -> None:
    pool = filled.pool
    for number in range(3):
        assert pool.cli("scrub", "start", pool.name, "--rate", "4MiB", *(["--messages"] * (number % 2))).status == 0
        filled.replace()
        assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--wait").status == 0
    assert damaged(pool) == {}


def test_a_verdict_goes_with_a_move(filled: KeptMount) -> None:
    """By a scrub, and by a move that refuses the segment."""
    pool = filled.pool
    on_second = [index for index in SEALED if pool.disk_of(index) == 1]
    first, other = on_second[0], on_second[1]
    scrubs.flip(backing(pool, first), 100)
    before = scrub(pool)
    eventually(lambda: scrubs.has_verdict(pool, first))
    scrubs.flip(backing(pool, other), 100)
    assert pool.cli("disk", "drain", 2, pool.name, "--rate", scrubs.FAST).status == 0
    eventually(lambda: len(damaged(pool)) == 2)
    assert damaged(pool)[pool.path(other).name]["located"] is False
    assert pool.ask("status")["checksums"]["mismatches"] == [pool.path(first).name, pool.path(other).name]
    assert pool.cli("disk", "drain", 2, pool.name, "--failing", "--rate", scrubs.FAST).status == 0
    eventually(lambda: not any((pool.disks[1] / pool.path(index).name).exists() for index in on_second))
    moved = damaged(pool)
    assert moved[pool.path(first).name]["messages"] == before[pool.path(first).name]["messages"]
    assert moved[pool.path(first).name]["disk"] != str(pool.disks[1])
    assert pool.cli("disk", "cancel", 2, pool.name).status == 0
    for index in (first, other):
        eventually(lambda index=index: scrubs.has_verdict(pool, index))
    filled.replace()
    eventually(lambda: damaged(pool) == moved)
    found = scrub(pool)  # which messages the move has not said
    assert found[pool.path(other).name]["messages"][0]["queue_offset"] == 0


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_run_is_not_complete_without_a_segment_that_a_drain_has_moved(filled: KeptMount, how: str) -> None:
    """The run gives way to the drain: what is moved until the daemon ends was not read."""
    pool = filled.pool
    first = next(index for index in SEALED if pool.disk_of(index) == 0)
    assert pool.cli("disk", "drain", 1, pool.name, "--rate", "300KiB").status == 0
    assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--messages").status == 0
    eventually(lambda: pool.disk_of(first) != 0, shown=lambda: str(report(pool)))
    filled.change(how)
    assert pool.cli("disk", "cancel", 1, pool.name).status == 0
    scrubs.await_state(pool, "done")
    unread = sum(one["unread"] for one in report(pool)["disks"])
    assert unread or report(pool)["done_bytes"] == len(SEALED) * MIB
    assert (report(pool)["completed"] is None) == bool(unread)


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_where_writes_were_lost_stays_known(filled: KeptMount, how: str) -> None:
    """The cordon that recalls the segment at the start of a daemon does not say where."""
    pool, index = filled.pool, COUNT - 1
    lost = Verdict(Kind.WRITE_LOST, 5, (Range(4096, 8192),), (Message(4100, "topic", 1, 7),), 1)
    os.setxattr(backing(pool, index), layout.XATTR_VERDICT, format_verdict(lost))
    name, disk = pool.path(index).name, pool.disk_of(index)
    assert pool.cli("disk", "cordon", disk + 1, pool.name, "--reason", f"lost writes of {name}").status == 0
    for _ in range(2):
        filled.change(how)
        eventually(lambda: damaged(pool) and damaged(pool)[name]["recorded"] and not report(pool)["unknown"])
        base = index * MIB
        assert damaged(pool)[name]["ranges"] == [[base + 4096, base + 8192]]
        assert damaged(pool)[name]["messages"][0]["queue_offset"] == 7
        assert parse_verdict(os.getxattr(backing(pool, index), layout.XATTR_VERDICT)) == lost


# --- failing disks ---------------------------------------------------------------------------------------


@pytest.fixture
def bad(disk_farm: DiskFarm) -> BadBlocksDisk:
    disk = disk_farm.add_of(BadBlocksDisk, "ext4", 64 * MIB)
    assert isinstance(disk, BadBlocksDisk)
    return disk


@pytest.fixture
def flaky(disk_farm: DiskFarm, bad: BadBlocksDisk, keep: Callable[..., KeptMount]) -> KeptMount:
    """Twelve segments in turn on two disks, of which the first may fail."""
    other = disk_farm.add_of(LoopDisk, "ext4", 64 * MIB)
    kept = keep(disks=[bad.path, other.path])
    scrubs.fill(kept.pool, range(12))
    await_checksums(kept.pool, 12 - NEWEST)
    return kept


@pytest.mark.alone
@with_flaky_disks
def test_unreadable_blocks_are_named(bad: BadBlocksDisk, flaky: KeptMount) -> None:
    pool = flaky.pool
    index = next(index for index in range(2, 9) if pool.disk_of(index) == 0)
    bad.damage(pool.path(index).name, 100 * BLOCK, 101 * BLOCK)
    found = scrub(pool)
    assert [one["kind"] for one in found.values()] == ["unreadable"]
    one = found[pool.path(index).name]
    base = index * MIB
    (begin, end) = one["ranges"][0][0] - base, one["ranges"][-1][1] - base
    assert begin <= 100 * BLOCK < 101 * BLOCK <= end < 101 * BLOCK + MIB // 4
    around = [p for p in records_of(make_sealed(base, MIB), base) if p.position < end and p.end > begin]
    assert one["messages"]
    assert {m["queue_offset"] for m in one["messages"]} <= {p.record.queue_offset for p in around}
    assert 'commitlogfs_scrub_errors_total{kind="unreadable",pool="test"} 1.0' in pool.metrics()


@pytest.mark.alone
@with_flaky_disks
def test_a_disk_that_reads_nothing_leads_to_no_verdict(bad: BadBlocksDisk, flaky: KeptMount) -> None:
    """The disk has failed, not its segments; the other disks are scrubbed."""
    pool = flaky.pool
    bad.drop_caches()  # before: it may wait for another test
    bad.fail_reads()
    assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST).status == 0
    eventually(lambda: report(pool)["disks"][1]["ended"])
    eventually(lambda: "event=scrub_failed" in pool.log_path.read_text())
    assert damaged(pool) == {}
    assert report(pool)["state"] == "running"
    bad.heal()
    assert pool.cli("scrub", "cancel", pool.name).status == 0


@pytest.mark.full
def test_a_scrub_survives_an_unmount(filled: KeptMount, workdir: Path) -> None:
    pool = filled.pool
    assert pool.cli("scrub", "start", pool.name, "--rate", "256KiB").status == 0
    eventually(lambda: report(pool)["done_bytes"] > 3 * MIB)
    done = report(pool)["done_bytes"]
    pool.stop()
    filled.start()
    assert report(pool)["done_bytes"] >= done - 3 * MIB
    assert pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--wait").status == 0
