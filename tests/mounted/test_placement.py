"""Where segments go on real ext4 and xfs disks, and what fill levels change about it."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.filling import fill_and_await, status
from support.loop_disks import DiskFarm, LoopDisk, mkfs_available
from support.pools import MIB, PoolMount, segment_bytes

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

FARM = ("ext4", "xfs" if mkfs_available("xfs") else "ext4", "ext4")

NOTHING_BY_FORCE = {"mode": '"off"'}

MakePool = Callable[..., PoolMount]
StartPool = Callable[..., PoolMount]


def member_directory(disk: LoopDisk) -> Path:
    directory = disk.path / "commitlog"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@pytest.fixture
def start_pool(disk_farm: DiskFarm, make_pool: MakePool) -> StartPool:  # the pools go before the disks
    """A mounted pool on new disks of the given filesystem types; members are directories, so that foreign files
    can lie beside them."""

    def start(fstypes: Sequence[str] = FARM, **options: object) -> PoolMount:
        directories = [member_directory(disk_farm.add(fstype)) for fstype in fstypes]
        pool = make_pool(disks=directories, **options)
        pool.start()
        return pool

    return start


def places(pool: PoolMount, indexes: range) -> list[int]:
    return [pool.disk_of(index) for index in indexes]


def test_twelve_segments_lie_on_three_disks_in_turn(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.make_segments(range(12))
    assert places(pool, range(12)) == [0, 1, 2] * 4
    for index in range(12):
        plain = (Path(pool.disks[index % 3]) / pool.path(index).name).stat()
        through = pool.path(index).stat()
        assert plain.st_size == through.st_size == MIB
        assert plain.st_blocks == through.st_blocks >= MIB // 512
    pool.restart()
    pool.make_segments(range(12, 15))
    assert places(pool, range(12, 15)) == [0, 1, 2]


def test_a_disk_above_force_is_skipped_until_below_resume(start_pool: StartPool) -> None:
    pool = start_pool()
    pool.make_segments(range(3))
    fill_and_await(pool, 1, 86)
    pool.make_segments(range(3, 7))
    assert places(pool, range(3, 7)) == [0, 2, 0, 2]
    assert status(pool)["disks"][1]["refusal"] == "above-force"

    fill_and_await(pool, 1, 84)  # below force = 85, not below resume = 83
    pool.make_segments(range(7, 9))
    assert places(pool, range(7, 9)) == [0, 2]

    fill_and_await(pool, 1, 80)
    pool.make_segments(range(9, 12))
    assert places(pool, range(9, 12)) == [0, 1, 2]
    # Below force and never skipped: the level between resume and force alone does not skip it.
    fill_and_await(pool, 1, 84)
    pool.make_segments(range(12, 14))
    assert places(pool, range(12, 14)) == [0, 1]


def test_with_all_disks_above_force_all_are_used_up_to_full_and_then_none(start_pool: StartPool) -> None:
    pool = start_pool(retention=NOTHING_BY_FORCE)
    pool.make_segments(range(3))
    for index in range(3):
        fill_and_await(pool, index, 86)
    pool.make_segments(range(3, 6))
    assert places(pool, range(3, 6)) == [0, 1, 2]
    assert status(pool)["placement"]["fallback"] is True

    fill_and_await(pool, 0, 91)  # at full: out, even of the fall-back
    pool.make_segments(range(6, 8))
    assert places(pool, range(6, 8)) == [1, 2]

    for index in range(1, 3):
        fill_and_await(pool, index, 91)
    assert status(pool)["placement"]["next_disk"] is None
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([8])
    assert refused.value.errno == errno.ENOSPC
    assert not pool.path(8).exists()
    assert pool.path(7).read_bytes().startswith(segment_bytes(7, 4096))

    fill_and_await(pool, 2, 50)
    pool.make_segments([8])
    assert pool.disk_of(8) == 2


def test_removing_a_segment_makes_room_for_the_next_at_once(start_pool: StartPool) -> None:
    pool = start_pool(["ext4"], segment_size=4 * MIB, retention=NOTHING_BY_FORCE)
    made = 0
    while status(pool)["placement"]["next_disk"] is not None:
        pool.make_segments([made])
        made += 1
    assert made > 5
    with pytest.raises(OSError) as refused:  # noqa: PT011
        pool.make_segments([made])
    assert refused.value.errno == errno.ENOSPC
    pool.path(0).unlink()
    pool.make_segments([made])
    assert pool.disk_of(made) == 0


def test_a_disk_crossing_force_between_look_ahead_and_use_makes_no_second_file(start_pool: StartPool) -> None:
    """RocketMQ #8859: the next-next segment is made in one directory, then the same offset in another."""
    pool = start_pool()
    pool.make_segments(range(2))
    pool.make_segments([2], fill=False)  # the segment made ahead
    ahead = pool.disk_of(2)
    fill_and_await(pool, ahead, 87)
    fd = os.open(pool.path(2), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(fd, MIB)
        os.pwrite(fd, segment_bytes(2, 4096), 0)
    finally:
        os.close(fd)
    pool.make_segments([3])
    assert pool.disk_of(2) == ahead  # which also says: exactly one file
    assert (Path(pool.disks[ahead]) / pool.path(2).name).read_bytes().startswith(segment_bytes(2, 4096))
    assert pool.disk_of(3) != ahead
    pool.restart()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(4)]


def test_modulo_lays_out_by_sorted_path_whatever_the_order_of_the_configuration(
    disk_farm: DiskFarm, make_pool: MakePool
) -> None:
    directories = [member_directory(disk_farm.add("ext4", label=label)) for label in ("b", "c", "a")]
    pool = make_pool(disks=directories, settings={"placement": '"modulo"'})
    pool.start()
    pool.make_segments(range(7, 13))
    by_path = sorted(range(3), key=lambda index: str(directories[index]))
    assert places(pool, range(7, 13)) == [by_path[index % 3] for index in range(7, 13)]
    # Unlike round-robin, modulo counts over the eligible disks only, as RocketMQ does.
    fill_and_await(pool, by_path[0], 87)
    pool.make_segments(range(13, 17))
    assert places(pool, range(13, 17)) == [by_path[1 + index % 2] for index in range(13, 17)]


def test_weighted_favours_free_space(start_pool: StartPool) -> None:
    if not mkfs_available("xfs"):
        pytest.skip("no mkfs.xfs")
    pool = start_pool(["ext4", "xfs"], settings={"placement": '"weighted"'})
    pool.make_segments(range(40))
    on_large = sum(places(pool, range(40)))  # about 60 MiB against 280 MiB: 33 of 40 on average
    assert on_large > 20


def test_weighted_favours_weight(make_pool: MakePool) -> None:
    pool = make_pool(2, settings={"placement": '"weighted"'}, disk_settings={0: {"weight": "10.0"}})
    pool.start()
    pool.make_segments(range(40), fill=False)
    assert places(pool, range(40)).count(0) > 20  # 36 on average
