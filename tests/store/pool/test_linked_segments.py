"""Two segments' names on one file (a hard link): reported, kept out, never a crash of the start-up check."""

import os

import pytest

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.findings import FindingCode, Severity
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.pool.inventory import take_inventory
from commitlogfs.store.pool.scan import scan_directory
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096


@pytest.fixture
def disk(workdir):
    dirfd = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    for index in range(4):
        (workdir / format_segment_name(index * SIZE).decode()).write_bytes(bytes(SIZE))
    yield Disk(DiskNumber(1), "id", str(workdir), dirfd, FilesystemKind("ext4", Suitability.FULL, ""), Thresholds())
    os.close(dirfd)


def inventory_of(disk):
    return take_inventory([(disk, scan_directory(disk.dirfd, SIZE))], SIZE)


def test_linked_segments_are_quarantined_and_refuse_the_mount(disk, workdir):
    one, other = (format_segment_name(index * SIZE) for index in (1, 4))
    os.link(workdir / one.decode(), workdir / other.decode())
    inventory = inventory_of(disk)
    assert set(inventory.quarantined) == {one, other}
    assert [segment.base_offset for segment in inventory.catalog] == [0, 2 * SIZE, 3 * SIZE]
    findings = {finding.file: finding for finding in inventory.findings if finding.code is not FindingCode.GAP}
    assert findings.keys() == {one.decode(), other.decode()}
    for finding in findings.values():
        assert (finding.code, finding.severity) == (FindingCode.DUPLICATE_SEGMENT, Severity.REFUSES)
    assert other.decode() in findings[one.decode()].message


def test_a_second_name_elsewhere_is_nobodys_business(disk, workdir):
    """A backup made of hard links (cp -al) does not keep a store from being mounted."""
    backup = workdir.parent / f"{workdir.name}-backup"
    backup.mkdir()
    name = format_segment_name(0).decode()
    try:
        os.link(workdir / name, backup / name)
        assert inventory_of(disk).quarantined == {}
    finally:
        (backup / name).unlink()
        backup.rmdir()


def test_a_catalog_made_at_once_equals_one_made_step_by_step(disk):
    scan = scan_directory(disk.dirfd, SIZE)
    segments = [Segment(base, disk.number, attributes) for base, attributes in sorted(scan.segments)]
    at_once, by_steps = Catalog(SIZE, segments), Catalog(SIZE)
    for segment in reversed(segments):
        by_steps.add(segment)
    assert list(at_once) == list(by_steps) == segments
    for segment in segments:
        assert at_once.by_ino(disk.number, segment.ino) is by_steps.by_ino(disk.number, segment.ino) is segment
    at_once.remove(segments[1])
    assert at_once.gaps() == [(SIZE, 2 * SIZE)]
    with pytest.raises(ValueError, match="taken"):
        Catalog(SIZE, [segments[0], segments[0]])
    with pytest.raises(ValueError, match="taken"):
        Catalog(SIZE, [segments[0], _twin(segments[0], disk)])


def _twin(segment, disk):
    return Segment(BaseOffset(segment.base_offset + SIZE), disk.number, segment.attributes, Role.SEGMENT)
