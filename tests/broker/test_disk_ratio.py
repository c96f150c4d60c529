"""A broker computes the same ratio from the mount's statfs as from the disks."""

import os
import time

import pytest
from support.brokers import fill
from support.pools import MIB
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

JAVA_LONG_MAX = 2**63 - 1


def rocketmq_ratio(path) -> float:
    """UtilAll#getDiskPartitionSpaceUsedPercent of RocketMQ 5.5.0: three questions, long arithmetic, rounded up
    to a whole percent."""
    if not os.path.exists(path):
        return -1
    total = java_total(path)
    if total <= 0:
        return -1
    used = total - java_free(path)
    entire = used + java_usable(path)
    rounded = 1 if used * 100 % entire else 0
    return (used * 100 // entire + rounded) / 100


def java_total(path):
    st = os.statvfs(path)
    return min(st.f_frsize * st.f_blocks, JAVA_LONG_MAX)


def java_free(path):
    st = os.statvfs(path)
    return min(st.f_frsize * st.f_bfree, JAVA_LONG_MAX)


def java_usable(path):
    st = os.statvfs(path)
    return min(st.f_frsize * st.f_bavail, JAVA_LONG_MAX)


@pytest.mark.parametrize("trigger", ["all", "any"])
def test_ratio_is_that_of_the_deciding_disk(disk_farm, make_pool, trigger):
    """All: the least full disk, as native multi-path; any: the fullest, as RIP-7 has it."""
    for fstype, size in (("ext4", 128 * MIB), ("xfs", 300 * MIB), ("ext4", 200 * MIB)):
        disk_farm.add(fstype, size)
    directories = [disk.path / "commitlog" for disk in disk_farm.disks]
    pool = make_pool(disks=directories, segment_size=4 * MIB, settings={"trigger": f'"{trigger}"'})
    pool.start()
    choose = min if trigger == "all" else max

    def shown() -> float:
        """The ratio of the mount. It may be a second old, and xfs frees blocks some time after a removal."""
        native = choose(rocketmq_ratio(directory) for directory in directories)
        assert rocketmq_ratio(pool.mountpoint) == native
        return native

    seen = set()
    index = 0
    while max(rocketmq_ratio(directory) for directory in directories) < 0.85:
        pool.make_segments([index], fill=False)
        index += 1
        seen.add(eventually(shown))
    assert len(seen) > 15
    assert pool.status()["statfs"]["used_percent"] == round(shown() * 100)
    # Then with one disk much fuller than the others: foreign data, but less than `clean`.
    fill(disk_farm.disks[1].path, 86)
    eventually(shown)


def wait_fresh():
    """statfs is at most a second old."""
    time.sleep(1.1)


def test_foreign_data_is_never_shown_above_clean(disk_farm, make_pool):
    """Deleting segments could not cure it: a broker that saw it would empty its log for nothing."""
    disk_farm.add("ext4", 128 * MIB)
    directory = disk_farm.disks[0].path / "commitlog"
    pool = make_pool(disks=[directory])
    pool.start()
    pool.make_segments(range(3), fill=False)
    fill(disk_farm.disks[0].path, 89)
    wait_fresh()
    assert rocketmq_ratio(directory) > 0.85
    assert rocketmq_ratio(pool.mountpoint) == 0.75
