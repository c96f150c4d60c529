"""The health of disks as a daemon knows it, kept for its successor."""

import os
import time
from typing import Any

import pytest
from support.pooled import Parts, open_parts

from commitlogfs.fusefs.disks.disk_memory import DiskMemory
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.disks.reclaim import FRUITLESS_REMOVALS, FruitlessRemovals
from commitlogfs.store.errors import DiskReadOnlyError
from commitlogfs.store.slowness.pace import Operation
from commitlogfs.store.slowness.policy import Comparison, Slowness

FIRST = DiskNumber(1)


class Daemon:
    """One after the other, over the same table."""

    def __init__(self, parts: Parts, table: BackingTable) -> None:
        self.commitlog = parts.commitlog
        self._backing = Backing(SilentObserver())
        self._backing.begin(BackingTable.open(os.dup(table.fd), 0), None, "")
        self.memory = DiskMemory(self.commitlog, self._backing)

    @property
    def disk(self) -> Disk:
        return self.commitlog.disks[FIRST]

    def close(self) -> None:
        self._backing.close()


@pytest.fixture
def daemons(workdir):
    """Makes a daemon; the one before it is gone."""
    made: list[Daemon] = []
    table = BackingTable.create(0)
    stack: list[Any] = []

    def make() -> Daemon:
        for daemon in made:
            daemon.close()
        made.clear()
        directory = workdir / f"pool{len(stack)}"
        directory.mkdir()
        context = open_parts(directory)
        stack.append(context)
        made.append(Daemon(context.__enter__(), table))
        return made[0]

    yield make
    for daemon in made:
        daemon.close()
    for context in stack:
        context.__exit__(None, None, None)
    table.close()


@pytest.mark.parametrize("is_failing", [False, True])
def test_trouble_of_a_disk_is_kept_and_forgotten(daemons, is_failing):
    first = daemons()
    since_s = time.monotonic() / 2  # not before the machine was started
    error = DiskReadOnlyError("/data1", "its filesystem is read-only")
    health.record_error(first.disk, error, since_s, first.commitlog.timing.health)
    first.disk.is_failing = first.disk.is_read_only = is_failing
    first.memory.save()
    second = daemons()
    assert not second.disk.is_troubled
    second.memory.restore()
    assert (second.disk.is_failing, second.disk.is_read_only) == (is_failing, is_failing)
    assert second.disk.suspected_since_s == pytest.approx(since_s, abs=1)
    assert health.is_in_backoff(second.disk, time.monotonic())
    assert second.disk.last_error
    assert not second.commitlog.disks[DiskNumber(2)].is_troubled
    health.record_success(second.disk)
    second.disk.is_read_only = False
    second.memory.save()
    third = daemons()
    third.memory.restore()
    assert not third.disk.is_troubled


def test_findings_of_checks_are_kept_and_forgotten(daemons):
    first = daemons()
    now_s = time.monotonic()
    since_s = now_s / 2  # not before the machine was started
    health.record_silence(first.disk, since_s, now_s, first.commitlog.timing.health)
    health.record_unreadable(first.commitlog.disks[DiskNumber(2)], "Input/output error")
    first.memory.save()
    second = daemons()
    second.memory.restore()
    assert (second.disk.is_unresponsive, second.disk.is_unreadable) == (True, False)
    assert second.disk.suspected_since_s == pytest.approx(since_s, abs=1)
    other = second.commitlog.disks[DiskNumber(2)]
    assert (other.is_unresponsive, other.is_unreadable, other.is_troubled) == (False, True, False)
    health.record_answer(second.disk)
    health.record_unreadable(other, "")
    second.memory.save()
    third = daemons()
    third.memory.restore()
    assert not any(disk.is_unresponsive or disk.is_unreadable for disk in third.commitlog.disks.values())


def test_slow_disks_are_kept_and_forgotten(daemons):
    first = daemons()
    now_s = time.monotonic()
    since_s = now_s / 2  # not before the machine was started
    first.disk.slowness = Slowness(Comparison(Operation.WRITE, 0.2504, 0.0021, 0.003), since_s, now_s + 500)
    other = Slowness(Comparison(Operation.READ, 99.0, 0.0, 0.003), since_s, now_s + 550)
    first.commitlog.disks[DiskNumber(2)].slowness = other
    first.memory.save()
    second = daemons()
    second.memory.restore()
    kept = second.disk.slowness
    assert kept.comparison == Comparison(Operation.WRITE, 0.25, 0.002, None)
    assert (kept.since_s, kept.probe_at_s) == pytest.approx((since_s, now_s + 500), abs=1)
    kept = second.commitlog.disks[DiskNumber(2)].slowness
    assert kept.comparison == Comparison(Operation.READ, 32.767, 0.0, None)
    health.record_not_slow(second.disk)
    second.commitlog.disks[DiskNumber(2)].slowness = Slowness(other.comparison, now_s, None)
    second.memory.save()
    third = daemons()
    third.memory.restore()
    assert not any(disk.slowness for disk in third.commitlog.disks.values()), "a note is not kept"


def test_a_successor_counts_on_after_removals_in_vain(daemons):
    first = daemons()
    now_s = time.monotonic()
    first.commitlog.space.resume_fruitless_removals(
        FIRST, FruitlessRemovals(FRUITLESS_REMOVALS, 10**12 + 1, now_s, reclaimed_nothing=True)
    )
    first.memory.save()
    second = daemons()
    second.memory.restore()
    assert second.commitlog.space.reclaims_nothing(FIRST)
    record = second.commitlog.space.fruitless_removals()[FIRST]
    assert (record.in_a_row, record.reclaimed_nothing) == (FRUITLESS_REMOVALS, True)
    assert 0 < record.lowest_free_bytes - 10**12 <= 1 << 16
    record.since_s -= second.commitlog.timing.health.fruitless_s
    assert not second.commitlog.space.reclaims_nothing(FIRST)
    second.commitlog.space.fruitless_removals().clear()
    second.memory.save()
    third = daemons()
    third.memory.restore()
    assert third.commitlog.space.fruitless_removals() == {}
