"""`commitlogfs explain` on real pools: the reason that is given is the one that was constructed.

The tests with `loop_pool` share one pool and leave its disks empty enough and open for the next one.
"""

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.filling import await_disk, fill_and_await, fill_to
from support.kept import KeptMount
from support.loop_disks import DiskFarm, commitlog_directories, loop_available
from support.pools import MIB, PoolMount, pool_in, segment_name
from support.waiting import eventually

from commitlogfs.mount.journal.file import read_journal

pytestmark = [pytest.mark.mounted, pytest.mark.root]

NEVER = {"interval": '"1s"', "force_after": '"24h"'}
"""Only a create that finds no room removes anything."""
SOON = {"interval": '"1s"', "force_after": '"1s"'}
HOURS = ";".join(f"{hour:02d}" for hour in range(24))
LOW = 30


@pytest.fixture(scope="module")
def farm(module_directory: Path) -> Iterator[DiskFarm]:
    lack = loop_available()
    if lack:
        pytest.skip(lack)
    with DiskFarm(module_directory / "disks") as farm:
        yield farm


@pytest.fixture(scope="module")
def loop_pool(module_directory: Path, farm: DiskFarm) -> Iterator[PoolMount]:
    """A pool of three disks of 64 MiB with segments of 1 MiB."""
    disks = commitlog_directories(*(farm.add() for _ in range(3)))
    with pool_in(module_directory, disks=disks, retention=NEVER) as pool:
        pool.start()
        yield pool


@pytest.fixture(scope="module")
def indexes() -> Iterator[int]:
    """Numbers of segments, in order, for all tests of the module."""
    return itertools.count()


def explained(pool: PoolMount, *arguments: object) -> dict[str, Any]:
    ran = pool.cli("explain", *arguments, "--json")
    assert ran.status == 0, ran.err
    document: dict[str, Any] = ran.json()
    return document


def text_of(pool: PoolMount, *arguments: object) -> str:
    return "\n".join(explained(pool, *arguments)["lines"])


def fill_all(pool: PoolMount, percent: float) -> None:
    """Fill each disk, and wait until the daemon has seen it."""
    for disk in pool.disks:
        fill_to(Path(disk).parent, percent)
    for number in range(len(pool.disks)):
        fill_and_await(pool, number, percent)


def make(pool: PoolMount, indexes: Iterator[int]) -> tuple[str, str]:
    """A new segment: its name, and the path of its disk."""
    index = next(indexes)
    pool.make_segments([index])
    return segment_name(index, MIB), str(pool.disks[pool.disk_of(index)])


def await_text(pool: PoolMount, subject: object, expected: str) -> str:
    """The explanation once it has the expected text: the daemon compares the states of disks at intervals."""

    def look() -> str:
        text = text_of(pool, subject)
        assert expected in text, text
        return text

    return eventually(look)


@pytest.fixture
def disk_1(loop_pool: PoolMount) -> Iterator[str]:
    """The path of the second disk, which gets new segments before and after the test."""
    yield str(loop_pool.disks[1])
    fill_to(loop_pool.disks[1].parent, LOW)
    await_disk(loop_pool, 1, lambda disk: disk["refusal"] is None)


def test_a_segment_placed_in_turn(loop_pool: PoolMount, indexes: Iterator[int]) -> None:
    first, second = make(loop_pool, indexes), make(loop_pool, indexes)
    found = explained(loop_pool, second[0])
    assert found["recorded"]
    assert found["daemon"]
    assert found["lines"][0].startswith(f"Segment {second[0]} is on {loop_pool.disks[1]}")
    assert found["lines"][1].endswith(
        f"{second[0]}: placed on {second[1]}, round robin, the segment before is on {first[1]}"
    )


def test_an_offset_inside_a_segment(loop_pool: PoolMount, indexes: Iterator[int]) -> None:
    name, disk = make(loop_pool, indexes)
    text = text_of(loop_pool, int(name) + 77, loop_pool.name)
    assert f"Segment {name} is on {disk}" in text
    assert f"offset {int(name) + 77} is at position 77 of it" in text


def test_an_offset_past_the_end(loop_pool: PoolMount, indexes: Iterator[int]) -> None:
    name, _ = make(loop_pool, indexes)
    text = text_of(loop_pool, int(name) + 50 * MIB)
    assert "after the newest segment" in text
    assert f"The log ends at offset {int(name) + MIB}." in text
    assert "The next create" not in text
    assert "The next create" in text_of(loop_pool, int(name) + MIB)


def test_the_next_create(loop_pool: PoolMount, indexes: Iterator[int]) -> None:
    text = text_of(loop_pool, "create")
    name, disk = make(loop_pool, indexes)
    assert f"The next create of segment {name} would go to {disk} (round robin)." in text
    assert "No create has failed since" in text


def test_a_healthy_disk(loop_pool: PoolMount) -> None:
    found = explained(loop_pool, loop_pool.disks[0])
    assert found["recorded"]
    assert f"{loop_pool.disks[0]} is rw" in found["lines"][0]
    assert "It gets new segments at least since" in "\n".join(found["lines"])


def test_a_disk_above_force(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    fill_and_await(loop_pool, 1, 86.5)  # the file of a check may go, or come, meanwhile
    names = [make(loop_pool, indexes) for _ in range(3)]
    assert disk_1 not in {disk for _, disk in names}
    assert all(f"{disk_1} (above its limit for new segments: 86" in text_of(loop_pool, name) for name, _ in names)
    text = await_text(loop_pool, disk_1, "It gets no new segments (above-force) since")
    assert f"MiB on {disk_1}, so that it is below 83 % (`resume`)" in text
    fill_and_await(loop_pool, 1, 84.5)  # below `force`, but skipped until it is below `resume`
    name = make(loop_pool, indexes)[0]
    text = text_of(loop_pool, name)
    assert f"{disk_1} (above its limit for new segments: 84" in text, text
    assert "limit 83 %" in text


def test_a_disk_without_room(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    fill_and_await(loop_pool, 1, 95)
    names = [make(loop_pool, indexes)[0] for _ in range(2)]
    assert all(f"{disk_1} (full: 9" in text_of(loop_pool, name) for name in names)
    assert "so that it is below 83 % (`resume`)" in await_text(loop_pool, disk_1, "(no-room) since")


def test_all_disks_above_force_are_used_anyway(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    fill_all(loop_pool, 87)
    name, _ = make(loop_pool, indexes)
    assert "all disks were above their limit for new segments" in text_of(loop_pool, name)
    assert "All disks are above `force`" in text_of(loop_pool, "create")
    fill_all(loop_pool, LOW)


def test_a_cordoned_disk(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    assert loop_pool.cli("disk", "cordon", 2, loop_pool.name, "--reason", "smart warns").status == 0
    names = [make(loop_pool, indexes)[0] for _ in range(2)]
    assert any(f"{disk_1} (closed for new segments: smart warns)" in text_of(loop_pool, name) for name in names)
    text = await_text(loop_pool, disk_1, "It gets no new segments (cordoned) since")
    assert "To change it: `commitlogfs disk uncordon 2`." in text
    assert loop_pool.cli("disk", "uncordon", 2, loop_pool.name).status == 0
    await_text(loop_pool, disk_1, "It gets new segments since")


def test_a_create_that_no_disk_takes(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    fill_all(loop_pool, 99.5)
    index = next(indexes)
    for _ in range(20):
        with pytest.raises(OSError, match="No space"):
            loop_pool.make_segments([index])
    refusals = loop_pool.ask("decisions", kind="refused")["decisions"]
    assert len(refusals) == 1, "equal refusals are recorded once a minute"
    assert refusals[0]["segment"] == segment_name(index, MIB)
    text = text_of(loop_pool, "create")
    assert f"The next create of segment {segment_name(index, MIB)} would fail: no disk takes a segment." in text
    assert text.count("so that it is below 83 % (`resume`)") == 3
    assert f"no disk took it: {loop_pool.disks[0]} (full: 99" in text
    fill_all(loop_pool, LOW)
    loop_pool.make_segments([index])


def test_a_segment_removed_by_the_broker(loop_pool: PoolMount, indexes: Iterator[int]) -> None:
    oldest = sorted(os.listdir(loop_pool.mountpoint))[0]
    (loop_pool.mountpoint / oldest).unlink()
    text = text_of(loop_pool, oldest)
    assert f"Segment {oldest} is gone: removed by a caller of the mount (unlink)" in text
    status = " ".join(loop_pool.cli("status", loop_pool.config).out.split())
    removed = (
        r"in the last hour, as by the broker: \d+ segments?.*, the latest at \S+ \S+ \(statfs shows \d+ % used\)"
    )
    assert re.search(removed, status), status
    assert f"{oldest}: placed on" in text


def test_a_segment_removed_for_a_create(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    fill_all(loop_pool, 90.5)
    oldest = sorted(os.listdir(loop_pool.mountpoint))[0]
    make(loop_pool, indexes)
    assert f"Segment {oldest} is gone: removed by the rule `full`" in text_of(loop_pool, oldest)
    fill_all(loop_pool, LOW)


def test_a_segment_moved_by_a_drain(loop_pool: PoolMount, indexes: Iterator[int], disk_1: str) -> None:
    while (found := make(loop_pool, indexes))[1] != disk_1:
        pass
    for _ in range(4):  # the newest ones are not moved
        make(loop_pool, indexes)
    assert loop_pool.cli("disk", "drain", 2, loop_pool.name, "--rate", "1GiB").status == 0
    text = await_text(loop_pool, found[0], f"{found[0]}: moved from {disk_1} to ")
    assert f"placed on {disk_1}" in text
    assert f"is on {disk_1}" not in text.splitlines()[0]
    assert "`commitlogfs disk cancel 2`" in await_text(
        loop_pool, disk_1, "It gets no new segments (cordoned) since"
    )
    assert loop_pool.cli("disk", "cancel", 2, loop_pool.name).status == 0


def test_removals_by_force_and_by_age_and_an_older_log(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    pool = make_pool(disks=commitlog_directories(disk_farm.add(), disk_farm.add()), retention=NEVER)
    pool.start()
    pool.make_segments(range(16))
    pool.path(0).unlink()
    pool.stop()
    assert not list(pool.runtime.glob("*.journal"))
    pool.retention = {**SOON, "mode": '"filesystem"', "reserved": '"1h"', "delete_when": f'"{HOURS}"'}
    pool.start()

    found = explained(pool, segment_name(7, MIB))
    assert not found["recorded"]
    text = "\n".join(found["lines"])
    assert "Why it is there is not recorded: the journal begins at" in text
    assert f"Derived, not recorded: round robin, and the segment before it is on {pool.disks[0]}" in text
    assert f"so it belongs on {pool.disks[1]}." in text
    gone = explained(pool, 0)
    assert not gone["recorded"]
    assert "Its removal is not recorded: the journal begins at" in "\n".join(gone["lines"])

    os.utime(pool.path(1), (0, time.time() - 7200))
    await_text(pool, MIB, f"Segment {segment_name(1, MIB)} is gone: removed by the rule `age`")
    fill_all(pool, 85.5)
    await_text(pool, 2 * MIB, f"Segment {segment_name(2, MIB)} is gone: removed by the rule `force`")


def test_a_disk_that_has_turned_read_only(loop_pool: PoolMount, farm: DiskFarm, indexes: Iterator[int]) -> None:
    disk = str(loop_pool.disks[2])
    farm.disks[2].turn_read_only()
    names = [make(loop_pool, indexes) for _ in range(4)]
    assert disk not in {where for _, where in names}
    texts = [text_of(loop_pool, name) for name, _ in names]
    assert any(f"{disk} (failed a moment ago" in text and "ead-only file" in text for text in texts), texts
    await_text(loop_pool, disk, "It gets no new segments (in-backoff) since")


def test_a_disk_that_has_vanished(loop_pool: PoolMount, farm: DiskFarm, indexes: Iterator[int]) -> None:
    disk = str(loop_pool.disks[1])
    farm.disks[1].detach()
    text = await_text(loop_pool, disk, f"{disk} is vanished")
    assert "To change it: mount the disk there again." in text
    name, _ = make(loop_pool, indexes)
    assert f"{disk} (not writable: vanished)" in text_of(loop_pool, name)


def test_a_gap(mounted: PoolMount) -> None:
    pool = mounted
    pool.make_segments(range(6))
    pool.stop()
    (pool.disks[2] / segment_name(2, MIB)).unlink()
    pool.settings["on_missing"] = '"degraded"'
    pool.start()
    found = explained(pool, segment_name(2, MIB))
    text = "\n".join(found["lines"])
    assert not found["recorded"]
    assert "is not in the log: in a gap of the log" in text
    assert "Its removal is not recorded" in text
    assert "`commitlogfs restore` closes gaps" in text
    pool.path(4).unlink()
    text = text_of(pool, segment_name(4, MIB))
    assert "is gone: removed by a caller of the mount" in text
    assert "It is in a gap of the log" in text


def test_what_is_not_there_is_a_usage_error(mounted: PoolMount) -> None:
    for subject in ("/nowhere", "9" * 21, "nonsense", "-1"):
        ran = mounted.cli("explain", subject)
        assert ran.status == 2, ran.err
        assert len(ran.err.splitlines()) == 1, ran.err
    ran = mounted.cli("explain", "/nowhere")
    assert (
        ran.err
        == f"commitlogfs: /nowhere: not a disk of test; its disks are {', '.join(map(str, mounted.disks))}\n"
    )


def test_the_journal_survives_killed_daemons(make_pool: Callable[..., PoolMount]) -> None:
    kept = KeptMount(make_pool(3))
    kept.start()
    pool = kept.pool
    pool.make_segments(range(4))
    pool.path(0).unlink()
    name = segment_name(3, MIB)
    before = pool.ask("decisions", segment=name)["decisions"]
    kept.kill()
    dead = explained(pool, name)
    assert not dead["daemon"]
    assert dead["decisions"] == before
    assert "No daemon answers, so it is not known whether" in "\n".join(dead["lines"])
    assert "From the journal only: " in pool.cli("explain", name).out
    assert "removed by a caller" in text_of(pool, MIB // 2)
    assert pool.cli("explain", "/nowhere").status == 2
    former = kept.daemon
    kept.go_on()
    assert pool.ask("decisions", segment=name)["decisions"] == before
    (takeover,) = pool.ask("decisions", kind="takeover")["decisions"]
    assert takeover["facts"] == {"pid": kept.daemon, "segment_size": MIB}
    assert kept.daemon != former
    pool.make_segments([4])
    newest, *_, oldest = pool.ask("decisions")["decisions"]
    assert (newest["segment"], newest["kind"]) == (segment_name(4, MIB), "placed")
    assert oldest["kind"] == "mounted"
    path = pool.runtime / "test.journal"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_journal(path) is not None
    assert pool.cli("umount", pool.mountpoint).status == 0
    eventually(lambda: not path.exists())


def test_decisions_are_selected_and_limited(mounted: PoolMount) -> None:
    mounted.make_segments(range(5))
    assert len(mounted.ask("decisions", limit=2)["decisions"]) == 2
    placed = mounted.ask("decisions", kind="placed", disk=str(mounted.disks[0]))["decisions"]
    assert [one["segment"] for one in placed] == [segment_name(3, MIB), segment_name(0, MIB)]
    for wrong in ({"limit": -1}, {"limit": "x"}, {"kind": "nonsense"}, {"segment": 7}, {"disk": ["x"]}):
        with pytest.raises(Exception, match="correct the request"):
            mounted.ask("decisions", **wrong)
