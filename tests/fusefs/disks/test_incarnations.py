"""The filesystems of disks, kept for the next daemon, and what follows when they change."""

import os

import pytest
from support.pooled import open_parts

from commitlogfs.fusefs.disks.disk_memory import DiskMemory
from commitlogfs.fusefs.disks.incarnations import Incarnations
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.disks.membership import DiskNumber

FIRST, SECOND = DiskNumber(1), DiskNumber(2)


@pytest.fixture
def begin(workdir):
    """Begins another daemon over the same table: the devices of the disks that it serves, by number."""
    table = BackingTable.create(0)
    with open_parts(workdir) as parts:

        def daemon(devices: dict[DiskNumber, int], *, records: bool = True) -> Incarnations:
            backing = Backing(SilentObserver())
            backing.begin(BackingTable.open(os.dup(table.fd), 0), None, "")
            for number, device in devices.items():
                parts.commitlog.disks[number].device = device
            begun = Incarnations([parts.commitlog.disks[number] for number in devices], backing)
            if records:
                begun.record()
            DiskMemory(parts.commitlog, backing).save()
            backing.close()
            return begun

        yield daemon
    inodes.begin_incarnations({})
    table.close()


def test_a_disk_that_stays(begin):
    for _ in range(3):
        assert begin({FIRST: 7, SECOND: 8}).returned == set()
    assert inodes.generation_of(FIRST, 5) == 5


def test_a_disk_that_is_back_on_another_filesystem(begin):
    begin({FIRST: 7, SECOND: 8})
    seen = {inodes.generation_of(FIRST, 5)}
    for device in (9, 7):
        assert begin({FIRST: device, SECOND: 8}).returned == {FIRST}
        assert begin({FIRST: device, SECOND: 8}).returned == set()
        seen.add(inodes.generation_of(FIRST, 5))
    assert len(seen) == 3
    assert inodes.generation_of(SECOND, 5) == 5


def test_a_disk_that_was_not_served_meanwhile(begin):
    """Its backing ids were given back, so even the same filesystem is another incarnation."""
    begin({FIRST: 7, SECOND: 8})
    assert begin({SECOND: 8}).returned == set()
    assert begin({SECOND: 8}).returned == set()
    assert begin({FIRST: 7, SECOND: 8}).returned == {FIRST}


def test_a_disk_that_comes_later_begins_anew(begin):
    begin({FIRST: 7})
    assert begin({FIRST: 7, SECOND: 8}).returned == set()


def test_a_daemon_that_dies_before_it_has_recorded(begin):
    begin({FIRST: 7})
    assert begin({FIRST: 9}, records=False).returned == {FIRST}
    assert begin({FIRST: 9}).returned == {FIRST}
