"""A duplicate, a gap, a wrong size: the mount is refused, or what cannot be served is quarantined."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount, segment_bytes
from support.refusals import degrade, refused_mount, write_segment
from support.snapshots import snapshot

pytestmark = [pytest.mark.mounted, pytest.mark.full]

Damage = Callable[[PoolMount], None]


def duplicate(pool: PoolMount) -> None:
    shutil.copy2(pool.disks[2] / pool.path(2).name, pool.disks[0])


def cut_short(pool: PoolMount) -> None:
    os.truncate(pool.disks[2] / pool.path(2).name, MIB - 4096)


def lengthen(pool: PoolMount) -> None:
    os.truncate(pool.disks[2] / pool.path(2).name, MIB + 4096)


def lose(pool: PoolMount) -> None:
    (pool.disks[2] / pool.path(2).name).rename(pool.workdir / "lost")


def mend_duplicate(pool: PoolMount) -> None:
    (pool.disks[0] / pool.path(2).name).unlink()


def mend_size(pool: PoolMount) -> None:
    os.truncate(pool.disks[2] / pool.path(2).name, MIB)


def mend_loss(pool: PoolMount) -> None:
    (pool.workdir / "lost").rename(pool.disks[2] / pool.path(2).name)


CASES = [
    pytest.param(duplicate, mend_duplicate, ("the same segment is on", "disk0", "disk2", "cmp"), id="duplicate"),
    pytest.param(cut_short, mend_size, (f"size {MIB - 4096} instead of {MIB}", "complete or repeat"), id="short"),
    pytest.param(
        lengthen, mend_size, (f"size {MIB + 4096} instead of {MIB}", f"truncate -s {MIB} FILE"), id="long"
    ),
    pytest.param(lose, mend_loss, ("1 segment is missing", "bring back the disk or the files"), id="gap"),
]


@pytest.mark.parametrize(("damage", "mend", "words"), CASES)
def test_refused_by_name_until_the_remedy_is_applied(
    striped: PoolMount, damage: Damage, mend: Damage, words: tuple[str, ...]
) -> None:
    damage(striped)
    before = snapshot(*striped.disks)
    report = refused_mount(striped)
    lines = [line for line in report.splitlines() if striped.path(2).name in line]
    assert any(all(word in line for word in words) for line in lines), report
    assert len(report.splitlines()) <= 3
    assert snapshot(*striped.disks) == before
    mend(striped)
    striped.start()
    assert len(os.listdir(striped.mountpoint)) == 7


@pytest.mark.parametrize("damage", [duplicate, cut_short, lengthen])
def test_degraded_quarantines_what_cannot_be_served(striped: PoolMount, damage: Damage) -> None:
    damage(striped)
    degrade(striped)
    striped.start()
    kept = {
        disk: snapshot(disk / striped.path(2).name)
        for disk in striped.disks
        if os.path.lexists(disk / striped.path(2).name)
    }
    name = striped.path(2).name
    assert sorted(os.listdir(striped.mountpoint)) == [striped.path(i).name for i in (0, 1, 3, 4, 5, 6)]
    assert not os.path.lexists(striped.path(2))
    for attempt in (name, f".{name}.part"):
        source = striped.mountpoint / attempt
        with pytest.raises(FileExistsError):
            os.close(os.open(striped.path(2), os.O_CREAT | os.O_RDWR))
        if attempt != name:
            source.write_bytes(bytes(MIB))
            with pytest.raises(FileExistsError):
                source.rename(striped.path(2))
            source.unlink()
    with pytest.raises(FileNotFoundError):
        striped.path(2).unlink()
    with open(striped.mountpoint / ".commitlogfs/log", "rb") as log, pytest.raises(OSError, match="Input/output"):
        os.pread(log.fileno(), 1, 2 * MIB)
    assert {disk: snapshot(disk / name) for disk in kept} == kept
    assert any(finding["file"] == name for finding in striped.status()["findings"])


def test_a_gap_can_be_filled_through_a_degraded_mount(striped: PoolMount) -> None:
    """No disk is missing, so nothing can lie elsewhere: files that were lost are copied back."""
    lose(striped)
    degrade(striped)
    striped.start()
    shutil.copyfile(striped.workdir / "lost", striped.path(2))
    assert len(os.listdir(striped.mountpoint)) == 7
    assert striped.status()["segments"]["gaps"] == []
    assert striped.path(2).read_bytes()[:4096] == segment_bytes(2, 4096)


@pytest.mark.parametrize("damage", ["duplicate", "wrong size"])
def test_degraded_is_refused_where_the_newest_segment_cannot_be_served(striped: PoolMount, damage: str) -> None:
    """Two histories of the log would follow, as with a missing disk."""
    newest = striped.disks[0] / striped.path(6).name
    if damage == "duplicate":
        shutil.copy2(newest, striped.disks[1])
    else:
        os.truncate(newest, 4096)
    degrade(striped)
    report = refused_mount(striped)
    assert "the log has no newer segment" in report
    assert newest.name in report
    assert len(report.splitlines()) == 1


def test_thousands_of_gaps_make_a_short_report(striped: PoolMount) -> None:
    """As after the loss of one disk of many."""
    for index in range(8, 200, 2):
        write_segment(Path(striped.disks[index % 3]), index)
    report = refused_mount(striped)
    assert len(report.splitlines()) <= 8
    assert "not mounted, 96 reasons; correct them, or set on_missing" in report
    assert "and 91 more of this kind (gap): `commitlogfs check` shows them all" in report
    assert " 00000000000007340032: 1 segment is missing" in report  # a gap lies on no disk: no path before it


PLANTED = {
    "symbolic link": lambda path: os.symlink("/etc/hostname", path),
    "fifo": os.mkfifo,
    "directory": os.mkdir,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_an_irregular_file_is_reported_and_its_name_is_taken(striped: PoolMount, kind: str) -> None:
    """Served all the same: no segment is missing by it."""
    planted = striped.disks[1] / striped.path(7).name
    PLANTED[kind](planted)
    before = snapshot(planted)
    striped.start()
    assert not os.path.lexists(striped.path(7))
    assert len(os.listdir(striped.mountpoint)) == 7
    with pytest.raises(FileExistsError):
        os.open(striped.path(7), os.O_CREAT | os.O_RDWR)
    (finding,) = [f for f in striped.status()["findings"] if f["code"] == "not-a-regular-file"]
    assert finding["file"] == planted.name
    assert kind in finding["message"]
    assert snapshot(planted) == before
