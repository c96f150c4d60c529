"""`commitlogfs check --repair`: the disks of an unmounted pool as a mount would leave them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checksums import LONG_AGO_NS
from support.pools import MIB, PoolMount, segment_name
from support.refusals import write_segment
from support.snapshots import snapshot

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import stat_name, unpack
from commitlogfs.store.moves.mark import source_of, write_mark, write_repair_mark

pytestmark = [pytest.mark.mounted, pytest.mark.root]


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Six segments in turn on two disks; not mounted."""
    pool = make_pool(2)
    for index in range(6):
        write_segment(pool.disks[index % 2], index)
        os.utime(place(pool, index % 2, index), ns=(LONG_AGO_NS, LONG_AGO_NS))
    return pool


def place(pool: PoolMount, disk: int, index: int) -> Path:
    return Path(pool.disks[disk]) / segment_name(index, MIB)


def copy_without_end(pool: PoolMount, index: int, *, repairs: bool) -> Path:
    """The state after a crash that came before the former file was removed, or set aside. Returns the copy."""
    source, copy = place(pool, index % 2, index), place(pool, 1 - index % 2, index)
    shutil.copy(source, copy)
    dirfd = os.open(source.parent, os.O_RDONLY)
    former = source_of(DiskNumber(index % 2 + 1), unpack(stat_name(dirfd, os.fsencode(source.name))))
    os.close(dirfd)
    with copy.open("rb") as file:
        write_mark(file.fileno(), former)
        if repairs:
            write_repair_mark(file.fileno(), former)
    os.utime(copy, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return copy


def names(pool: PoolMount) -> list[str]:
    """Every file on the disks."""
    return sorted(
        str(Path(directory, name).relative_to(Path(disk).parent))
        for disk in pool.disks
        for directory, _, found in os.walk(disk)
        for name in found
    )


def test_what_a_crash_has_left_is_finished(pool: PoolMount) -> None:
    one, two = map(Path, pool.disks)
    moved, repaired = copy_without_end(pool, 0, repairs=False), copy_without_end(pool, 1, repairs=True)
    place(pool, 0, 3).touch()  # an empty leftover
    os.link(place(pool, 0, 2), one / f".{segment_name(2, MIB)}.abc")  # a rename without its end
    (two / ".commitlogfs").mkdir()
    (two / ".commitlogfs" / f"{segment_name(0, MIB)}.0123abcd").write_bytes(bytes(MIB))  # removed while open
    before, present = snapshot(one, two), names(pool)

    planned = pool.cli("check", pool.config, "--repair", "--dry-run", "--json").json()
    assert planned["repairs"] == [
        f"{two}: would free removed segment {segment_name(0, MIB)}.0123abcd",
        f"{one}: would finish the rename of .{segment_name(2, MIB)}.abc",
        f"{one}: would remove former file {segment_name(0, MIB)}",
        f"{two}: would set aside damaged file {segment_name(1, MIB)}",
        f"{one}: would remove empty file {segment_name(3, MIB)}",
    ]
    assert snapshot(one, two) == before
    assert names(pool) == present

    ran = pool.cli("check", pool.config, "--repair")
    assert ran.out.splitlines()[:5] == [line.replace("would free", "freed") for line in ran.out.splitlines()[:5]]
    assert f"{two}: set aside damaged file {segment_name(1, MIB)}" in ran.out
    (aside,) = (two / ".commitlogfs").iterdir()
    assert aside.name.endswith(".damaged")
    assert names(pool) == sorted(
        [
            *(f"{one.name}/{segment_name(index, MIB)}" for index in (1, 2, 4)),
            *(f"{two.name}/{segment_name(index, MIB)}" for index in (0, 3, 5)),
            f"{two.name}/.commitlogfs/{aside.name}",
        ]
    )
    assert [os.listxattr(copy) for copy in (moved, repaired)] == [[], []]
    again = pool.cli("check", pool.config, "--json", "--repair").json()
    assert again["repairs"] == [f"{two}: kept {aside.name}, which is needed"]
    assert {finding["code"] for finding in again["findings"]} <= {"set-aside", "disks-share-filesystem"}
    pool.start()
    assert len(os.listdir(pool.mountpoint)) == 6


def test_a_sound_pool_needs_none(pool: PoolMount) -> None:
    before = snapshot(*pool.disks)
    ran = pool.cli("check", pool.config, "--repair")
    assert ran.out.splitlines()[0] == "test: nothing to repair"
    assert snapshot(*pool.disks) == before


@pytest.mark.parametrize("is_truncated", [True, False])
@pytest.mark.parametrize("reason", ["moved", "damaged"])
def test_what_may_be_the_only_file_of_a_segment_stays(pool: PoolMount, reason: str, is_truncated: bool) -> None:
    """A repair of the filesystem has cut or removed the copy after a power cut."""
    pool.settings = {"on_missing": '"degraded"'}
    pool.write_config()
    former = place(pool, 1, 2).parent / ".commitlogfs" / f"{segment_name(2, MIB)}.0123abcd.{reason}"
    former.parent.mkdir()
    former.write_bytes(bytes(MIB))
    if is_truncated:
        os.truncate(place(pool, 0, 2), 4096)
    else:
        place(pool, 0, 2).unlink()
    ran = pool.cli("check", pool.config, "--repair")
    assert f"{pool.disks[1]}: kept {former.name}, which is needed" in ran.out
    assert former.stat().st_size == MIB


def test_a_file_that_a_process_has_open_stays(pool: PoolMount) -> None:
    copy_without_end(pool, 0, repairs=False)
    with place(pool, 0, 0).open("rb"):
        ran = pool.cli("check", pool.config, "--repair")
        assert f"{pool.disks[0]}: kept {segment_name(0, MIB)}, which is needed" in ran.out
    assert place(pool, 0, 0).exists()


def test_a_mounted_pool_is_refused(pool: PoolMount) -> None:
    pool.start()
    ran = pool.cli("check", pool.config, "--repair")
    assert (ran.status, "its daemon is running already" in ran.err) == (4, True)


def test_a_pool_that_cannot_be_mounted_is_refused(pool: PoolMount) -> None:
    copy_without_end(pool, 0, repairs=False)
    place(pool, 1, 3).unlink()  # a gap
    before = names(pool)
    ran = pool.cli("check", pool.config, "--repair")
    assert (ran.status, "[gap]" in ran.err) == (4, True)
    assert names(pool) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dry-run",), "--dry-run belongs to --repair"),
        (("--repair", "--disks"), "--repair needs a configuration"),
    ],
)
def test_options_that_do_not_fit_are_refused(pool: PoolMount, options: tuple[str, ...], said: str) -> None:
    disks = [",".join(map(str, pool.disks))] if "--disks" in options else []
    ran = pool.cli("check", *options, *disks)
    assert (ran.status, said in ran.err) == (2, True)
