"""Before a `restart` all disks are read: slow ones are waited for, one that hangs is not."""

import time
from collections.abc import Callable

import pytest
from support.flaky_disks import FlakyDisk, SlowDisk, flaky_available
from support.loop_disks import DiskFarm
from support.pools import PoolMount
from support.refusals import write_segment

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import load_config
from commitlogfs.mount.preflight.rehearsal import why_not_mountable
from commitlogfs.store.pool.open import OnMissing

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

SEGMENTS = 40


def cold_pool(disk: FlakyDisk, make_pool: Callable[..., PoolMount]) -> PoolMount:
    """A pool on one disk of which nothing is in memory."""
    directory = disk.path / "commitlog"
    directory.mkdir()
    pool = make_pool(disks=[directory])
    for index in range(SEGMENTS):
        write_segment(directory, index)
    disk.unmount()
    disk.mount()
    return pool


@pytest.fixture(autouse=True)
def _servers() -> None:
    lack = flaky_available()
    if lack:
        pytest.skip(lack)


@pytest.mark.timing
def test_slow_disks_are_waited_for_while_they_answer(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]
) -> None:
    pool = cold_pool(disk_farm.add_of(SlowDisk), make_pool)
    silence_s = 2 * SlowDisk.read_delay_ms / 1000
    started = time.monotonic()
    assert why_not_mountable(load_config(pool.config), OnMissing.REFUSE, silence_s) == []
    assert time.monotonic() - started > silence_s


@pytest.mark.alone
def test_a_disk_that_hangs_is_not_waited_for(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount]) -> None:
    disk = disk_farm.add_of(FlakyDisk)
    pool = cold_pool(disk, make_pool)
    config = load_config(pool.config)
    with disk.hanging(), pytest.raises(RefusedError) as refused:
        why_not_mountable(config, OnMissing.REFUSE, 2.0)
    assert str(refused.value) == (
        f"{pool.name}: not restarted: a disk has not answered for 2 s, and a successor would also wait for it; "
        f"see `dmesg` and `commitlogfs doctor {pool.name}`, and repair or detach that disk"
    )
    assert why_not_mountable(config, OnMissing.REFUSE) == []
