"""A disk that is not there: one readable report, nothing mounted, and never a byte in its bare directory."""

import errno
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.disk_life import recorded_identity
from support.loop_disks import DiskFarm, LoopDisk
from support.pools import MIB, PoolMount, segment_bytes, segment_name
from support.refusals import degrade, refused_mount
from support.snapshots import snapshot
from support.waiting import eventually

from commitlogfs.mount.preflight.configured_pool import refusal
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.pool.open import PoolRefusedError

pytestmark = [pytest.mark.mounted, pytest.mark.full]


def take_away(disk: Path) -> Path:
    """Makes the state of an unmounted disk: an empty directory without attributes at its path."""
    aside = disk.with_name(disk.name + ".unmounted")
    disk.rename(aside)
    disk.mkdir()
    return aside


def bring_back(disk: Path, aside: Path) -> None:
    assert os.listdir(disk) == []
    assert os.listxattr(disk) == []
    disk.rmdir()
    aside.rename(disk)


def test_an_absent_directory_is_named_with_its_remedy_and_the_mount_works_once_it_is_back(
    striped: PoolMount,
) -> None:
    gone = Path(striped.disks[1])
    aside = gone.with_name("aside")
    gone.rename(aside)
    before = snapshot(striped.workdir / "disk0", striped.workdir / "disk2", aside)
    report = refused_mount(striped)
    assert f"{gone}: no such directory; mount the disk there or correct the path" in report
    assert not gone.exists()
    assert snapshot(striped.workdir / "disk0", striped.workdir / "disk2", aside) == before
    aside.rename(gone)
    striped.start()
    assert len(os.listdir(striped.mountpoint)) == 7


def test_the_bare_directory_of_an_unmounted_disk_is_refused_and_stays_bare(striped: PoolMount) -> None:
    gone = Path(striped.disks[1])
    aside = take_away(gone)
    bare = snapshot(gone)
    report = refused_mount(striped)
    lines = [line for line in report.splitlines() if f"{gone}:" in line]
    assert len(lines) == 1, report
    assert "bare directory of a disk that is not mounted" in lines[0]
    assert "mount the disk there" in lines[0]
    assert snapshot(gone) == bare
    bring_back(gone, aside)
    striped.start()


def test_a_degraded_mount_writes_nothing_into_the_bare_directory(striped: PoolMount) -> None:
    gone = Path(striped.disks[1])
    aside = take_away(gone)
    bare = snapshot(gone)
    degrade(striped)
    striped.start()
    striped.make_segments(range(7, 13))
    os.unlink(striped.path(0))
    os.chmod(striped.mountpoint, 0o700)  # kept on every disk that is there
    striped.stop()
    assert snapshot(gone) == bare
    bring_back(gone, aside)
    striped.start()
    assert sorted(os.listdir(striped.mountpoint)) == [striped.path(index).name for index in range(1, 13)]
    assert os.stat(striped.mountpoint).st_mode & 0o777 == 0o700


@pytest.mark.root
def test_a_real_disk_that_is_not_mounted(disk_farm: DiskFarm, make_pool) -> None:
    disks: list[LoopDisk] = [disk_farm.add("ext4"), disk_farm.add("ext4")]
    pool = make_pool(disks=[disk.path for disk in disks])
    pool.start()
    pool.make_segments(range(3))
    pool.stop()
    disks[1].unmount()
    bare = snapshot(disks[1].path)
    report = refused_mount(pool)
    assert f"{disks[1].path}: carries no identity" in report
    degrade(pool)
    pool.start()
    pool.make_segments([3, 4])
    assert [pool.disk_of(index) for index in (0, 2, 3, 4)] == [0, 0, 0, 0]
    pool.stop()
    assert snapshot(disks[1].path) == bare
    disks[1].mount()
    del pool.settings["on_missing"]
    pool.start()
    assert [pool.path(index).read_bytes()[:4096] for index in range(5)] == [
        segment_bytes(index, 4096) for index in range(5)
    ]
    pool.stop()
    for disk in disks:
        disk.unmount()
    bare = snapshot(*(disk.path for disk in disks))
    report = refused_mount(pool)
    assert "no disk carries a commitlogfs identity; mount the disks" in report
    assert all(str(disk.path) in report for disk in disks)
    degrade(pool)
    refused_mount(pool)
    assert snapshot(*(disk.path for disk in disks)) == bare
    for disk in disks:
        disk.mount()
    pool.start()


def test_a_refusal_offers_each_remedy_once(striped: PoolMount) -> None:
    gone = Path(striped.disks[1])
    take_away(gone)
    lines = refused_mount(striped).splitlines()
    assert lines[0].endswith(
        'not mounted, 3 reasons; correct them, or set on_missing = "degraded" to serve what is there:'
    )
    assert lines[1].startswith(f"  {gone}: carries no identity")
    assert [line.split(":")[0].strip() for line in lines[2:4]] == [striped.path(1).name, striped.path(4).name]
    assert lines[4].startswith("  -> bring back the disk or the files")
    assert "on_missing" not in "".join(lines[1:])
    assert len(lines) == 5
    check = striped.cli("check", striped.config).out.splitlines()
    assert check[-1] == (
        'A mount would be refused: 3 reasons. With on_missing = "degraded" it would serve the disks that are there.'
    )
    degrade(striped)
    striped.write_config()
    assert check != striped.cli("check", striped.config).out.splitlines()
    assert "or set on_missing" not in striped.cli("check", striped.config).out


def test_ten_thousand_missing_segments_are_a_short_report() -> None:
    missing = [
        Finding(FindingCode.GAP, Severity.REFUSES, "", segment_name(2 * index, MIB), "is missing", "bring it back")
        for index in range(10_000)
    ]
    newest = Finding(
        FindingCode.NEWEST_SEGMENT_MISSING, Severity.REFUSES_ALWAYS, "", "newest", "is gone", "find it"
    )
    report = str(refusal(PoolRefusedError([*missing, newest], Severity.REFUSES), "log")).splitlines()
    assert report[:2] == [
        "log: not mounted, 10,001 reasons; correct them:",
        "  newest: is gone; find it [newest-segment-missing]",
    ]
    assert report[7:] == [
        "  and 9,995 more of this kind (gap): `commitlogfs check` shows them all",
        "  -> bring it back [gap]",
    ]
    kinds = [replace(finding, remedy=f"remedy {index}") for index, finding in enumerate(missing)]
    report = str(refusal(PoolRefusedError(kinds, Severity.REFUSES, degraded_helps=True), "log")).splitlines()
    assert len(report) == 12
    assert report[-1] == "  and 9,990 other kinds: `commitlogfs check` shows them all"


def test_all_directories_absent_gives_one_line_for_each(striped: PoolMount) -> None:
    for disk in striped.disks:
        Path(disk).rename(Path(disk).with_suffix(".aside"))
    degrade(striped)
    report = refused_mount(striped)
    assert report.splitlines()[1:] == [
        *(f"  {disk}: no such directory" for disk in striped.disks),
        "  -> mount the disk there or correct the path [disk-missing]",
    ]


def test_a_disk_of_another_pool_is_refused_even_degraded(striped: PoolMount, make_pool) -> None:
    other = striped.workdir / "other"
    other.mkdir()
    ran = striped.cli("init", "--disks", other)
    assert ran.status == 0, ran.err
    own, striped.disks = striped.disks, [striped.disks[0], other, striped.disks[2]]
    before = snapshot(other)
    for _ in range(2):
        report = refused_mount(striped)
        assert f"{other}: belongs to pool " in report
        assert "correct the path, or mount the right disk there" in report
        degrade(striped)
    assert snapshot(other) == before
    striped.disks = own
    striped.start()


def test_a_disk_of_the_pool_that_the_configuration_forgot(striped: PoolMount) -> None:
    own, striped.disks = striped.disks, striped.disks[:2]
    report = refused_mount(striped)
    (line,) = [line for line in report.splitlines() if f"{own[2]}:" in line]
    assert "disk 3 of the pool" in line
    assert "name it in the configuration" in line
    striped.disks = own
    striped.start()


def test_the_order_in_the_configuration_does_not_matter(striped: PoolMount) -> None:
    """Disks are recognised by identity: numbers, stripes and content stay."""
    striped.start()
    inodes = {index: striped.path(index).stat().st_ino for index in range(7)}
    striped.stop()
    striped.disks = list(reversed(striped.disks))
    striped.start()
    assert {index: striped.path(index).stat().st_ino for index in range(7)} == inodes
    assert [disk["number"] for disk in striped.status()["disks"]] == [1, 2, 3]
    striped.make_segments([7])
    assert striped.disk_of(7) == 1
    assert os.getxattr(striped.path(7), "user.commitlogfs.disk").decode().endswith("disk1")


def test_disks_that_changed_places_are_told_by_identity(striped: PoolMount) -> None:
    first, second = Path(striped.disks[0]), Path(striped.disks[1])
    third = first.with_name("swap")
    first.rename(third)
    second.rename(first)
    third.rename(second)
    striped.start()
    striped.make_segments([7])
    assert [striped.disk_of(index) for index in (0, 1, 7)] == [1, 0, 0]  # where the number 2 lies now


def test_a_clone_is_refused_even_degraded(striped: PoolMount) -> None:
    clone = striped.workdir / "clone"
    subprocess.run(["cp", "-a", striped.disks[1], clone], check=True)
    own, striped.disks = striped.disks, [*striped.disks, clone]
    before = snapshot(clone, *own)
    for _ in range(2):
        report = refused_mount(striped)
        assert f"{clone}: carries the same identity as {own[1]} (a copy or a clone)" in report
        assert "unmount the copy, or correct the path" in report
        degrade(striped)
    assert snapshot(clone, *own) == before
    striped.disks = own
    striped.start()


def test_a_clone_in_the_place_of_the_original_serves(striped: PoolMount) -> None:
    """A disk copied to a new one with its attributes is the disk."""
    clone = striped.workdir / "clone"
    subprocess.run(["cp", "-a", striped.disks[1], clone], check=True)
    striped.disks = [striped.disks[0], clone, striped.disks[2]]
    striped.start()
    assert striped.path(1).read_bytes()[:4096] == segment_bytes(1, 4096)


# --- degraded ----------------------------------------------------------------------------------------


@pytest.fixture
def degraded(striped: PoolMount) -> PoolMount:
    """Mounted without the second disk: segments 1 and 4 are missing."""
    take_away(Path(striped.disks[1]))
    degrade(striped)
    striped.start()
    return striped


def test_degraded_serves_the_rest_and_says_what_is_missing(degraded: PoolMount) -> None:
    assert sorted(os.listdir(degraded.mountpoint)) == [degraded.path(index).name for index in (0, 2, 3, 5, 6)]
    for index in (0, 2, 3, 5, 6):
        assert degraded.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
    status = degraded.status()
    assert status["degraded"] is True
    assert status["missing_disks"] == [str(degraded.disks[1])]
    assert status["segments"]["gaps"] == [[MIB, 2 * MIB], [4 * MIB, 5 * MIB]]
    codes = {finding["code"] for finding in status["findings"]}
    assert {"disk-without-identity", "gap"} <= codes
    assert degraded.cli("status", "--check").status == 1
    ran = degraded.cli("status")
    assert ran.status == 0
    text = ran.out
    assert "DEGRADED" in text
    assert str(degraded.disks[1]) in text
    assert degraded.path(1).name in text
    assert "GAP" in text


def test_the_log_fails_over_a_gap_and_reads_on_behind_it(degraded: PoolMount) -> None:
    with open(degraded.mountpoint / ".commitlogfs/log", "rb", buffering=0) as log:
        assert os.pread(log.fileno(), 4096, 0) == segment_bytes(0, 4096)
        for offset in (MIB, MIB + 4096, 2 * MIB - 1, 4 * MIB):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)) as error:
                os.pread(log.fileno(), 1, offset)
            assert error.value.errno == errno.EIO
        # A read that begins before the gap ends at it: never zeros.
        assert len(os.pread(log.fileno(), 8192, MIB - 4096)) == 4096
        assert os.pread(log.fileno(), 4096, 2 * MIB) == segment_bytes(2, 4096)


def test_what_may_lie_on_the_missing_disk_cannot_be_made(degraded: PoolMount) -> None:
    for name in (degraded.path(1).name, degraded.path(4).name, f".{degraded.path(4).name}.copy"):
        with pytest.raises(FileExistsError):
            os.open(degraded.mountpoint / name, os.O_RDWR | os.O_CREAT)
        assert not os.path.lexists(degraded.mountpoint / name)
    degraded.make_segments([7])
    assert [disk for disk in degraded.disks if os.path.lexists(disk / degraded.path(1).name)] == []


def test_degraded_is_refused_while_the_newest_segment_is_missing(striped: PoolMount) -> None:
    """Two histories of the log would follow."""
    gone = Path(striped.disks[0])  # holds 6, the newest
    aside = take_away(gone)
    degrade(striped)
    report = refused_mount(striped)
    (line,) = report.splitlines()  # only what refuses; no remedy that is in force already
    assert striped.path(6).name in line
    assert "newest segment" in line
    assert f"bring back {gone}" in line
    check = striped.cli("check", striped.config)
    assert check.out.splitlines()[-1] == "A mount would be refused: 1 reason."
    assert "on_missing" not in check.out
    del striped.settings["on_missing"]
    lines = refused_mount(striped).splitlines()
    assert lines[0].endswith("not mounted, 3 reasons; correct them:")
    assert lines[1].split(": ")[:2] == [f"  {striped.path(6).name}", line.split(": ")[3]]  # the worst one first
    assert "on_missing" not in "".join(lines)  # it would not help
    bring_back(gone, aside)
    striped.start()


def test_degraded_without_any_of_the_segments_left_is_refused(striped: PoolMount) -> None:
    """The only disk that is there holds nothing: the record of the newest segment says there was something."""
    shutil.rmtree(striped.workdir / "store", ignore_errors=True)
    for disk in striped.disks[:2]:
        take_away(Path(disk))
    for segment in Path(striped.disks[2]).iterdir():
        segment.rename(striped.workdir / segment.name)
    degrade(striped)
    report = refused_mount(striped)
    assert striped.path(6).name in report


def test_the_newest_segment_removed_behind_our_back_is_reported(striped: PoolMount) -> None:
    """No reason to refuse, since a power cut may undo the creation of a segment that nothing was written to."""
    newest = striped.path(6).name
    (holder,) = [Path(disk) for disk in striped.disks if (Path(disk) / newest).exists()]
    (holder / newest).unlink()
    striped.start()
    (finding,) = [one for one in striped.status()["findings"] if one["code"] == "newest-segment-missing"]
    assert (finding["severity"], finding["file"]) == ("warning", newest)
    assert "power cut" in finding["remedy"]


def test_an_empty_file_does_not_stand_for_a_missing_newest_segment(striped: PoolMount) -> None:
    """A disk that failed has kept it; the segment with the messages lies on the missing disk."""
    newest, gone = striped.path(6).name, Path(striped.disks[0])
    assert (gone / newest).exists()
    (Path(striped.disks[1]) / newest).touch()
    aside = take_away(gone)
    degrade(striped)
    report = refused_mount(striped)
    assert "the newest segment is on a missing disk" in report
    bring_back(gone, aside)
    striped.start()
    assert len(os.listdir(striped.mountpoint)) == 7
    assert striped.path(6).read_bytes().startswith(segment_bytes(6, 4096))


def test_segments_that_were_removed_meanwhile_stay_away_when_the_disk_is_back(degraded: PoolMount) -> None:
    """As by a broker that expires them: with them, the log would have gaps, and the mount would be refused."""
    gone = Path(degraded.disks[1])
    for index in (0, 2, 3):
        degraded.path(index).unlink()
    eventually(lambda: recorded_identity(degraded.disks[0]).get("removed_before") == 4 * MIB)
    degraded.stop()
    bring_back(gone, gone.with_name(f"{gone.name}.unmounted"))
    del degraded.settings["on_missing"]
    degraded.start()
    assert sorted(os.listdir(degraded.mountpoint)) == [degraded.path(index).name for index in (4, 5, 6)]
    (finding,) = [f for f in degraded.status()["findings"] if f["code"] == "removed-segments"]
    assert (finding["disk"], finding["file"], finding["severity"]) == (str(gone), degraded.path(1).name, "warning")
    with pytest.raises(FileExistsError):
        os.open(degraded.path(1), os.O_RDWR | os.O_CREAT)
    with pytest.raises(FileExistsError):
        os.open(degraded.path(0), os.O_RDWR | os.O_CREAT)
    degraded.stop()
    (gone / degraded.path(1).name).unlink()
    degraded.start()
    assert [f["code"] for f in degraded.status()["findings"] if f["code"] == "removed-segments"] == []
    eventually(lambda: [recorded_identity(disk).get("removed_before", 0) for disk in degraded.disks] == [0, 0, 0])


def test_a_disk_that_returns_takes_no_served_segment_away(striped: PoolMount) -> None:
    """It has another file of one, and nothing tells which of the two is right."""
    returning = Path(striped.disks[1])
    served = next(path for path in Path(striped.disks[2]).iterdir() if path.name.isdecimal())
    aside = take_away(returning)
    degrade(striped)
    striped.start("--watchdog", "0")
    listed = os.listdir(striped.mountpoint)
    assert served.name in listed
    bring_back(returning, aside)
    copied = returning / served.name
    shutil.copyfile(served, copied)

    def reasons() -> list[str]:
        findings = striped.status()["findings"]
        return [one["message"] for one in findings if one["code"] == "disk-not-taken-back"]

    assert "[duplicate-segment]" in eventually(reasons)[0]
    ran = striped.cli("restart", striped.name)
    assert (ran.status, "would be refused, or lack segments" in ran.err) == (4, True)
    assert os.listdir(striped.mountpoint) == listed
    copied.unlink()
    assert striped.cli("restart", striped.name).status == 0
    eventually(lambda: not striped.status()["degraded"])
    assert set(os.listdir(striped.mountpoint)) >= set(listed)
