"""The filesystems of disks, kept for the next daemon, and what follows when they change."""

import os

import pytest
from support.pooled import open_parts

from commitlogfs.fusefs.disks.disk_memory import DiskMemory
from commitlogfs.fusefs.disks.incarnations import Incarnations
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.backing_table import PLAIN, BackingTable
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.disks.membership import DiskNumber

FIRST, SECOND = DiskNumber(1), DiskNumber(2)


@pytest.fixture
def begin(workdir):
    """Begins another daemon over the same table: the devices of the disks that it serves, by number. A file of each
    is opened: passed through, or `plain`."""
    table = BackingTable.create(0)
    with open_parts(workdir) as parts:

        def daemon(
            devices: dict[DiskNumber, int],
            *,
            resumes: bool = True,
            records: bool = True,
            opens: bool | None = None,
            plain: bool = False,
        ) -> Incarnations:
            backing = Backing(SilentObserver())
            shared = BackingTable.open(os.dup(table.fd), 0)
            backing.begin(shared, None, "")
            for number, device in devices.items():
                parts.commitlog.disks[number].device = device
            begun = Incarnations([parts.commitlog.disks[number] for number in devices], backing)
            if resumes:
                backing.resume([], devices.keys())
            if records:
                begun.record()
            if records if opens is None else opens:
                for number in devices:
                    shared.put(inodes.first_of_disk(number) | 99, PLAIN if plain else 1)
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


@pytest.mark.parametrize("resumes", [False, True])
def test_a_daemon_that_dies_before_it_has_recorded(begin, resumes):
    begin({FIRST: 7})
    assert begin({FIRST: 9}, resumes=resumes, records=False).returned == {FIRST}
    assert begin({FIRST: 9}).returned == {FIRST}


@pytest.mark.parametrize("resumes", [False, True])
def test_a_daemon_that_dies_before_it_has_recorded_an_absence(begin, resumes):
    """It may have given back the backing ids of the disk by then."""
    begin({FIRST: 7, SECOND: 8})
    begin({SECOND: 8}, resumes=resumes, records=False)
    assert begin({FIRST: 7, SECOND: 8}).returned == {FIRST}


@pytest.mark.parametrize("absent", [False, True])
def test_a_disk_of_which_nothing_is_passed_through_stays(begin, absent):
    """Its open files lead to the disk as it is now."""
    begin({FIRST: 7, SECOND: 8}, plain=True)
    if absent:
        begin({SECOND: 8}, plain=True)
        begin({SECOND: 8}, plain=True)
    begun = begin({FIRST: 9, SECOND: 8}, plain=True)
    assert (begun.returned, begun.renewed) == ({FIRST}, set())
    assert inodes.generation_of(FIRST, 5) == 5
    begin({FIRST: 9, SECOND: 8})
    assert begin({FIRST: 7, SECOND: 8}).renewed == {FIRST}
    assert inodes.generation_of(FIRST, 5) != 5


def test_a_disk_of_a_former_version_that_is_absent(begin):
    """Versions that do not know incarnations have recorded none."""
    begin({FIRST: 7, SECOND: 8}, records=False, opens=True)
    begin({SECOND: 8})
    assert begin({FIRST: 7, SECOND: 8}).returned == {FIRST}
