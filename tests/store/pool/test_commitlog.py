"""The facade, on catalogs that need no disk: planning, the log as one file, names and their rules."""

from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import packed_attributes, pool_of

from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import (
    BeyondSegmentError,
    DiskFailedError,
    DiskFullError,
    InvalidNameError,
    InvalidSizeError,
    LogGapError,
    NoDiskAvailableError,
    NotPermittedError,
    SegmentExistsError,
    SegmentIncompleteError,
    SegmentNotFoundError,
)
from commitlogfs.store.files.allocate import Published
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.files.usage import DiskUsage, UsageAfter
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.pool.commitlog import CommitLog, Removal
from commitlogfs.store.pool.inventory import Inventory
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
ROOMY = DiskUsage(1 << 30, 1 << 30, 1 << 30)
FULL = DiskUsage(1 << 30, 1 << 20, 1 << 20)
NOW = 5000.0


def name(index: int) -> bytes:
    return format_segment_name(index * SIZE)


def make_log(
    segments: dict[int, int] | None = None,
    *,
    disks: int = 3,
    usage: DiskUsage | None = ROOMY,
    missing: tuple[str, ...] = (),
    newest_missing: int | None = None,
    quarantined: dict[bytes, str] | None = None,
) -> CommitLog:
    """`segments`: index -> size."""
    inventory = Inventory(Catalog(SIZE), quarantined=quarantined or {})
    for index, size in sorted((segments or {}).items()):
        attributes = packed_attributes(index + 100, size)
        inventory.catalog.add(Segment(BaseOffset(index * SIZE), DiskNumber(index % disks + 1), attributes))
    kind = FilesystemKind("ext4", Suitability.FULL, "")
    members = [
        Disk(DiskNumber(number), f"id{number}", f"/data{number}", -1, kind, Thresholds())
        for number in range(1, disks + 1)
    ]
    pool = pool_of(members, inventory, SIZE, missing)
    pool.newest_missing = None if newest_missing is None else BaseOffset(newest_missing)
    log = CommitLog(pool, POLICIES["round-robin"])
    for disk in members:
        log.space.record_usage(disk.number, usage)
    return log


def created(log: CommitLog, file_name: bytes, ino: int, size: int = 0) -> Segment:
    plan = log.plan_create(file_name, NOW)
    return log.record_created(plan, plan.order[0], Published(packed_attributes(ino, size), ROOMY))


# --- the log as one file -----------------------------------------------------------------------------


@contextmanager
def _gap_or(expected: bool):
    if expected:
        with pytest.raises(LogGapError):
            yield
    else:
        yield


@given(
    st.dictionaries(st.integers(0, 8), st.sampled_from([0, SIZE, SIZE, SIZE, 99]), max_size=7),
    st.integers(0, 10 * SIZE),
    st.integers(0, 5 * SIZE),
)
def test_split_range_reads_what_a_byte_by_byte_reader_would(segments, offset, length):
    log = make_log(segments)
    whole = {index for index, size in segments.items() if size == SIZE}
    end = (max(whole) + 1) * SIZE if whole else 0
    assert log.catalog.end_offset == end
    readable = 0
    while readable < length and offset + readable < end and (offset + readable) // SIZE in whole:
        readable += min(SIZE - (offset + readable) % SIZE, length - readable)
    with _gap_or(length > 0 and offset < end and readable == 0):
        ranges = log.catalog.split_range(offset, length)
        assert sum(part.length for part in ranges) == readable
        at = offset
        for part in ranges:
            assert part.length > 0
            assert part.segment.base_offset + part.position == at
            assert part.position + part.length <= SIZE
            at += part.length


def test_nothing_lies_past_the_end():
    log = make_log({0: SIZE, 1: SIZE})
    assert log.catalog.split_range(2 * SIZE, 10) == []
    assert log.catalog.split_range(10**15, 10) == []
    assert [(r.position, r.length) for r in log.catalog.split_range(2 * SIZE - 5, 100)] == [(SIZE - 5, 5)]


def test_what_precedes_the_first_segment_is_a_gap():
    with pytest.raises(LogGapError, match="log offset 0"):
        make_log({3: SIZE}).catalog.split_range(0, 10)


# --- planning ----------------------------------------------------------------------------------------


def test_a_plan_names_every_eligible_disk_in_order():
    assert make_log({0: SIZE, 1: SIZE}).plan_create(name(2), NOW).order == (3, 1, 2)


@pytest.mark.parametrize("bad", [b"abc", b"0" * 19, b"%020d" % (SIZE + 1), b".abc", b"\xff\xfe", b""])
def test_other_names_are_refused_in_one_line(bad):
    with pytest.raises(InvalidNameError) as caught:
        make_log().plan_create(bad, NOW)
    assert "\n" not in str(caught.value)


def test_a_taken_name_is_refused():
    log = make_log({0: SIZE, 1: 0}, quarantined={name(5): "it is on more than one disk"})
    for index in (0, 1, 5):
        with pytest.raises(SegmentExistsError):
            log.plan_create(name(index), NOW)
    created(log, b"." + name(2) + b".x", 900)
    with pytest.raises(SegmentExistsError):
        log.plan_create(b"." + name(2) + b".x", NOW)


def test_a_degraded_log_makes_nothing_below_its_newest_segment():
    """A name below may be taken on the absent disk."""
    log = make_log({0: SIZE, 4: SIZE}, missing=("/data9",))
    with pytest.raises(SegmentExistsError, match="/data9"):
        log.plan_create(name(2), NOW)
    assert log.plan_create(name(5), NOW).base_offset == 5 * SIZE
    assert make_log({0: SIZE, 4: SIZE}).plan_create(name(2), NOW).base_offset == 2 * SIZE


def test_the_record_stays_above_what_a_missing_disk_may_hold():
    """A broker unlinks its unused segment 4 at a clean stop; 3 may lie on the missing disk."""
    log = make_log({2: SIZE, 4: SIZE}, missing=("/data9",), newest_missing=3 * SIZE)
    assert log.names.newest == 4 * SIZE
    log.record_removed(log.plan_remove(name(4)), ROOMY)
    assert log.names.newest == 3 * SIZE
    with pytest.raises(SegmentExistsError, match="/data9"):
        log.plan_create(name(3), NOW)
    assert log.plan_create(name(4), NOW).base_offset == 4 * SIZE


def test_no_space_is_remembered_for_a_moment():
    log = make_log(usage=FULL)
    with pytest.raises(NoDiskAvailableError) as first:
        log.plan_create(name(0), NOW)
    assert first.value.no_space
    for number in log.disks:
        log.space.record_usage(number, ROOMY)
    with pytest.raises(NoDiskAvailableError):
        log.plan_create(name(1), NOW + log.timing.requests.no_disk_s - 0.001)
    assert log.plan_create(name(1), NOW + log.timing.requests.no_disk_s).order


def test_a_disk_that_is_found_to_have_room_ends_the_memory_of_no_space():
    """So that what `status` calls the next disk takes a segment at once."""
    log = make_log(usage=FULL)
    with pytest.raises(NoDiskAvailableError):
        log.plan_create(name(0), NOW)
    for number in log.disks:
        log.space.record_usage(number, ROOMY)
    assert log.admission.preview_next()
    assert log.plan_create(name(0), NOW + 0.001).order


def test_a_removal_ends_the_memory_of_no_space():
    log = make_log({0: SIZE}, usage=FULL)
    with pytest.raises(NoDiskAvailableError):
        log.plan_create(name(1), NOW)
    log.record_removed(log.plan_remove(name(0)), ROOMY)
    assert log.plan_create(name(1), NOW + 0.001).order == (1,)


def test_a_wrong_name_is_told_even_while_no_space_is_remembered():
    log = make_log({0: SIZE}, usage=FULL)
    with pytest.raises(NoDiskAvailableError):
        log.plan_create(name(1), NOW)
    with pytest.raises(InvalidNameError):
        log.plan_create(b"abc", NOW)
    with pytest.raises(SegmentExistsError):
        log.plan_create(name(0), NOW)


@pytest.mark.parametrize(
    ("error", "no_space"),
    [(DiskFullError("/d", "no room"), True), (DiskFailedError("/d", "I/O error"), False)],
)
def test_when_every_disk_refuses_the_reason_is_told(error, no_space):
    log = make_log()
    plan = log.plan_create(name(0), NOW)
    for number in plan.order:
        log.record_disk_error(number, error, NOW)
    refused = log.admission.no_disk_left(NOW)
    assert refused.no_space is no_space
    assert str(error) in str(refused)
    assert log.counters.create_retries == 3
    with pytest.raises(NoDiskAvailableError):
        log.plan_create(name(0), NOW + 0.001)


def test_read_only_everywhere_is_no_lack_of_space():
    log = make_log()
    for disk in log.disks.values():
        disk.state = DiskState.RO
    with pytest.raises(NoDiskAvailableError) as caught:
        log.plan_create(name(0), NOW)
    assert not caught.value.no_space


# --- sizes -------------------------------------------------------------------------------------------


@given(st.integers(0, 3 * SIZE), st.integers(0, 3 * SIZE))
def test_a_segment_grows_to_its_size_and_nothing_else(current, new):
    log = make_log()
    if new in (current, SIZE):
        log.check_resize(current, new)
    else:
        with pytest.raises(BeyondSegmentError if new > SIZE else InvalidSizeError):
            log.check_resize(current, new)


@pytest.mark.parametrize(
    ("offset", "length", "fitting"),
    [(0, SIZE, SIZE), (SIZE - 1, 1, 1), (0, SIZE + 1, SIZE), (SIZE - 1, SIZE, 1)],
)
def test_a_write_ends_with_the_segment(offset, length, fitting):
    assert make_log().fit_write(offset, length) == fitting


@pytest.mark.parametrize("offset", [SIZE, SIZE + 1])
def test_a_write_at_the_end_of_a_segment_is_refused(offset):
    with pytest.raises(BeyondSegmentError):
        make_log().fit_write(offset, 1)


# --- removing and renaming ---------------------------------------------------------------------------


def test_a_retired_file_is_found_by_inode_only_and_counts_as_free():
    log = make_log({0: SIZE})
    before = log.space.usage(DiskNumber(1))
    removal = log.plan_remove(name(0))
    file = removal.file
    log.record_retired(removal, name(0) + b".01234567")
    assert log.find_name(name(0)) is None
    assert list(log.listed()) == []
    assert log.find_ino(DiskNumber(1), 100) is file
    assert file.path == b".commitlogfs/" + name(0) + b".01234567"
    assert log.others.retired() == [file]
    used = DiskUsage(1 << 30, (1 << 30) - SIZE, (1 << 30) - SIZE)
    log.space.record_usage(DiskNumber(1), used)
    assert log.space.usage(DiskNumber(1)) == before, "its blocks are about to be given back"
    log.record_freed(file, ROOMY)
    with pytest.raises(SegmentNotFoundError):
        log.find_ino(DiskNumber(1), 100)


def test_a_name_made_again_is_another_file():
    log = make_log({0: SIZE})
    removal = log.plan_remove(name(0))
    old = removal.file
    log.record_retired(removal, name(0) + b".01234567")
    new = created(log, name(0), 777, SIZE)
    assert log.find_name(name(0)) is new
    assert log.find_ino(old.disk, old.ino) is old
    log.record_freed(old, ROOMY)
    assert log.find_name(name(0)) is new
    assert log.counters.removed == {"unlink": 1}


def test_renames_and_their_refusals():
    log = make_log({0: SIZE, 1: SIZE}, quarantined={name(7): "wrong size"})
    temporary = b"." + name(2) + b".x"
    file = created(log, temporary, 900)
    with pytest.raises(SegmentNotFoundError):
        log.plan_publish_copy(b"." + name(9) + b".x", name(9))
    with pytest.raises(NotPermittedError):
        log.plan_publish_copy(name(0), name(3))
    with pytest.raises(InvalidNameError):
        log.plan_publish_copy(temporary, b"abc")
    with pytest.raises(SegmentExistsError):
        log.plan_publish_copy(temporary, name(0))
    with pytest.raises(SegmentExistsError):
        log.plan_publish_copy(temporary, name(7))
    with pytest.raises(SegmentIncompleteError, match="0 of 4096"):
        log.plan_publish_copy(temporary, name(2))
    log.record_attributes(file, packed_attributes(900, SIZE))
    assert log.plan_publish_copy(temporary, name(2)) is file
    log.record_copy_published(file, name(2), packed_attributes(900, SIZE))
    assert log.find_name(temporary) is None
    assert log.find_name(name(2)) is file
    assert log.find_ino(file.disk, 900) is file
    assert (file.role, file.name) == (Role.SEGMENT, name(2))
    assert [segment.base_offset // SIZE for segment in log.listed()] == [0, 1, 2]


def test_a_copy_can_move_to_another_temporary_name_and_another_segment():
    log = make_log()
    first, second = b"." + name(2) + b".x", b"." + name(5) + b".y"
    file = created(log, first, 900)
    log.plan_publish_copy(first, second)
    log.record_copy_published(file, second, packed_attributes(900, SIZE))
    assert log.find_name(first) is None
    assert log.find_name(second) is file
    assert file.base_offset == 5 * SIZE
    log.plan_publish_copy(second, name(5))
    log.record_copy_published(file, name(5), packed_attributes(900, SIZE))
    assert log.catalog.get(5 * SIZE) is file


def test_only_whole_segments_are_listed():
    log = make_log({0: SIZE, 1: 0, 2: SIZE - 1, 3: SIZE})
    assert [segment.base_offset // SIZE for segment in log.listed()] == [0, 3]
    assert [segment.base_offset // SIZE for segment in log.listed_after(0)] == [3]
    assert log.find_name(name(1)) is not None, "but found by name"


def test_what_cannot_be_freed_is_not_promised():
    log = make_log(dict.fromkeys(range(12), SIZE))
    number = log.catalog.get(0).disk
    count = log.catalog.count_on_disk(number)
    assert log.space.freeable_bytes(number) == count * SIZE
    first = log.catalog.get(0)
    log.record_attributes(first, packed_attributes(ino=first.ino, size=SIZE, nlink=2))
    log.space.count_links()
    assert log.space.freeable_bytes(number) == (count - 1) * SIZE
    vain = [segment for segment in log.catalog.on_disk(number) if segment is not first]
    for segment in vain[:3]:
        log.record_attributes(segment, packed_attributes(ino=segment.ino, size=SIZE, blocks=SIZE // 512))
        log.record_removed(Removal(segment), UsageAfter(100 * SIZE, 10 * SIZE, 10 * SIZE, gained_bytes=0))
    assert log.space.reclaims_nothing(number)
    assert log.space.freeable_bytes(number) == 0
    log.space.record_usage(number, DiskUsage(100 * SIZE, 11 * SIZE, 11 * SIZE))
    assert not log.space.reclaims_nothing(number)


def test_an_inode_number_given_away_keeps_no_mark_of_its_former_file():
    """A leftover was kept because it held data, somebody removed it, and a segment got its inode number."""
    log = make_log()
    leftover = created(log, name(0), 900)
    log.record_given_up(leftover)
    log.others.record_kept(leftover)
    log.record_leftover_gone(leftover)
    plan = log.plan_create(name(3), NOW)
    attributes = packed_attributes(900, SIZE, blocks=SIZE // 512)
    file = log.record_created(plan, leftover.disk, Published(attributes, ROOMY))
    log.record_retired(Removal(file), name(3) + b".01234567")
    assert log.others.pending_bytes(leftover.disk) == SIZE


def test_the_segments_of_a_disk_that_was_just_given_up_stay_lost():
    """Until another daemon takes the mount over, this one serves the disk and has its segments in the catalog."""
    log = make_log(dict.fromkeys(range(6), SIZE))
    loss = Loss(1, "/data1", 7, (Run(0, 1, 3, 2),))
    log.record_membership(log.membership.giving_up(DiskNumber(1), loss, 0))
    created(log, name(6), 900, SIZE)
    assert log.follow_log() is log.membership


def test_a_path_that_has_changed_is_recorded_with_the_next_list() -> None:
    log = make_log({0: SIZE})
    disk = log.disks[DiskNumber(1)]
    disk.path = "/elsewhere/data1"
    following = log.follow_log()
    assert (following.generation, following.members[0].path) == (log.membership.generation + 1, disk.path)
    log.record_membership(following)
    assert log.follow_log() is following


def test_a_path_that_the_disks_have_no_place_for_is_not_recorded() -> None:
    log = make_log({0: SIZE})
    present, disk = log.membership, log.disks[DiskNumber(1)]
    disk.path = f"/{'long' * 10_000}"
    log.record_membership(present.following((Loss(4, "/data4", 7, (Run(0, 1, 1, 1),)),), 0))
    following = log.follow_log()
    assert (following.losses[0].runs, following.members) == ((), present.members)
    log.record_membership(following)
    assert log.follow_log() is log.membership


def test_a_loss_ends_when_its_segment_is_whole_again():
    log = make_log({0: SIZE, 2: SIZE, 3: SIZE, 5: SIZE})
    loss = Loss(4, "/data4", 7, (Run(1, 1, 3, 2),))
    log.record_membership(log.membership.following((loss,), 0))
    file = created(log, name(4), 900)
    assert log.follow_log() is log.membership
    log.record_attributes(file, packed_attributes(900, SIZE))
    assert log.follow_log().losses == (Loss(4, "/data4", 7, (Run(1, 1, 1, 1),)),)


@pytest.mark.parametrize("stays", [False, True])
def test_removals_beside_one_that_has_not_ended_are_on_record(stays: bool) -> None:
    """Segment 1 lies on a missing disk, segment 2 on one that does not answer."""
    log = make_log(dict.fromkeys((0, 2, 3, 4), SIZE))
    log.missing = ("/data9",)
    log.record_removed(log.plan_remove(name(0)), ROOMY)
    assert log.follow_log().removed_before == SIZE
    late = log.plan_remove(name(2))
    log.record_leaving(late)
    assert log.follow_log().removed_before == 2 * SIZE
    log.record_removed(log.plan_remove(name(3)), ROOMY)
    assert log.follow_log().removed_before == 2 * SIZE
    if stays:
        log.record_stayed(late)
    else:
        log.record_removed(late, ROOMY)
    assert log.follow_log().removed_before == (2 if stays else 4) * SIZE


def test_a_removal_after_a_gap_says_nothing_of_the_segments_before_it() -> None:
    """Segments 1 and 2 may lie on the missing disk, and a broker cuts its log after them: segment 0 stays."""
    log = make_log(dict.fromkeys((0, 3, 4), SIZE))
    log.missing = ("/data9",)
    for index in (3, 4):
        log.record_removed(log.plan_remove(name(index)), ROOMY)
        assert log.follow_log().removed_before == 0
    log.record_removed(log.plan_remove(name(0)), ROOMY)
    created(log, name(5), 900, SIZE)
    assert log.follow_log().removed_before == SIZE


def test_a_copy_that_is_being_removed_does_not_delay_the_record_of_removals() -> None:
    """Segment 1 lies on a missing disk, and an unfinished copy of it on one that does not answer."""
    log = make_log(dict.fromkeys((0, 2, 3), SIZE))
    copy = b"." + name(1) + b".x"
    created(log, copy, 900)
    log.missing = ("/data9",)
    log.record_leaving(log.plan_remove(copy))
    log.record_removed(log.plan_remove(name(0)), ROOMY)
    log.record_removed(log.plan_remove(name(2)), ROOMY)
    assert log.is_removing
    assert log.follow_log().removed_before == 3 * SIZE
