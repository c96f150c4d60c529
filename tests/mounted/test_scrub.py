"""Scrubs of a mounted pool: every damage is found and named, and nothing that is right is reported."""

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import checksums, page_cache, repairs, scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.loop_disks import DiskFarm, commitlog_directories
from support.pools import MIB, PoolMount
from support.records import make_record, make_sealed
from support.scrubs import damaged, records_of, scrub
from support.timings import BRISK, timing_variables
from support.waiting import eventually

from commitlogfs.bench.page_cache import cached_pages_of
from commitlogfs.mount.preflight.inspection import inspect_pool
from commitlogfs.store import layout
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.pool.open import OnMissing
from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.timing import VerdictTiming

pytestmark = [pytest.mark.mounted, pytest.mark.root]

COUNT = 9
SEALED = range(COUNT - NEWEST)


@pytest.fixture
def filled(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Nine segments of records on three disks; all sealed ones have a checksum."""
    pool = make_pool(3)
    pool.start()
    scrubs.fill(pool, range(COUNT))
    await_checksums(pool, len(SEALED))
    return pool


def content_of(pool: PoolMount, index: int) -> bytes:
    return make_sealed(index * pool.segment_size, pool.segment_size)


@page_cache.kept()
def test_a_sound_log_has_no_verdict(filled: PoolMount) -> None:
    before = [cached_pages_of([backing(filled, index)]) for index in range(COUNT)]
    assert scrub(filled) == {}
    assert scrub(filled, "--messages") == {}
    report = scrubs.report(filled)
    assert (report["state"], report["left_bytes"], report["done_bytes"]) == ("done", 0, len(SEALED) * MIB)
    assert report["completed"] >= report["since"]
    metrics = filled.metrics()
    assert 'commitlogfs_scrub_bytes_total{pool="test"} 1.2582912e+07' in metrics
    assert 'commitlogfs_scrub_errors_total{kind="rotted",pool="test"} 0.0' in metrics
    assert 'commitlogfs_scrub_running{pool="test"} 0.0' in metrics
    after = [cached_pages_of([backing(filled, index)]) for index in range(COUNT)]
    assert all(now <= then for now, then in zip(after, before, strict=True))
    assert any(now == then > 0 for now, then in zip(after, before, strict=True)), "none has kept its pages"
    filled.require_logged("event=scrubbed")


def test_each_kind_of_damage_is_named(filled: PoolMount) -> None:
    size = filled.segment_size
    records = [records_of(content_of(filled, index), index * size) for index in SEALED]
    body, header, padding, zeroed, size_field, properties = SEALED
    scrubs.flip(backing(filled, body), records[body][7].position + 100)
    scrubs.flip(backing(filled, header), records[header][7].position + 45)  # the born timestamp
    scrubs.flip(backing(filled, padding), size - 1)
    scrubs.damage(backing(filled, zeroed), 40 * 4096, bytes(4096))
    scrubs.flip(backing(filled, size_field), records[size_field][7].position + 3)
    scrubs.flip(backing(filled, properties), records[properties][7].end - 3)
    scrubs.flip(backing(filled, COUNT - 1), 200)  # among the newest: it is not read

    found = scrub(filled)
    names = [filled.path(index).name for index in SEALED]
    assert {name: one["kind"] for name, one in found.items()} == {
        names[body]: "rotted",
        names[header]: "header-or-padding",
        names[padding]: "header-or-padding",
        names[zeroed]: "rotted",
        names[size_field]: "rotted",
        names[properties]: "header-or-padding",
    }
    for index in (body, size_field):
        seventh = records[index][7]
        one = found[names[index]]
        assert one["ranges"] == [[index * size + seventh.position, index * size + seventh.end]]
        assert one["messages"] == [
            {
                "log_offset": index * size + seventh.position,
                "topic": "TopicTest",
                "queue_id": 3,
                "queue_offset": seventh.record.queue_offset,
            }
        ]
        assert one["disk"] == str(filled.disks[filled.disk_of(index)])
    hit = [p for p in records[zeroed] if p.position < 41 * 4096 and p.end > 40 * 4096]
    (begin, _) = found[names[zeroed]]["ranges"][0]
    assert begin == zeroed * size + hit[0].position
    assert found[names[zeroed]]["ranges"][-1][1] == zeroed * size + hit[-1].end
    assert found[names[zeroed]]["messages"][0]["queue_offset"] == hit[0].record.queue_offset
    assert not found[names[header]]["located"]

    shown = filled.cli("scrub", "status", filled.name)
    assert shown.status == 1
    assert f"{names[body]}: rotted" in shown.out
    assert "TopicTest queue 3 offset 7" in shown.out
    findings = [one for one in filled.ask("status")["findings"] if one["code"] == "damaged-segment"]
    assert [one["file"] for one in findings] == names
    assert 'commitlogfs_scrub_errors_total{kind="rotted",pool="test"} 3.0' in filled.metrics()
    eventually(lambda: filled.log_since_start().count("event=segment_damaged") == len(SEALED))


def test_a_verdict_stays_until_it_is_cleared(filled: PoolMount) -> None:
    right = content_of(filled, 1)
    scrubs.flip(backing(filled, 1), 100)
    name = filled.path(1).name
    assert list(scrub(filled)) == [name]
    eventually(lambda: damaged(filled)[name]["recorded"])
    assert scrubs.has_verdict(filled, 1)
    scrubs.damage(backing(filled, 1), 100, right[100:101])  # well again: a disk that cannot be trusted
    first = damaged(filled)
    assert scrub(filled) == first
    filled.restart()
    eventually(lambda: damaged(filled) == first)
    assert filled.cli("scrub", "clear", filled.name, "--dry-run").status == 0
    assert damaged(filled) == first
    assert filled.cli("scrub", "clear", filled.name, "--segment", filled.path(2).name).status == 4
    assert filled.cli("scrub", "clear", filled.name, "--segment", name).status == 0
    assert damaged(filled) == {}
    filled.require_logged(f"event=verdict_cleared segment={name} ")
    assert not scrubs.has_verdict(filled, 1)
    assert scrub(filled) == {}


@pytest.mark.parametrize("position", [100, -3])
def test_damage_is_found_again_after_touch_and_clear(filled: PoolMount, position: int) -> None:
    """In a body, or in properties: the checksum from before stays that of the segment."""
    right = content_of(filled, 1)
    end = records_of(right, MIB)[3].end
    scrubs.flip(backing(filled, 1), position if position > 0 else end + position)
    first = scrub(filled)
    os.utime(filled.path(1))
    assert filled.cli("scrub", "clear", filled.name).status == 0
    assert damaged(filled) == {}
    eventually(lambda: checksums.is_valid(backing(filled, 1)))
    assert [one["kind"] for one in scrub(filled).values()] == [one["kind"] for one in first.values()]


@pytest.mark.parametrize("records", [0, 50])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_segment_that_was_cut_is_found_and_repaired(
    filled: PoolMount, workdir: Path, *, is_known: bool, records: int
) -> None:
    """At the border of a record, and with its mtime: only its size shows it. The daemon may have seen the size."""
    slave = repairs.make_slave(filled, workdir / "slave", range(COUNT))
    path, status = backing(filled, 1), backing(filled, 1).stat()
    end = records_of(content_of(filled, 1), MIB)[records].position
    os.truncate(path, end)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    if is_known:
        filled.path(1).touch()  # before it computes a checksum, the daemon reads the size
        eventually(lambda: filled.ask("status")["segments"]["unsized"] == 1)
    ((name, found),) = scrub(filled).items()
    assert (name, found["kind"], found["ranges"]) == (path.name, "rotted", [[MIB + end, 2 * MIB]])
    assert scrub(filled)[name]["ranges"] == found["ranges"]
    assert "1 segment repaired" in repairs.restore(filled, "--from", slave)
    assert filled.path(1).read_bytes() == content_of(filled, 1)
    assert damaged(filled) == {}


def test_what_was_appended_to_a_segment_is_no_damage(filled: PoolMount) -> None:
    """It is no part of the log; the daemon cuts it off when it reads the size, as before it computes a checksum."""
    path = backing(filled, 1)
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert scrub(filled) == {}
    filled.path(1).touch()
    eventually(lambda: path.stat().st_size == MIB)
    filled.require_logged("event=cut_to_size")
    await_checksums(filled, len(SEALED))
    assert scrub(filled) == {}


def test_files_with_exchanged_names_are_found_and_repaired(
    make_pool: Callable[..., PoolMount], workdir: Path
) -> None:
    pool = make_pool(3)
    pool.start()
    scrubs.fill(pool, range(COUNT))
    contents = content_of(pool, 1), make_sealed(4 * MIB, MIB, topic=b"WithOtherLengths")
    checksums.write(pool.path(4), contents[1], checksums.LONG_AGO_NS)
    await_checksums(pool, len(SEALED))
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    (slave / pool.path(4).name).write_bytes(contents[1])
    pool.stop()
    one, other = backing(pool, 1), backing(pool, 4)
    assert one.parent == other.parent
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    pool.start()
    await_checksums(pool, len(SEALED))
    found = scrub(pool)
    assert {name: one["kind"] for name, one in found.items()} == dict.fromkeys(
        (one.name, other.name), "written-broken"
    )
    assert "2 segments repaired" in repairs.restore(pool, "--from", slave)
    assert (pool.path(1).read_bytes(), pool.path(4).read_bytes()) == contents
    assert damaged(pool) == {}


def found_offline(pool: PoolMount) -> dict[str, dict[str, str]]:
    """The findings of `check` about damage, by file; there are no other warnings."""
    ran = pool.cli("check", pool.config, "--json")
    findings = [finding for finding in ran.json()["findings"] if finding["severity"] != "note"]
    assert ran.status == bool(findings), ran.out
    assert {finding["code"] for finding in findings} <= {"damaged-segment"}
    return {finding["file"]: finding for finding in findings}


def test_check_names_damaged_segments_without_a_mount(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    pool = make_pool(disks=commitlog_directories(disk_farm.add(), disk_farm.add()))
    pool.start()
    scrubs.fill(pool, range(COUNT))
    await_checksums(pool, len(SEALED))
    first, second = pool.path(1).name, pool.path(2).name
    for index in (1, 2):
        scrubs.flip(backing(pool, index), 100)
    assert scrub(pool).keys() == {first, second}
    eventually(lambda: scrubs.has_verdict(pool, 1) and scrubs.has_verdict(pool, 2))
    of_status = {one["file"]: one for one in pool.ask("status")["findings"] if one["code"] == "damaged-segment"}
    path = backing(pool, 2)
    pool.stop()
    assert found_offline(pool) == of_status
    os.setxattr(path, layout.XATTR_VERDICT, os.getxattr(path, layout.XATTR_VERDICT)[:-1])
    assert "a record of damage that cannot be read" in found_offline(pool)[second]["message"]
    shown = pool.cli("check", pool.config)
    assert (shown.status, f"{first}: has changed since it was sealed" in " ".join(shown.out.split())) == (1, True)
    for index in (1, 2):
        os.removexattr(backing(pool, index), layout.XATTR_VERDICT)
    assert found_offline(pool) == {}


def test_check_says_if_a_disk_cannot_tell(filled: PoolMount, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = filled
    pool.stop()

    def failing(path: str, **_: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "listxattr", failing)
    specs = tuple(DiskSpec(str(path), Thresholds()) for path in pool.disks)
    found = inspect_pool(specs, pool.segment_size, OnMissing.REFUSE, "test", is_thorough=True)
    damaged = [finding for finding in found.findings if finding.code is FindingCode.DAMAGED_SEGMENT]
    assert [finding.file for finding in damaged] == [pool.path(index).name for index in (0, 1, 2)]
    assert all("as of 2 more segments of this disk" in finding.text for finding in damaged)


def restarted(pool: PoolMount, start_s: float) -> None:
    """With a daemon that reads after this time what former ones have recorded."""
    pool.variables |= timing_variables(replace(BRISK, verdicts=VerdictTiming(start_s=start_s)))
    pool.restart()


def test_after_a_start_both_wait_for_what_is_recorded(filled: PoolMount) -> None:
    pool = filled
    scrubs.flip(backing(pool, 1), 100)
    assert scrub(pool).keys() == {pool.path(1).name}
    eventually(lambda: scrubs.has_verdict(pool, 1))
    restarted(pool, 2.5)
    shown = pool.cli("scrub", "status", pool.name)
    assert (shown.status, f"{pool.path(1).name}: rotted" in shown.out) == (1, True)
    restarted(pool, 2.5)
    cleared = pool.cli("scrub", "clear", pool.name, "--segment", pool.path(1).name)
    assert (cleared.status, cleared.out + cleared.err) == (0, "test: 1 verdict removed\n")


@pytest.mark.full
def test_a_disk_that_has_not_answered_is_named(filled: PoolMount) -> None:
    """Nothing says that all is well before the disks have answered which segments are damaged."""
    pool = filled
    scrubs.flip(backing(pool, 1), 100)
    scrub(pool)
    eventually(lambda: scrubs.has_verdict(pool, 1))
    restarted(pool, 1e9)
    said = "has not answered yet which segments are damaged; repeat the command"
    disks = [str(disk) for disk in pool.disks]
    shown, listed = pool.cli("scrub", "status", pool.name), pool.cli("scrub", "status", pool.name, "--json")
    assert (shown.status, shown.err.count(said), listed.status) == (1, 3, 1)
    assert listed.json()["scrub"]["unknown"] == scrubs.report(pool)["unknown"] == disks
    cleared = pool.cli("scrub", "clear", pool.name)
    assert (cleared.status, cleared.err.count(said)) == (1, 3)
    named = pool.cli("scrub", "clear", pool.name, "--segment", pool.path(1).name)
    assert (named.status, said in named.err) == (4, True)
    ran = pool.cli("scrub", "start", pool.name, "--rate", scrubs.FAST, "--wait")
    assert (ran.status, "no segment is damaged" in ran.out) == (1, False)
    pool.cli("scrub", "clear", pool.name)
    ran = pool.cli("scrub", "status", pool.name, "--wait")
    assert (ran.status, ran.err.count(said)) == (1, 3)
    assert f"Damaged segments: not known yet of {', '.join(disks)}" in " ".join(
        pool.cli("status", pool.name).out.split()
    )
    assert f'commitlogfs_damage_known{{disk="{disks[0]}",pool="test"}} 0.0' in pool.metrics()
    restarted(pool, 0.1)
    eventually(lambda: scrubs.report(pool)["unknown"] == [])
    assert f'commitlogfs_damage_known{{disk="{disks[0]}",pool="test"}} 1.0' in pool.metrics()


def test_segments_without_checksum_are_judged_by_their_records(make_pool: Callable[..., PoolMount]) -> None:
    """On a disk that is read-only, none gets a checksum, and the verdict is known to the daemon only."""
    pool = make_pool(2, disk_settings={1: {"readonly": "true"}})
    contents = {index: bytearray(content_of(pool, index)) for index in range(COUNT)}
    on_it = [1, 3, 5]
    contents[1][records_of(bytes(contents[1]), MIB)[3].position + 100] ^= 1
    middle = records_of(bytes(contents[3]), 3 * MIB)[50]
    contents[3][middle.position :] = bytes(MIB - middle.position)  # sealed early
    contents[5][:] = bytes(MIB)  # never written to
    for index, content in contents.items():
        path = pool.disks[index % 2] / pool.path(index).name
        path.write_bytes(content)
        os.utime(path, ns=(checksums.LONG_AGO_NS, checksums.LONG_AGO_NS))
    pool.start()
    await_checksums(pool, len(SEALED) - len(on_it))
    found = scrub(pool)
    assert {name: one["kind"] for name, one in found.items()} == {pool.path(1).name: "written-broken"}
    assert [one["queue_offset"] for one in found[pool.path(1).name]["messages"]] == [3]
    assert not scrubs.has_verdict(pool, 1)


def test_messages_finds_what_was_written_broken(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    scrubs.fill(pool, range(6))
    broken = bytearray(content_of(pool, 2))
    broken[records_of(bytes(broken), 2 * MIB)[3].position + 100] ^= 1
    checksums.write(pool.path(2), bytes(broken), checksums.LONG_AGO_NS)
    await_checksums(pool, 3)
    assert scrub(pool) == {}
    assert [one["kind"] for one in scrub(pool, "--messages").values()] == ["written-broken"]
    assert pool.cli("scrub", "clear", pool.name).status == 0
    assert scrub(pool) == {}
    assert [one["kind"] for one in scrub(pool, "--messages").values()] == ["written-broken"]


def test_ranges_that_a_move_could_not_read_are_found_again(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    scrubs.fill(pool, range(6))
    pool.stop()
    path = backing(pool, 1)
    os.removexattr(path, layout.XATTR_CHECKSUM) if layout.XATTR_CHECKSUM in os.listxattr(path) else None
    scrubs.damage(path, 8 * 4096, bytes(4096))
    os.setxattr(path, layout.XATTR_UNREADABLE, b"[[32768,36864]]")
    pool.start()
    records = records_of(content_of(pool, 1), MIB)
    (lost,) = [placed for placed in records if placed.position < 9 * 4096 and placed.end > 8 * 4096][:1]
    for _ in range(2):
        found = scrub(pool)[path.name]
        (begin, end), *_ = found["ranges"]
        assert (found["kind"], begin) == ("unreadable", MIB + lost.position)
        assert end >= MIB + 9 * 4096
        assert lost.record.queue_offset in [one["queue_offset"] for one in found["messages"]]
        assert pool.cli("scrub", "clear", pool.name).status == 0
        assert damaged(pool) == {}
    scrubs.damage(path, 20 * 4096, bytes(4096))
    found = scrub(pool)[path.name]
    assert found["kind"] == "unreadable"
    assert [begin < MIB + 9 * 4096 for begin, _ in found["ranges"]] == [True, False]


def test_a_segment_that_is_written_meanwhile_is_not_judged(filled: PoolMount) -> None:
    """A broker that cuts the log stores to an old segment."""
    with filled.path(1).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        assert filled.cli("scrub", "start", filled.name, "--rate", "1MiB").status == 0
        for number in range(40):
            record = make_record(MIB, body=b"%d" % number)
            mapping[: len(record)] = record
            mapping.flush()
        assert filled.cli("scrub", "start", filled.name, "--rate", scrubs.FAST).status == 0
        scrubs.await_state(filled, "done")
    assert {one["kind"] for one in damaged(filled).values()} <= {"written-broken"}


def test_pause_resume_cancel(filled: PoolMount) -> None:
    filled.cli("scrub", "start", filled.name, "--rate", "16KiB")
    assert scrubs.report(filled)["state"] == "running"
    ran = filled.cli("scrub", "pause", filled.name)
    assert (ran.status, "the scrub is paused" in ran.err + ran.out) == (0, True)
    assert filled.cli("scrub", "start", filled.name).status == 4
    filled.restart()
    scrubs.await_state(filled, "paused")
    assert scrubs.report(filled)["rate"] == 16384
    assert filled.cli("scrub", "resume", filled.name, "--rate", scrubs.FAST, "--wait").status == 0
    assert scrubs.report(filled)["state"] == "done"
    assert filled.cli("scrub", "resume", filled.name).status == 4
    filled.cli("scrub", "start", filled.name, "--rate", "16KiB")
    assert filled.cli("scrub", "cancel", filled.name, "--dry-run").status == 0
    assert scrubs.report(filled)["state"] == "running"
    assert filled.cli("scrub", "cancel", filled.name).status == 0
    filled.restart()
    scrubs.await_state(filled, "cancelled")
    assert filled.cli("scrub", "cancel", filled.name).status == 0


@pytest.mark.timing
def test_the_time_left_is_right_from_a_tenth_on(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2, segment_size=4 * MIB)
    pool.start()
    scrubs.fill(pool, range(13))
    await_checksums(pool, 10)
    pool.cli("scrub", "start", pool.name, "--rate", "2MiB")
    seen: list[tuple[float, float, float]] = []

    def ended() -> bool:
        document = pool.ask("status")
        report = document["scrub"]
        done = report["done_bytes"] / (report["done_bytes"] + report["left_bytes"])
        seen.append((document["composed_at"], done, report["eta_seconds"] or 0.0))
        return bool(report["state"] == "done")

    eventually(ended)
    end_s, whole_s = seen[-1][0], seen[-1][0] - seen[0][0]
    wrong = [
        (done, eta, end_s - at)
        for at, done, eta in seen
        if 0.1 <= done < 1 and abs(at + eta - end_s) > whole_s / 10
    ]
    assert not wrong, (whole_s, wrong[:5])


def test_dry_run_and_json(filled: PoolMount) -> None:
    ran = filled.cli("scrub", "start", filled.name, "--dry-run", "--json")
    answer = ran.json()
    assert (ran.status, answer["segments"], answer["bytes"]) == (0, len(SEALED), len(SEALED) * MIB)
    assert answer["scrub"]["state"] == "none"
    assert filled.cli("scrub", "status", filled.name, "--json").json()["scrub"]["damaged"] == []
    assert "6 segments" in filled.cli("scrub", "start", filled.name, "--dry-run").out


def test_a_removed_segment_takes_its_verdict_along(filled: PoolMount, workdir: Path) -> None:
    scrubs.flip(backing(filled, 0), 100)
    assert list(scrub(filled)) == [filled.path(0).name]
    filled.path(0).unlink()
    assert damaged(filled) == {}
