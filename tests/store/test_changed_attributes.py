"""Attributes of backing files: batches that report only changes, and results that arrive late."""

import errno
import os

import pytest
from support.files import pool_of

from commitlogfs.store import _syscalls
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import (
    PackedAttributes,
    mode_of,
    nlink_of,
    size_of,
    stat_changes,
    stat_name,
    stat_names,
    unpack,
)
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.inventory import take_inventory
from commitlogfs.store.pool.scan import scan_directory
from commitlogfs.store.segment import format_segment_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
NAMES = [format_segment_name(index * SIZE) for index in range(5)]


@pytest.fixture
def dirfd(workdir):
    for name in NAMES:
        (workdir / name.decode()).write_bytes(bytes(SIZE))
    fd = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_a_batch_reports_only_changed_attributes(dirfd, workdir):
    known = [packed for packed in stat_names(dirfd, NAMES) if not isinstance(packed, int)]
    assert stat_changes(dirfd, NAMES, known) == []
    (workdir / NAMES[1].decode()).chmod(0o600)
    (workdir / NAMES[3].decode()).unlink()
    assert stat_changes(dirfd, NAMES, known) == [(1, stat_name(dirfd, NAMES[1])), (3, errno.ENOENT)]
    assert stat_changes(dirfd, NAMES[:1], [PackedAttributes(b"")]) == [(0, known[0])]
    assert stat_changes(dirfd, [], []) == []


def test_a_batch_refuses_what_it_cannot_take(dirfd):
    with pytest.raises(ValueError, match="as many"):
        _syscalls.stat_changes(dirfd, NAMES, [b""])
    with pytest.raises(ValueError, match="null byte"):
        _syscalls.stat_changes(dirfd, [b"a\0b"], [b""])
    with pytest.raises(TypeError):
        _syscalls.stat_changes(dirfd, ["text"], [b""])  # type: ignore[list-item]


def test_single_fields_agree_with_the_whole(dirfd):
    packed = stat_name(dirfd, NAMES[0])
    whole = unpack(packed)
    assert (mode_of(packed), nlink_of(packed), size_of(packed)) == (whole.mode, whole.nlink, whole.size)
    assert whole.size == SIZE


def test_a_late_stat_does_not_undo_a_newer_one(dirfd, workdir):
    """A stat that saw a segment before its ftruncate, answered after it, would take it out of the listing."""
    (workdir / NAMES[4].decode()).write_bytes(b"")
    disk = Disk(DiskNumber(1), "id", "disk", dirfd, FilesystemKind("ext4", Suitability.FULL, ""), Thresholds())
    inventory = take_inventory([(disk, scan_directory(dirfd, SIZE))], SIZE)
    log = CommitLog(pool_of([disk], inventory, SIZE), POLICIES["round-robin"])
    segment = log.find_name(NAMES[4])
    known = segment.attributes
    too_early = stat_name(dirfd, NAMES[4])
    os.truncate(workdir / NAMES[4].decode(), SIZE)
    log.record_attributes(segment, stat_name(dirfd, NAMES[4]))

    log.record_stat(segment, known, too_early)
    assert segment in list(log.listed())

    known = segment.attributes
    (workdir / NAMES[4].decode()).chmod(0o600)
    log.record_stat(segment, known, stat_name(dirfd, NAMES[4]))
    assert unpack(segment.attributes).mode & 0o777 == 0o600
