"""The disks record what a daemon finds out a moment before its orderly end. A failed write is found although its
file is closed at once."""

import errno
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from support.pooled import OURS, PATIENT, SIZE, Parts, name_of, open_parts, place
from support.waiting import until
from trio.testing import MockClock, wait_all_tasks_blocked

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.store import layout
from commitlogfs.store.disks import health, lost_writes
from commitlogfs.store.disks.identity import parse_identity
from commitlogfs.store.disks.membership import Cordon, Membership
from commitlogfs.store.errors import DiskFailedError
from commitlogfs.store.files.changes import Changes
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.scrub.verdict import Kind, parse_verdict, whole_verdict
from commitlogfs.store.timing import LostWriteTiming

LOOK_S = 10_000.0
CORDON = Cordon(1_700_000_000, "noisy")


@asynccontextmanager
async def daemon(parts: Parts) -> AsyncIterator[None]:
    """Those parts at work that record something, until the orderly end of a daemon."""
    parts.backing.begin(BackingTable.create(0), None, "no kernel")
    await parts.usage.refresh(0.0)
    async with trio.open_nursery() as nursery:
        for work in (parts.background, parts.disk_memory, parts.member_records, parts.verdicts):
            nursery.start_soon(work.run)
        nursery.start_soon(parts.lost_writes.run, parts.handles.may_be_open)
        yield
        await parts.finish()
        nursery.cancel_scope.cancel()


async def segment(parts: Parts) -> Segment:
    """A new one, which a broker has open."""
    handle = await parts.creation.create(name_of(0), OURS)
    await parts.resizing.resize(handle.file, Changes(size=SIZE))
    return handle.file


def members(parts: Parts, disk: int) -> Membership:
    directory = str(parts.directories[disk - 1])
    return parse_identity(os.getxattr(directory, layout.XATTR_IDENTITY), directory).membership


def test_a_cordon_that_nobody_has_waited_for(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            disk = next(iter(parts.commitlog.disks.values()))
            assert await parts.member_records.cordon(disk, CORDON)
        recorded = [members(parts, number).members[0].cordon for number in parts.commitlog.disks]
        assert CORDON in recorded, "one list is enough: the next daemon completes the others"

    with open_parts(workdir) as parts:
        trio.run(main)


def test_a_verdict(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            parts.verdicts.record(found, whole_verdict(Kind.ROTTED, SIZE, 1_700_000_000))
        verdict = parse_verdict(os.getxattr(place(parts, 0), layout.XATTR_VERDICT))
        assert verdict is not None
        assert verdict.kind is Kind.ROTTED

    with open_parts(workdir) as parts:
        trio.run(main)


def test_the_health_of_a_disk(workdir: Path) -> None:
    async def main() -> None:
        async with daemon(parts):
            await wait_all_tasks_blocked()
            disk = next(iter(parts.commitlog.disks.values()))
            now_s = parts.commitlog.clock.monotonic()
            health.record_error(disk, DiskFailedError(disk.path, "test"), now_s, parts.commitlog.timing.health)
        disk.suspected_since_s = None
        assert not disk.is_troubled
        parts.disk_memory.restore()
        assert disk.is_troubled

    with open_parts(workdir) as parts:
        trio.run(main, clock=MockClock())


class Watched:
    """A broker's segment, and the kernel's answer to the question whether a write to it has failed: once, after one
    has. Without a device that fails, nothing else makes the kernel say so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_failed = False
        self.questions = 0
        monkeypatch.setattr(lost_writes, "require_written", self._require_written)

    async def begin(self, clock: MockClock) -> None:
        """Returns when the segment is watched."""

        def has_asked() -> bool:
            clock.jump(LOOK_S)
            return self.questions > 0

        await until(has_asked, math.inf)

    def _require_written(self, _watch: int) -> None:
        self.questions += 1
        if self.has_failed:
            self.has_failed = False
            raise OSError(errno.EIO, "test")


def test_a_write_that_has_failed_before_the_last_close(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's last flush has failed, which the kernel has reported to the broker only, and it ends."""
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)

    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            await watched.begin(clock)
            watched.has_failed = True
            await parts.handles.release(inodes.encode(found))
            assert not watched.has_failed
            assert parts.lost_writes.may_lack_writes(found)
            assert parts.verdicts.kind_of(found) is Kind.WRITE_LOST

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main, clock=clock)


def test_a_write_that_has_failed_since_the_last_question(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watched = MockClock(rate=1.0), Watched(monkeypatch)

    async def main() -> None:
        async with daemon(parts):
            found = await segment(parts)
            await watched.begin(clock)
            watched.has_failed = True
        assert not watched.has_failed, "the last daemon that the kernel reports it to"
        verdict = parse_verdict(os.getxattr(place(parts, 0), layout.XATTR_VERDICT))
        assert verdict is not None
        assert verdict.kind is Kind.WRITE_LOST
        cordons = [members(parts, number).members[found.disk - 1].cordon for number in parts.commitlog.disks]
        assert any(cordon is not None and name_of(0).decode() in cordon.reason for cordon in cordons)

    timing = replace(PATIENT, lost_writes=LostWriteTiming(look_s=LOOK_S))
    with open_parts(workdir, timing=timing) as parts:
        trio.run(main, clock=clock)
