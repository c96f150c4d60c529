"""Which directories are the pool's disks: by the newest list, whatever some of them still record."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.member_directories import NAME, SIZE, Directories

from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.losses import Loss
from commitlogfs.store.disks.membership import Cordon, DiskNumber, Membership, Rebalance
from commitlogfs.store.findings import FindingCode, Severity
from commitlogfs.store.pool.open import OnMissing, Pool, PoolRefusedError, require_mountable
from commitlogfs.store.thresholds import Thresholds


@pytest.fixture
def directories(workdir: Path) -> Directories:
    return Directories(workdir)


def refusal(directories: Directories, *specs: DiskSpec, on_missing: OnMissing = OnMissing.REFUSE) -> str:
    with closing(directories.open(*specs)) as pool, pytest.raises(PoolRefusedError) as refused:
        require_mountable(pool, on_missing)
    return str(refused.value)


def findings(pool: Pool, code: FindingCode) -> list[Severity]:
    return [finding.severity for finding in pool.findings if finding.code is code]


def test_a_pool_of_a_former_version_has_generation_0(directories):
    with closing(directories.open(*directories.specs)) as pool:
        assert pool.membership == directories.first
        assert pool.recorded == {1: 0, 2: 0, 3: 0}
        assert not pool.findings or not findings(pool, FindingCode.DISK_JOINS)


def test_the_newest_list_counts_and_the_others_lag(directories):
    cordoned = directories.first.cordoned(DiskNumber(2), Cordon(1_700_000_000, "noisy"))
    directories.record(directories.specs[2], 3, cordoned)
    with closing(directories.open(*directories.specs)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == cordoned
        assert pool.recorded == {1: 0, 2: 0, 3: 1}
        assert [disk.intended_state for disk in pool.disks] == [DiskState.RW, DiskState.CORDONED, DiskState.RW]
        assert pool.disks[1].cordon == Cordon(1_700_000_000, "noisy")


def test_a_daemon_that_knows_no_rebalance_records_no_other_list(directories):
    """A daemon of a former version lets a disk that lagged record the same generation without it."""
    rebalancing = directories.first.rebalancing(Rebalance(1_700_000_000))
    directories.record(directories.specs[0], 1, rebalancing)
    directories.record(directories.specs[1], 2, replace(rebalancing, rebalance=None))
    with closing(directories.open(*directories.specs)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == rebalancing


@pytest.mark.parametrize("is_there", [True, False])
def test_a_mounted_pool_does_without_a_released_disk(directories, is_there):
    released = directories.first.released(DiskNumber(2), directories.specs[1].path, 1_700_000_000)
    directories.record(directories.specs[0], 1, released)
    if not is_there:
        shutil.rmtree(directories.specs[1].path)
    with closing(directories.open(*directories.specs, is_mounted=True)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert [disk.number for disk in pool.disks] == [1, 3]
        assert pool.missing == [directories.specs[1].path]
        assert findings(pool, FindingCode.DISK_OFFLINE) == [Severity.WARNING]
        assert not findings(pool, FindingCode.DISK_MISSING)
        assert pool.membership == released


def test_a_new_mount_takes_a_released_disk_back(directories):
    released = directories.first.released(DiskNumber(2), directories.specs[1].path, 1_700_000_000)
    directories.record(directories.specs[0], 1, released)
    with closing(directories.open(*directories.specs)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert [disk.number for disk in pool.disks] == [1, 2, 3]
        assert (pool.membership.offline(), pool.membership.generation) == ((), 2)
    shutil.rmtree(directories.specs[1].path)
    assert directories.specs[1].path in refusal(directories, *directories.specs)


def test_a_daemon_that_knows_no_released_disks_records_no_other_list(directories):
    released = directories.first.released(DiskNumber(2), directories.specs[1].path, 1_700_000_000)
    directories.record(directories.specs[0], 1, released)
    members = tuple(replace(member, offline_since_s=None) for member in released.members)
    directories.record(directories.specs[2], 3, replace(released, members=members))
    with closing(directories.open(*directories.specs, is_mounted=True)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == released


def test_only_released_disks_are_left(directories):
    released = directories.first.released(DiskNumber(2), directories.specs[1].path, 1_700_000_000)
    directories.record(directories.specs[1], 2, released)
    for spec in (directories.specs[0], directories.specs[2]):
        shutil.rmtree(spec.path)
    with pytest.raises(PoolRefusedError, match="no such directory"):
        directories.open(*directories.specs, is_mounted=True)


def test_a_marked_directory_joins(directories):
    directories.mark(directories.new, "new")
    with closing(directories.open(*directories.specs, directories.new)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == directories.first.joined_by("new", directories.new.path)
        assert pool.recorded == {1: 0, 2: 0, 3: 0, 4: None}
        assert pool.disks[3].intended_state is DiskState.JOINING
        assert findings(pool, FindingCode.DISK_JOINS) == [Severity.NOTE]


def test_a_directory_without_mark_does_not_join(directories):
    """It is most likely the bare directory of a disk that is not mounted."""
    text = refusal(directories, *directories.specs, directories.new)
    assert "disk4: carries no identity" in text
    assert "`commitlogfs disk add` adds a new disk" in text


def test_a_directory_marked_for_another_pool_does_not_join(directories):
    directories.mark(directories.new, "new", pool_id="another")
    assert "disk4: carries no identity" in refusal(directories, *directories.specs, directories.new)


def test_a_marked_directory_with_content_does_not_join(directories):
    directories.mark(directories.new, "new")
    Path(directories.new.path, NAME).write_bytes(b"x" * SIZE)
    text = refusal(directories, *directories.specs, directories.new)
    assert f"disk4: was to be added to the pool, but is not empty (it holds '{NAME}')" in text


def test_several_disks_join_at_once_with_numbers_of_their_own(directories, workdir):
    another = DiskSpec(str(workdir / "disk5"), Thresholds())
    Path(another.path).mkdir()
    directories.mark(another, "another")
    directories.mark(directories.new, "new")
    with closing(directories.open(*directories.specs, another, directories.new)) as pool:
        assert [(disk.number, disk.disk_id) for disk in pool.disks[3:]] == [(4, "another"), (5, "new")]
        assert pool.membership.generation == 2


def test_what_an_interrupted_attempt_left_on_the_new_disk_does_not_count(directories):
    """It had recorded itself, but no disk of the pool had, and the pool's list has changed since."""
    directories.record(directories.new, 4, directories.first.joined_by("new", directories.new.path))
    directories.mark(directories.new, "new")
    cordoned = directories.first.cordoned(DiskNumber(1), Cordon(5))
    for number, spec in enumerate(directories.specs, start=1):
        directories.record(spec, number, cordoned)
    with closing(directories.open(*directories.specs, directories.new)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == cordoned.joined_by("new", directories.new.path)


def test_a_disk_that_others_record_already_keeps_its_number(directories):
    joined = directories.first.joined_by("new", directories.new.path)
    directories.record(directories.specs[0], 1, joined)
    directories.mark(directories.new, "new")
    with closing(directories.open(*directories.specs, directories.new)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == joined
        assert pool.recorded == {1: 1, 2: 0, 3: 0, 4: None}


def test_a_disk_that_others_record_already_is_missed(directories):
    """It may have been taken out of the configuration by hand."""
    directories.record(directories.specs[0], 1, directories.first.joined_by("new", directories.new.path))
    text = refusal(directories, *directories.specs)
    assert "disk4: disk 4 of the pool is not in the configuration" in text


def test_a_removed_disk_that_returns_is_refused(directories):
    without = Membership(directories.first.members[:2], 1, DiskNumber(3))
    for number in (1, 2):
        directories.record(directories.specs[number - 1], number, without)
    text = refusal(directories, *directories.specs)
    assert "disk3: is no member of the pool any longer" in text
    assert "remove it from the configuration" in text
    with closing(directories.open(*directories.specs[:2])) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.missing == []


@pytest.mark.parametrize("on_missing", OnMissing)
def test_two_lists_of_one_generation_refuse_every_mount(directories, on_missing):
    directories.record(directories.specs[0], 1, directories.first.cordoned(DiskNumber(2), Cordon(1)))
    directories.record(directories.specs[1], 2, directories.first.cordoned(DiskNumber(1), Cordon(1)))
    text = refusal(directories, *directories.specs, on_missing=on_missing)
    assert "records other members than another disk" in text


@pytest.mark.parametrize("cordons", [0, 1, 2])
def test_two_lists_that_gave_the_same_number_out_refuse_every_mount(directories, cordons):
    """Also in different generations: each disk was changed while the other was away."""
    directories.record(directories.specs[0], 1, directories.first.joined_by("one", "/x"))
    other = directories.first.joined_by("another", "/y")
    for number in range(cordons):
        other = other.cordoned(DiskNumber(2), Cordon(number))
    directories.record(directories.specs[1], 2, other)
    text = refusal(directories, *directories.specs, on_missing=OnMissing.DEGRADED)
    assert "records other members than another disk" in text


@pytest.mark.parametrize("on_missing", OnMissing)
def test_a_disk_that_was_given_up_does_not_return_with_a_newer_list(directories, on_missing):
    """Disks 1 and 2 were changed while disk 3 could not record that. They were gone then, and it gave them up."""
    newer = directories.first
    for _ in range(4):
        newer = newer.cordoned(DiskNumber(3), Cordon(1))
    for number in (1, 2):
        directories.record(directories.specs[number - 1], number, newer)
    given_up = directories.first
    for number in (1, 2):
        loss = Loss(DiskNumber(number), directories.specs[number - 1].path, 1, ())
        given_up = given_up.giving_up(DiskNumber(number), loss, 0)
    directories.record(directories.specs[2], 3, given_up)
    text = refusal(directories, *directories.specs, on_missing=on_missing)
    paths = [spec.path for spec in directories.specs]
    returned = f"disk 1 ({paths[0]}), disk 2 ({paths[1]}): no longer a member here, but there"
    assert f"disk3: records other members than another disk ({returned})" in text
    assert "find out with which disks the broker ran last, and remove the others" in text
    with closing(directories.open(directories.specs[2])) as pool:
        require_mountable(pool, on_missing)
        assert pool.missing == []


def test_a_disk_that_was_removed_does_not_return_with_a_newer_list(directories):
    leaving = directories.first.leaving(DiskNumber(2))
    directories.record(directories.specs[0], 1, leaving.without(DiskNumber(2)))
    directories.record(directories.specs[2], 3, leaving.staying(DiskNumber(2)).cordoned(DiskNumber(2), None))
    text = refusal(directories, *directories.specs)
    assert f"disk1: records other members than another disk (disk 2 ({directories.specs[1].path})" in text


def test_a_list_that_a_disk_has_recorded_too_late_does_not_refuse_a_mount(directories):
    """No disk recorded in time that disk 2 was given up, so that was undone; disk 1 has recorded it since."""
    failed = directories.first.giving_up(DiskNumber(2), Loss(DiskNumber(2), "/x", 1, ()), 0)
    directories.record(directories.specs[0], 1, failed)
    directories.record(directories.specs[2], 3, directories.first.instead_of(failed))
    with closing(directories.open(*directories.specs)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert [disk.number for disk in pool.disks] == [1, 2, 3]
        assert pool.recorded == {1: 1, 2: 0, 3: 2}


def test_a_leaving_disk_that_is_configured_but_cannot_be_read_is_missed(directories):
    directories.record(directories.specs[0], 1, directories.first.leaving(DiskNumber(3)))
    Path(directories.specs[2].path).rename(f"{directories.specs[2].path}.away")
    for bare in (False, True):
        if bare:
            Path(directories.specs[2].path).mkdir()
        with closing(directories.open(*directories.specs)) as pool:
            assert pool.missing == [directories.specs[2].path]
            assert len(pool.membership.members) == 3
            assert not findings(pool, FindingCode.DISK_LEFT)


def test_a_copy_of_a_new_disk_is_refused(directories, workdir):
    copy = DiskSpec(str(workdir / "copy"), Thresholds())
    Path(copy.path).mkdir()
    directories.mark(copy, "new")
    directories.mark(directories.new, "new")
    text = refusal(directories, *directories.specs, directories.new, copy)
    assert "copy: carries the same identity as" in text


def test_a_leaving_disk_is_served_while_it_is_configured_and_dropped_then(directories):
    leaving = directories.first.leaving(DiskNumber(3))
    directories.record(directories.specs[0], 1, leaving)
    with closing(directories.open(*directories.specs)) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.disks[2].intended_state is DiskState.LEAVING
        assert pool.membership == leaving
    with closing(directories.open(*directories.specs[:2])) as pool:
        require_mountable(pool, OnMissing.REFUSE)
        assert pool.membership == leaving.without(DiskNumber(3))
        assert pool.missing == []
        assert findings(pool, FindingCode.DISK_LEFT) == [Severity.NOTE]
