"""The records of a disk's files are found after the start of a daemon, although the disk fails at that moment."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from support.pooled import PATIENT, SIZE, Parts, make, open_parts, place, segment
from support.waiting import until

from commitlogfs.fusefs.integrity.recorded import Recorded
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.moves.salvaged import Salvaged
from commitlogfs.store import layout
from commitlogfs.store.disks.membership import Cordon, DiskNumber
from commitlogfs.store.scrub.recorded import write_verdict
from commitlogfs.store.scrub.verdict import (
    Kind,
    Message,
    Range,
    Verdict,
    format_verdict,
    parse_verdict,
    whole_verdict,
)

COUNT = 9
DAMAGED, SALVAGED = 1, 4
"""Both lie on the second disk."""


class Failing:
    """Attributes of files on some disks, and of some files, cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.descriptors: set[int] = set()
        self.paths: set[str] = set()
        self.tried = 0
        listxattr = os.listxattr

        def listing(file: str | int, *, follow_symlinks: bool = True) -> list[str]:
            path = str(file)
            is_on_disk = any(path.startswith(f"/proc/self/fd/{dirfd}/") for dirfd in self.descriptors)
            if is_on_disk or path in self.paths:
                self.tried += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return listxattr(file, follow_symlinks=follow_symlinks)

        monkeypatch.setattr(os, "listxattr", listing)


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    verdicts = replace(PATIENT.verdicts, start_s=0.01, retry_s=0.01, longest_retry_s=0.01)
    with open_parts(workdir, timing=replace(PATIENT, verdicts=verdicts)) as parts:
        for index in range(COUNT):
            trio.run(make, parts, index)
        damaged = segment(parts, DAMAGED)
        dirfd = parts.commitlog.disk_of(damaged).dirfd
        write_verdict(dirfd, damaged.name, damaged.ino, whole_verdict(Kind.ROTTED, SIZE, 5))
        os.setxattr(place(parts, SALVAGED), layout.XATTR_UNREADABLE, b"[[0, 4096]]")
        yield parts


def damaged_names(parts: Parts) -> list[bytes]:
    return [found.name for found, _ in parts.verdicts.present()]


def test_all_records_are_found_in_one_pass(parts: Parts) -> None:
    trio.run(Recorded(parts.commitlog, parts.threads, parts.verdicts, parts.salvaged.record_found).find)
    assert damaged_names(parts) == [segment(parts, DAMAGED).name]
    assert parts.salvaged.present() == [(SALVAGED * SIZE, SALVAGED * SIZE + 4096)]


def test_those_of_a_disk_in_trouble_are_found_when_it_is_well(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(monkeypatch)
    failing.descriptors.add(parts.commitlog.disks[DiskNumber(2)].dirfd)
    recorded = Recorded(parts.commitlog, parts.threads, parts.verdicts, parts.salvaged.record_found)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorded.find)
            await until(lambda: failing.tried >= COUNT)
            assert not parts.verdicts.present()
            failing.descriptors.clear()

    with caplog.at_level("INFO"):
        trio.run(run)
    assert damaged_names(parts) == [segment(parts, DAMAGED).name]
    assert parts.salvaged.present()
    assert [record.__dict__["event"] for record in caplog.records] == ["records_not_read", "records_read"]


def test_a_record_that_cannot_be_read_is_a_verdict(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    damaged, salvaged = segment(parts, DAMAGED), segment(parts, SALVAGED)
    verdict = bytearray(os.getxattr(place(parts, DAMAGED), layout.XATTR_VERDICT))
    verdict[-1] ^= 1
    os.setxattr(place(parts, DAMAGED), layout.XATTR_VERDICT, bytes(verdict))
    os.setxattr(place(parts, SALVAGED), layout.XATTR_UNREADABLE, b"?")
    trio.run(Recorded(parts.commitlog, parts.threads, parts.verdicts, parts.salvaged.record_found).find)
    found = [(one, verdict.kind, verdict.is_located) for one, verdict in parts.verdicts.present()]
    assert found == [(damaged, Kind.UNKNOWN, False), (salvaged, Kind.UNKNOWN, False)]
    assert os.getxattr(place(parts, DAMAGED), layout.XATTR_VERDICT) == verdict
    events = [record.__dict__ for record in caplog.records]
    logged = [event["fields"] for event in events if event["event"] == "record_illegible"]
    assert {fields["path"]: fields["reason"] for fields in logged} == {
        str(place(parts, DAMAGED)): "the verdict is damaged",
        str(place(parts, SALVAGED)): "the record of unreadable ranges is damaged",
    }


def test_a_verdict_of_this_daemon_is_combined_with_the_recorded_one(parts: Parts) -> None:
    damaged = segment(parts, DAMAGED)
    parts.verdicts.record(damaged, whole_verdict(Kind.UNREADABLE, SIZE, 9))
    trio.run(Recorded(parts.commitlog, parts.threads, parts.verdicts, parts.salvaged.record_found).find)
    ((found, verdict),) = parts.verdicts.present()
    assert (found, verdict.kind, verdict.since_s) == (damaged, Kind.ROTTED, 5)


async def serve_until_all_is_recorded(parts: Parts) -> None:
    """The order of a daemon's start: the cordons are known before the records are read."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.verdicts.run)
        nursery.start_soon(parts.lost_writes.run, lambda _: False)
        await until(lambda: bool(parts.verdicts.present()))
        await until(lambda: not any(parts.verdicts.unrecorded_on(number) for number in parts.commitlog.disks))
        await parts.recorded.find()
        await until(lambda: not any(parts.verdicts.unrecorded_on(number) for number in parts.commitlog.disks))
        nursery.cancel_scope.cancel()


def test_a_cordon_for_lost_writes_leaves_the_record_of_where_they_were(parts: Parts) -> None:
    damaged = segment(parts, DAMAGED)
    verdict = Verdict(Kind.WRITE_LOST, 5, (Range(100, 200),), (Message(100, "topic", 1, 7),), 1)
    os.setxattr(place(parts, DAMAGED), layout.XATTR_VERDICT, format_verdict(verdict))
    parts.commitlog.disk_of(damaged).cordon = Cordon(9, f"lost writes of {damaged.name.decode()}")
    trio.run(serve_until_all_is_recorded, parts)
    assert parts.verdicts.present() == [(damaged, verdict)]
    assert parse_verdict(os.getxattr(place(parts, DAMAGED), layout.XATTR_VERDICT)) == verdict


def test_a_record_of_a_newer_version_moves_along(parts: Parts) -> None:
    newer = b"\x02newer"
    os.setxattr(place(parts, DAMAGED), layout.XATTR_VERDICT, newer)
    trio.run(parts.attributes.refresh, segment(parts, DAMAGED))
    trio.run(parts.recorded.find)
    trio.run(parts.mover.move, segment(parts, DAMAGED), DiskNumber(1), lambda: 0, lambda: True)
    moved = segment(parts, DAMAGED)
    assert moved.disk == 1
    trio.run(parts.verdicts.record_on_disk, moved)
    assert parts.verdicts.is_recorded(moved)
    assert parts.verdicts.kind_of(moved) is Kind.UNKNOWN
    assert os.getxattr(place(parts, DAMAGED), layout.XATTR_VERDICT) == newer


def test_a_source_that_a_former_daemon_left_has_its_verdict_when_it_is_put_back(parts: Parts) -> None:
    async def run() -> None:
        source = segment(parts, DAMAGED)
        with place(parts, DAMAGED).open("r+b", buffering=0) as opened:
            await parts.attributes.refresh(source)
            await parts.mover.move(source, DiskNumber(1), lambda: 0, lambda: True)
            await parts.sources.finish()
            is_in_flight = parts.changes.is_in_flight
            parts.verdicts = Verdicts(parts.commitlog, parts.threads, is_in_flight)  # those of the next daemon
            verdicts, found = parts.verdicts, Verdict(Kind.UNREADABLE, 5, (Range(0, 200),))
            path = parts.directories[source.disk - 1] / os.fsdecode(source.path)
            os.setxattr(path, layout.XATTR_VERDICT, format_verdict(found))
            await Recorded(parts.commitlog, parts.threads, verdicts, parts.salvaged.record_found).find()
            assert verdicts.kind_of(segment(parts, DAMAGED)) is Kind.ROTTED  # that of the copy
            opened.write(b"\0")
            assert await parts.sources.put_back_if_changed(source)
            assert verdicts.present() == [(source, found)]

    trio.run(run)


@pytest.mark.parametrize("is_former", [True, False])
def test_lost_ranges_of_a_source_are_known_when_it_is_put_back(parts: Parts, *, is_former: bool) -> None:
    """Whichever daemon has moved the segment. Its copy has them meanwhile."""
    lost = [(SALVAGED * SIZE, SALVAGED * SIZE + 4096)]

    async def run() -> None:
        source = segment(parts, SALVAGED)
        await parts.recorded.find()
        with place(parts, SALVAGED).open("r+b", buffering=0) as opened:
            await parts.attributes.refresh(source)
            await parts.mover.move(source, DiskNumber(1), lambda: 0, lambda: True)
            await parts.sources.finish()
            salvaged = parts.salvaged
            if is_former:  # what the next daemon finds
                salvaged = Salvaged(parts.commitlog)
                await Recorded(parts.commitlog, parts.threads, parts.verdicts, salvaged.record_found).find()
            assert salvaged.present() == lost
            opened.write(b"\0")
            assert await parts.sources.put_back_if_changed(source)
            assert segment(parts, SALVAGED) is source
            assert salvaged.present() == lost

    trio.run(run)


def test_a_source_that_cannot_be_read_hides_no_damage(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for what is no part of the log."""
    failing = Failing(monkeypatch)

    async def run() -> None:
        source = segment(parts, SALVAGED)
        with place(parts, SALVAGED).open("r+b"):  # so that it stays
            await parts.attributes.refresh(source)
            await parts.mover.move(source, DiskNumber(1), lambda: 0, lambda: True)
            await parts.sources.finish()
            assert source in parts.commitlog.others.moved(source.disk)
            dirfd = parts.commitlog.disk_of(source).dirfd
            failing.paths.add(f"/proc/self/fd/{dirfd}/{os.fsdecode(source.path)}")
            recorded = Recorded(parts.commitlog, parts.threads, parts.verdicts, parts.salvaged.record_found)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(recorded.find)
                await until(lambda: parts.verdicts.not_loaded() == [])
                await until(lambda: failing.tried > 1)
                assert damaged_names(parts) == [segment(parts, DAMAGED).name]
                nursery.cancel_scope.cancel()

    trio.run(run)
