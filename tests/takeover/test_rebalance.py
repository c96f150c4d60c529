"""`commitlogfs rebalance`: the disks of a running mount become equally full, by placement or by moves."""

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.balance_bound import Filled, fewest_moves
from support.command_line import Ran
from support.faults import FaultPlan
from support.filling import fill_to
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LargeBlockDisk
from support.pools import MIB, PoolMount, segment_bytes, segment_name
from support.scrubs import FAST
from support.terminals import FIGURES, terminal
from support.waiting import eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_faults = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
SIZE = MIB // 2
DISK = 64 * MIB
NEWEST = 3
GOAL = 2.0
LEAST_DEATHS = 3

MakeFilled = Callable[..., KeptMount]


@pytest.fixture
def make_filled(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> MakeFilled:
    """Makes a mount of as many disks as there are counts, each with that many segments of the log, in an order that
    chance decides."""

    def make(counts: Sequence[int], sizes: Sequence[int] = (), **options: Any) -> KeptMount:
        disks = [disk_farm.add_of(LargeBlockDisk, "ext4", size) for size in (sizes or [DISK] * len(counts))]
        directories = [disk.path / "commitlog" for disk in disks]
        for directory in directories:
            directory.mkdir()
        places = [directory for directory, count in zip(directories, counts, strict=True) for _ in range(count)]
        random.Random(7).shuffle(places)  # noqa: S311

        def prepare(_pool: PoolMount) -> None:
            for index, directory in enumerate(places):
                write_segment(directory / segment_name(index, SIZE), index)

        return keep(disks=directories, segment_size=SIZE, prepare=prepare, **options)

    return make


def write_segment(path: Path, index: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, segment_bytes(index, 4096), 0)
    finally:
        os.close(fd)
    os.utime(path, ns=(1_600_000_000_000_000_000 + index, 1_600_000_000_123_456_789 + index))


@pytest.fixture
def uneven(make_filled: MakeFilled) -> KeptMount:
    """Two disks with 40 segments each, and an empty one."""
    return make_filled((40, 40, 0))


def rebalance(pool: PoolMount, verb: str, *options: str) -> Ran:
    return pool.cli("rebalance", verb, pool.name, *options)


def started(pool: PoolMount, *options: str) -> Ran:
    ran = rebalance(pool, "start", *options)
    assert ran.status == 0, ran.err
    return ran


def running(pool: PoolMount) -> Any:
    try:
        return pool.ask("status")["rebalance"]
    except UnreachableError:  # its daemon has just died
        return {}


def on_disk(disk: Path) -> set[int]:
    return {int(name) // SIZE for name in os.listdir(disk) if name.isdecimal()}


def filled(disk: Path) -> Filled:
    """As statvfs shows it."""
    st = os.statvfs(disk)
    used = (st.f_blocks - st.f_bfree) * st.f_frsize
    return Filled(used, used + st.f_bavail * st.f_frsize, len(on_disk(disk)))


def shares(pool: PoolMount) -> list[float]:
    """Used percent of each disk."""
    return [100 * one.used / one.entire for one in map(filled, pool.disks)]


def spread_points(pool: PoolMount) -> float:
    found = shares(pool)
    return max(found) - min(found)


def fewest(pool: PoolMount) -> int:
    return fewest_moves([filled(disk) for disk in pool.disks], SIZE, Fraction(2, 100))


def settled_plan(pool: PoolMount) -> Any:
    """The plan by copying, once its figures are those of the disks: a new daemon probes each disk with a file of
    one segment, which a measurement may count."""

    def plan() -> Any:
        found = rebalance(pool, "plan", "--copy", "--json").json()
        known = [disk["used_percent"] for disk in found["disks"]]
        return found if known == pytest.approx(shares(pool), abs=0.1) else None

    return eventually(plan)


def moved(pool: PoolMount) -> int:
    return int(pool.ask("status")["moves"]["segments"])


def require_whole(pool: PoolMount, count: int) -> None:
    """Each segment is listed once, holds what was written to it, and is on one disk only."""
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(count)]
    for index in range(count):
        with pool.path(index).open("rb") as file:
            assert file.read(4096) == segment_bytes(index, 4096), index
    eventually(lambda: sorted(i for disk in pool.disks for i in on_disk(disk)) == list(range(count)))


def require_nothing_recorded(pool: PoolMount) -> None:
    for disk in pool.disks:
        assert "rebalance" not in json.loads(os.getxattr(disk, layout.XATTR_IDENTITY))


# --- by copying ------------------------------------------------------------------------------------------


def plan_beside_fewest(pool: PoolMount) -> tuple[dict[str, Any], int] | None:
    """The plan, and the fewest moves for the same fill levels; None if these changed meanwhile."""
    before, plan = fewest(pool), settled_plan(pool)
    return (plan, before) if fewest(pool) == before else None


@pytest.mark.parametrize("sizes", ["equal", "different"])
def test_thirteen_disks_become_equal_with_the_fewest_moves(make_filled: MakeFilled, sizes: str) -> None:
    chance = random.Random(13)  # noqa: S311
    megabytes = [64] * 13 if sizes == "equal" else [chance.choice([48, 64, 80, 96]) for _ in range(13)]
    counts = [chance.randrange(10, size - 8) for size in megabytes[:12]] + [0]
    pool = make_filled(counts, [size * MIB for size in megabytes]).pool
    plan, least = eventually(lambda: plan_beside_fewest(pool))
    assert least <= plan["segments"] <= 1.05 * least
    assert sum(move["bytes"] for move in plan["moves"]) == plan["bytes"] == plan["segments"] * SIZE
    assert plan["end_points"] <= GOAL
    ran = started(pool, "--copy", "--rate", FAST, "--wait")
    assert f"rebalance by copying started: {plan['segments']:,} segments (" in ran.out
    assert "test: the rebalance has ended. Spread " in ran.out
    assert spread_points(pool) <= GOAL
    assert moved(pool) <= 1.05 * least
    assert moved(pool) * SIZE == pool.ask("status")["moves"]["bytes"]
    assert running(pool) is None
    require_nothing_recorded(pool)
    require_whole(pool, sum(counts))
    eventually(lambda: "event=rebalanced" in pool.log_path.read_text())


def test_neighbours_are_on_different_disks_afterwards(uneven: KeptMount) -> None:
    pool = uneven.pool
    started(pool, "--copy", "--rate", FAST, "--wait")
    there = on_disk(pool.disks[2])
    assert len(there) > 20
    assert not any(index + 1 in there for index in there)
    assert not there & set(range(80 - NEWEST, 80)), "a broker writes to the newest"


def test_segments_that_a_broker_has_open_count_as_moved(uneven: KeptMount) -> None:
    """Their old files keep their space: without that, segments would be moved for ever."""
    pool = uneven.pool
    least = fewest(pool)
    fds = [os.open(pool.path(index), os.O_RDWR) for index in range(80)]
    try:
        started(pool, "--copy", "--rate", FAST, "--wait")
        assert spread_points(pool) > 10
        assert least <= moved(pool) <= 1.05 * least
        held = [disk["held_segments"] for disk in pool.ask("status")["disks"]]
        assert sum(held) == moved(pool)
        assert rebalance(pool, "plan", "--json").json()["balanced"]
        uneven.replace()
        assert rebalance(pool, "plan", "--json").json()["balanced"], "the next daemon counts the same"
        assert f"without {held[0]} moved segments that the broker still has open" in rebalance(pool, "plan").out
    finally:
        for fd in fds:
            os.close(fd)
    eventually(lambda: spread_points(pool) <= GOAL)
    require_whole(pool, 80)


@pytest.mark.full
def test_a_killed_daemon_is_followed_by_one_that_continues(uneven: KeptMount) -> None:
    pool = uneven.pool
    least = fewest(pool)
    started(pool, "--copy", "--rate", "256KiB")
    done = 0
    for how in ("kill", "kill", "restart"):
        eventually(lambda: moved(pool) >= 2)
        done += moved(pool)
        uneven.change(how)
        assert running(pool)["mode"] == "copy"
        assert running(pool)["rate"] == MIB // 4
    assert started(pool, "--copy", "--rate", FAST).out.startswith("test: the rebalance now moves at most ")
    assert rebalance(pool, "status", "--wait").status == 0
    # A daemon counts its own moves only, and each death may hide one that was just done.
    assert done + moved(pool) <= 1.05 * least
    assert spread_points(pool) <= GOAL
    require_whole(pool, 80)


def test_a_broker_writes_meanwhile(uneven: KeptMount) -> None:
    pool = uneven.pool
    started(pool, "--copy", "--rate", "8MiB")
    count = 80
    while running(pool) is not None and count < 120:
        pool.make_segments([count])
        pool.path(count - 80).unlink()  # and the oldest expire
        count += 1
    eventually(lambda: running(pool) is None)
    eventually(lambda: "info event=rebalanced" in pool.log_path.read_text())
    assert {pool.disk_of(index) for index in range(count - 6, count)} == {0, 1, 2}, "the policy stays in force"
    assert pool.ask("status")["moves"]["failed"] == 0
    listed = {pool.path(index).name for index in range(count - 80, count)}
    assert set(os.listdir(pool.mountpoint)) == listed
    eventually(lambda: sorted(i for d in pool.disks for i in on_disk(d)) == list(range(count - 80, count)))


@with_faults
def test_a_daemon_that_dies_at_any_step_loses_nothing(workdir: Path, make_filled: MakeFilled) -> None:
    plan = FaultPlan(workdir)
    kept = make_filled((24, 24, 0), variables=plan.variables)
    pool = kept.pool
    started(pool, "--copy", "--rate", FAST)
    deaths, count = 0, 48
    for step in range(1, 120, 9):
        victim = kept.await_handover()
        if running(pool) is None and deaths <= LEAST_DEATHS:  # the successor was faster than this test
            make_uneven(pool, range(count, count + 24))
            count += 24
            started(pool, "--copy", "--rate", "8MiB")
        plan.die_at(victim, step)
        eventually(lambda victim=victim: kept.newest_daemon() != victim or running(pool) is None)
        plan.disarm()
        deaths += kept.newest_daemon() != victim
    assert deaths > LEAST_DEATHS
    eventually(lambda: rebalance(pool, "status", "--wait").status == 0)
    assert spread_points(pool) <= GOAL
    require_whole(pool, count)


def make_uneven(pool: PoolMount, indexes: Sequence[int]) -> None:
    """The third disk gets none of these segments."""
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    pool.make_segments(indexes)
    assert pool.cli("disk", "uncordon", 3, pool.name).status == 0


@pytest.mark.timing
def test_a_cancelled_one_ends_within_a_second(uneven: KeptMount) -> None:
    pool = uneven.pool
    started(pool, "--copy", "--rate", "256KiB")
    eventually(lambda: (pool.ask("status")["moves"]["current"] or {}).get("done_bytes", 0) > 0)
    began = time.monotonic()
    pool.ask("rebalance-cancel")
    eventually(lambda: pool.ask("status")["moves"]["current"] is None)
    assert time.monotonic() - began < 1.5


def test_a_cancelled_one_ends_and_can_begin_again(uneven: KeptMount) -> None:
    """At its rate, a segment takes minutes."""
    pool = uneven.pool
    started(pool, "--copy", "--rate", "4KiB")
    eventually(lambda: (pool.ask("status")["moves"]["current"] or {}).get("done_bytes", 0) > 0)
    before = [on_disk(disk) for disk in pool.disks]
    pool.ask("rebalance-cancel")
    eventually(lambda: pool.ask("status")["moves"]["current"] is None)
    assert running(pool) is None
    assert [on_disk(disk) for disk in pool.disks] == before
    require_nothing_recorded(pool)
    eventually(lambda: "event=rebalance_cancelled" in pool.log_path.read_text())
    assert rebalance(pool, "status", "--wait").status == 1
    ran = rebalance(pool, "cancel")
    assert (ran.status, "no rebalance runs" in ran.out) == (0, True)
    started(pool, "--copy", "--rate", FAST, "--wait")
    assert spread_points(pool) <= GOAL


def test_an_interrupted_wait_shows_the_figures_and_how_to_end_it(uneven: KeptMount) -> None:
    pool = uneven.pool
    with terminal(pool, "rebalance", "start", pool.name, "--copy", "--rate", "64KiB", "--wait") as shown:
        eventually(lambda: FIGURES.search(shown.text()), shown=shown.text)
        assert shown.interrupt() == 130
        text = "test: the rebalance continues; `commitlogfs rebalance cancel test` ends it"
        eventually(lambda: text in shown.text())
    assert "\u2026" not in shown.text()
    assert running(pool)["mode"] == "copy"


def test_a_drain_comes_first(make_filled: MakeFilled) -> None:
    pool = make_filled((40, 40, 0, 20)).pool
    started(pool, "--copy", "--rate", "256KiB")
    eventually(lambda: pool.ask("status")["moves"]["current"] is not None)
    assert pool.cli("disk", "drain", 4, pool.name, "--rate", FAST).status == 0
    eventually(lambda: not on_disk(pool.disks[3]) - set(range(100 - NEWEST, 100)))
    assert running(pool)["mode"] == "copy"
    shown = rebalance(pool, "plan", "--copy").out
    assert f"4  {pool.disks[3]}  left out: draining" in shown
    assert f"Drains come first: {pool.disks[3]}." in shown
    started(pool, "--copy", "--rate", FAST)
    assert rebalance(pool, "status", "--wait").status == 0
    assert rebalance(pool, "plan", "--json").json()["spread_points"] <= GOAL
    require_whole(pool, 100)


def test_a_disk_full_of_other_data_stays_and_the_others_become_equal(make_filled: MakeFilled) -> None:
    pool = make_filled((0, 40, 0)).pool
    fill_to(pool.disks[0].parent, 70)
    eventually(lambda: rebalance(pool, "plan", "--json").json()["spread_points"] > 60)
    shown = rebalance(pool, "plan", "--copy").out
    assert "The goal cannot be reached: " in shown
    ran = rebalance(pool, "start", "--copy", "--rate", FAST, "--wait")
    assert (ran.status, "no rebalance runs, and the spread is" in ran.err) == (1, True)
    two = [filled(disk) for disk in pool.disks[1:]]
    assert abs(two[0].used / two[0].entire - two[1].used / two[1].entire) <= GOAL / 100
    ran = rebalance(pool, "start", "--copy")
    assert (ran.status, "no segment can be moved that would make" in ran.err) == (4, True)


# --- by placement ----------------------------------------------------------------------------------------


def grow(pool: PoolMount, index: int) -> int:
    """Make the next segment; the position of its disk."""
    pool.make_segments([index])
    return pool.disk_of(index)


def test_new_segments_go_to_the_emptier_disks_until_all_are_equal(make_filled: MakeFilled) -> None:
    pool = make_filled((30, 8, 0)).pool
    plan = rebalance(pool, "plan", "--json").json()
    assert (plan["balanced"], plan["moves"], plan["segments"] > 40) == (False, [], True)
    shown = started(pool).out
    assert "nothing is copied; done when the broker has written" in shown
    assert "Rebalance by placement: spread" in pool.cli("status", pool.name).out
    places: list[int] = []
    while running(pool) is not None:
        assert len(places) < plan["segments"] + 6
        places.append(grow(pool, 38 + len(places)))
        before = spread_points(pool)
        if before <= GOAL:
            eventually(lambda: running(pool) is None)
    assert len(places) == pytest.approx(plan["segments"], abs=3)
    assert 0 not in places
    assert all(a != b for a, b in itertools.pairwise(places[:8])), "two disks are below the common share"
    assert spread_points(pool) <= GOAL
    assert moved(pool) == 0
    require_nothing_recorded(pool)
    following = [grow(pool, 38 + len(places) + n) for n in range(3)]
    assert sorted(following) == [0, 1, 2], "the configured policy rules again"


def test_placement_outlives_its_daemon_and_can_be_cancelled(make_filled: MakeFilled) -> None:
    kept = make_filled((30, 8, 0))
    pool = kept.pool
    started(pool)
    for step, how in enumerate(("kill", "restart")):
        assert grow(pool, 38 + step) == (2, 1)[step]
        kept.change(how)
    assert running(pool)["mode"] == "placement"
    assert rebalance(pool, "cancel").status == 0
    assert sorted(grow(pool, 40 + n) for n in range(3)) == [0, 1, 2]


def test_expired_segments_end_it_too(make_filled: MakeFilled) -> None:
    pool = make_filled((30, 8, 8)).pool
    started(pool)
    there = sorted(on_disk(pool.disks[0]))
    for index in there[:22]:
        pool.path(index).unlink()
    assert rebalance(pool, "status", "--wait").status == 0
    eventually(lambda: "event=rebalanced" in pool.log_path.read_text())


# --- refusals --------------------------------------------------------------------------------------------


def test_refusals_change_nothing(uneven: KeptMount) -> None:
    pool = uneven.pool
    before = pool.ask("status")["members"]
    for arguments, status, text in [
        (("plan", "--rate", "1MiB"), 2, "leave it out, or add --copy"),
        (("start", "--copy", "--rate", "fast"), 2, "is not a size"),
        (("start", "--copy", "--rate", "0"), 2, "give a rate above 0"),
    ]:
        ran = rebalance(pool, *arguments)
        assert (ran.status, text in ran.err, ran.err.count("\n")) == (status, True, 1), ran.err
    assert rebalance(pool, "start", "--copy", "--dry-run").status == 0
    assert pool.ask("status")["members"] == before
    assert "no rebalance runs. Spread" in rebalance(pool, "status").out
    ran = rebalance(pool, "status", "--wait")
    assert (ran.status, "points; `rebalance start` begins one" in ran.err) == (1, True)
    started(pool)
    assert "runs already" in started(pool).out
    ran = rebalance(pool, "start", "--copy")
    assert (ran.status, "a rebalance by placement runs already" in ran.err) == (4, True)
    assert rebalance(pool, "cancel", "--dry-run").status == 0
    assert running(pool) is not None
    assert rebalance(pool, "cancel").status == 0
    for number in (1, 2):
        assert pool.cli("disk", "cordon", number, pool.name).status == 0
    assert rebalance(pool, "plan").out.count("left out: cordoned") == 2
    for options in ((), ("--copy",)):
        ran = rebalance(pool, "start", *options)
        assert (ran.status, "fewer than two disks take new segments" in ran.err) == (4, True)


def test_equal_disks_need_none(make_filled: MakeFilled) -> None:
    kept = make_filled((10, 10))
    for options in ((), ("--copy",)):
        assert "nothing to do" in started(kept.pool, *options).out
        assert running(kept.pool) is None
    kept.pool.stop()
    ran = kept.pool.cli("rebalance", "start", kept.pool.config)
    assert (ran.status, "no daemon is running" in ran.err) == (3, True), ran.err
