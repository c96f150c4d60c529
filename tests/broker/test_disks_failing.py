"""A disk fails at a create while the broker appends: it notices nothing over many segments."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import Stand, appending, fill, roll, send_all, wait_until
from support.pools import MIB

from commitlogfs.bench.rocketmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root]


@pytest.fixture(scope="module")
def stand(module_stand) -> Stand:
    stand = module_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    stand.pool.init()
    stand.pool.start()
    return stand


@pytest.fixture(scope="module")
def broker(stand, newest) -> Iterator[Broker]:
    with stand.broker(newest) as broker:
        send_all(newest, stand.names, "First", 100)
        yield broker
        broker.kill()


def test_disk_above_force_is_skipped_until_below_resume(stand, broker, newest, workdir):
    with appending(stand, broker, newest, "Force", workdir):
        filler = fill(stand.disks[0].path, 86)
        roll(stand, 2)  # what was made ahead
        assert set(roll(stand)) == {1, 2}
        filler.unlink()
        roll(stand, 2)
        assert set(roll(stand)) == {0, 1, 2}


def test_disk_without_room_is_passed_over(stand, broker, newest, workdir):
    with appending(stand, broker, newest, "Full", workdir):
        filler = fill(stand.disks[1].path, 99.9)
        roll(stand, 2)
        assert set(roll(stand)) == {0, 2}
        filler.unlink()
        roll(stand, 2)
        assert set(roll(stand)) == {0, 1, 2}


def test_disk_that_refuses_at_the_create_itself_is_passed_over(stand, broker, newest, workdir):
    """Room enough by every measurement, but no inode left: only the create finds out."""
    disk = stand.disks[2]
    hoard = disk.path / "hoard"
    hoard.mkdir()
    with appending(stand, broker, newest, "Inodes", workdir):
        made = use_up_inodes(hoard)
        roll(stand, 2)
        assert set(roll(stand)) == {0, 1}
        stand.pool.require_logged("create_moved_on")
        for path in made:
            path.unlink()
        roll(stand, 2)
        wait_until(lambda: 2 in roll(stand, 3), "the disk to be used again")


def use_up_inodes(directory: Path) -> list[Path]:
    made: list[Path] = []
    try:
        while True:
            path = directory / f"{len(made)}"
            path.touch()
            made.append(path)
    except OSError:
        return made


def flushed_offset(broker) -> int:
    """Up to where the broker has flushed its log, which it does in the background."""
    info = broker.runtime_info()
    number, unit = info["remainHowManyDataToFlush"].split()
    factor = 1 << 10 * ["B", "KiB", "MiB", "GiB"].index(unit)
    return int(info["commitLogMaxOffset"]) - round(float(number) * factor)


def test_disk_that_turns_read_only_is_passed_over(stand, broker, newest, workdir):
    """ext4's own reaction to an error (errors=remount-ro), at a moment when the broker writes elsewhere: what
    it had acknowledged into the page cache of that disk would be lost on any filesystem."""
    disk = stand.disks[0]
    subprocess.run(["mount", "-o", "remount,errors=remount-ro", str(disk.path)], check=True)
    device = Path(disk.device).name
    with appending(stand, broker, newest, "ReadOnly", workdir):
        # Only other disks are written to while this one is skipped; then it is clean and takes the next segment.
        filler = fill(disk.path, 86)
        roll(stand, 6)
        behind = int(max(os.listdir(stand.directories()[0]))) + stand.pool.segment_size
        wait_until(lambda: flushed_offset(broker) >= behind, "the broker to have flushed its segments")
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
        with pytest.raises(OSError, match="Read-only"):
            (disk.path / "probe").touch()
        assert filler.exists()
        assert set(roll(stand)) == {1, 2}
