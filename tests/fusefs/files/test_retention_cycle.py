"""One cycle of forced deletion on real directories, without a mount."""

import errno
import os
from pathlib import Path

import pytest
import trio
from support.pooled import Parts, open_parts
from support.waiting import until

from commitlogfs.fusefs.disks.disk_probes import DiskProbes
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.retention import Retention
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.clock import SystemClock
from commitlogfs.store.files.allocate import Owner
from commitlogfs.store.retention import AlertCode, Mode, RetentionRules
from commitlogfs.store.segment import format_segment_name

SIZE = 4096
HOUR = 3600
YEAR_S = 365 * 24 * HOUR
BY_AGE = RetentionRules(mode=Mode.FILESYSTEM, reserved_s=24 * HOUR, delete_when=frozenset(range(24)))
SEGMENTS = 5


class JumpingClock(SystemClock):
    """Somebody has set the wall clock forward by `jump_s`."""

    def __init__(self) -> None:
        self.jump_s = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.jump_s * 10**9

    def wall(self) -> float:
        return super().wall() + self.jump_s


def daemon(parts: Parts, memory: Backing) -> Retention:
    """Another one of the same mount."""
    observer = SilentObserver()
    usage = UsageMonitor(parts.commitlog, parts.threads, observer)
    probes = DiskProbes(parts.commitlog, parts.threads, observer, nothing_to_save)
    return Retention(
        BY_AGE,
        parts.commitlog,
        parts.changes,
        parts.removals,
        parts.freeing,
        parts.attributes,
        usage,
        no_look,
        probes,
        memory,
        parts.verdicts.lost_writes,
        parts.attempts.silent,
    )


async def no_look() -> None:
    pass


def nothing_to_save() -> None:
    pass


async def make_segments(parts: Parts) -> None:
    owner = Owner(os.geteuid(), os.getegid(), 0o600)
    for index in range(SEGMENTS):
        handle = await parts.creation.create(format_segment_name(index * SIZE), owner)
        os.ftruncate(handle.fd, SIZE)
        await parts.attributes.refresh(handle.file)
        await parts.handles.release(inodes.encode(handle.file))


def test_a_jump_of_the_clock_is_remembered_beyond_the_daemon(workdir: Path) -> None:
    async def main() -> None:
        await make_segments(parts)
        await daemon(parts, memory).cycle()
        clock.jump_s = YEAR_S
        after_a_crash = daemon(parts, memory)
        await after_a_crash.cycle()
        assert len(parts.commitlog.catalog) == SEGMENTS
        assert AlertCode.CLOCK_JUMPED in {alert.code for alert in after_a_crash.preview().alerts}
        after_a_crash.reset_clock_baseline()
        await daemon(parts, memory).cycle()
        assert len(parts.commitlog.catalog) == 3

    clock = JumpingClock()
    with open_parts(workdir, clock=clock) as parts:
        memory = Backing(SilentObserver())
        trio.run(main)
        memory.close()


def test_a_removal_that_fails_is_told_and_the_cycle_goes_on(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    async def main() -> None:
        await make_segments(parts)
        retention = daemon(parts, memory)
        retention.rules = RetentionRules(
            mode=Mode.FILESYSTEM, reserved_s=0.0, delete_when=frozenset(range(24)), grace_s=0.0
        )
        punches = []

        async def punch() -> None:
            punches.append(True)

        monkeypatch.setattr(retention, "_punch", punch)
        with monkeypatch.context() as patched:
            patched.setattr("commitlogfs.store.files.remove.os.unlink", refuse)
            await retention.cycle()
        assert punches == [True]
        assert len(parts.commitlog.catalog) == SEGMENTS
        (told,) = [alert for alert in retention.preview().alerts if alert.code is AlertCode.STUCK]
        assert told.disk == parts.commitlog.disks[parts.commitlog.catalog.first.disk].path
        assert "EPERM" in told.text
        await retention.cycle()
        assert len(parts.commitlog.catalog) == 3
        assert AlertCode.STUCK not in {alert.code for alert in retention.preview().alerts}

    with open_parts(workdir) as parts:
        memory = Backing(SilentObserver())
        trio.run(main)
        memory.close()


def test_a_rule_is_asked_only_while_no_name_changes(workdir: Path) -> None:
    """A rule asked before would name a segment that another removal has taken meanwhile."""

    async def main() -> None:
        await make_segments(parts)
        retention = daemon(parts, memory)
        retention.rules = RetentionRules(mode=Mode.FILESYSTEM, reserved_s=0.0, delete_when=frozenset(range(24)))
        async with trio.open_nursery() as nursery, parts.changes.lock:
            nursery.start_soon(retention.cycle)
            await until(lambda: parts.changes.lock.statistics().tasks_waiting == 1)
            await parts.removals.carry_out(parts.commitlog.plan_remove(format_segment_name(0)))
        assert parts.commitlog.counters.removed == {"unlink": 1, "age": 1}
        assert AlertCode.STUCK not in {alert.code for alert in retention.preview().alerts}

    with open_parts(workdir) as parts:
        memory = Backing(SilentObserver())
        trio.run(main)
        memory.close()
