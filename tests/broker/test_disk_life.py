"""Disks come, are cordoned and die while a broker works."""

import os
import time
from pathlib import Path

import pytest
from support.brokers import appending, check_all, line_count, roll, send_all, slave_of, wait_until
from support.flaky_disks import FlakyDisk, flaky_available
from support.loop_disks import DiskFarm
from support.pools import MIB

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]


def test_a_fourth_disk_and_a_cordon(disk_farm: DiskFarm, new_stand, newest, workdir: Path):
    """Added by hand-over, without an unmount; what the broker has mapped stays mapped."""
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start("--watchdog", "0")
    new = disk_farm.add("xfs", 512 * MIB, "fourth").path / "commitlog"
    with stand.broker(newest) as broker:
        with appending(stand, broker, newest, "Life", workdir):
            ran = pool.cli("disk", "add", new, pool.name)
            assert ran.status == 0, ran.err
            pool.disks = [*pool.disks, new]
            roll(stand, 2)  # what was made ahead
            assert set(roll(stand, 6)) == {0, 1, 2, 3}
            assert pool.cli("disk", "cordon", 1, pool.name, "--reason", "test").status == 0
            roll(stand, 2)
            assert set(roll(stand, 6)) == {1, 2, 3}
            assert pool.cli("disk", "uncordon", 1, pool.name).status == 0
            roll(stand, 2)
            assert set(roll(stand, 6)) == {0, 1, 2, 3}
        assert pool.status()["daemon"]["restarts"] == 1
        broker.kill()
        broker.start()
        check_all(newest, stand.names, "Restarted", send_all(newest, stand.names, "Restarted", 100))


def test_a_dead_disk_is_given_up_while_the_broker_runs(new_stand, newest, workdir: Path):
    """It answers nothing any more, and may hold the newest segment: the broker continues on the others, and starts
    on them."""
    lack = flaky_available()
    if lack:
        pytest.skip(lack)
    stand = new_stand(("ext4", "ext4", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB, flaky=[0])
    pool, flaky = stand.pool, stand.disks[0]
    assert isinstance(flaky, FlakyDisk)
    pool.init()
    pool.start("--watchdog", "0")
    acked = workdir / "acked"
    with stand.broker(newest) as broker:
        with rocketmq.start_sender(
            newest, stand.names.address, "Dying", size_bytes=4096, rate=1500, acked=acked
        ) as sender:
            wait_until(lambda: line_count(acked) >= 4000, "some segments on each disk")
            flaky.fail_writes()
            flaky.fail_reads()
            wait_until(lambda: pool.status()["disks"][0]["state"] == "failed", "the failure to be noticed", 120)
            ran = pool.cli("disk", "remove", "--lost", "--yes", 1, pool.name)
            assert ran.status == 0, ran.err
            before = line_count(acked)
            wait_until(lambda: line_count(acked) > before + 1000, "the broker to go on")
            sender.stop()
        pool.disks = pool.disks[1:]
        status = pool.status()
        assert (status["degraded"], len(status["disks"])) == (False, 2)
        assert status["segments"]["accepted_gaps"] == len(status["segments"]["gaps"]) > 0, status["segments"]
        broker.kill()
        broker.start()
        check_all(newest, stand.names, "After", send_all(newest, stand.names, "After", 100))


def test_a_dead_disk_is_replaced_and_a_slave_fills_its_gaps(disk_farm: DiskFarm, new_stand, newest, workdir: Path):
    lack = flaky_available()
    if lack:
        pytest.skip(lack)
    stand = new_stand(("ext4", "ext4", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB, flaky=[0])
    pool, flaky = stand.pool, stand.disks[0]
    assert isinstance(flaky, FlakyDisk)
    pool.init()
    pool.start("--watchdog", "0")
    new, acked = disk_farm.add("ext4", 512 * MIB, "new").path / "commitlog", workdir / "acked"
    with stand.broker(newest) as master, slave_of(stand, newest, master, workdir / "slave") as slave:
        copies = slave.commitlog_dirs[0]
        send_all(newest, stand.names, "Replicated", 100)
        wait_until(lambda: (copies / f"{0:020d}").exists(), "the slave to replicate from the beginning")
        with rocketmq.start_sender(
            newest, stand.names.address, "Replaced", size_bytes=4096, rate=1500, acked=acked
        ) as sender:
            wait_until(lambda: line_count(acked) >= 4000, "some segments on each disk")
            flaky.fail_writes()
            flaky.fail_reads()
            wait_until(lambda: pool.status()["disks"][0]["state"] == "failed", "the failure to be noticed", 120)
            ran = pool.cli("disk", "replace", "--yes", 1, new, pool.name)
            assert ran.status == 0, ran.err
            before = line_count(acked)
            wait_until(lambda: line_count(acked) > before + 4000, "the broker to go on")
            sent = sender.stop()
        pool.disks = [*pool.disks[1:], new]
        status = pool.status()
        assert (status["degraded"], len(status["disks"])) == (False, 3)
        assert status["segments"]["accepted_gaps"] == len(status["segments"]["gaps"]) > 0, status["segments"]
        assert any((new / name).exists() for name in os.listdir(pool.mountpoint))
        end = max(os.listdir(pool.mountpoint))
        wait_until(lambda: (copies / end).exists(), "the slave to have the end")
        ran = pool.cli("restore", pool.name, "--from", copies)
        assert ran.status == 0, ran.out + ran.err
        assert pool.status()["segments"]["gaps"] == []
        sealed = sorted(os.listdir(pool.mountpoint))[:-3]
        for name in sealed:
            assert (pool.mountpoint / name).read_bytes() == (copies / name).read_bytes(), name
        master.kill()
        master.start()
        check_all(newest, stand.names, "Replaced", sent)


@pytest.mark.timing
def test_a_machine_starts_without_the_disk_of_the_newest_segment(new_stand, newest):
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start()
    with stand.broker(newest) as broker:
        send_all(newest, stand.names, "Before", 3000, size_bytes=4096)
        broker.kill()
        newest_segment = max(os.listdir(pool.mountpoint))
        index = next(n for n, d in enumerate(stand.directories()) if (d / newest_segment).exists())
        pool.stop()
        stand.disks[index].unmount()
        refused = pool.cli("mount", pool.config)
        assert refused.status == 4
        assert "[newest-segment-missing]" in refused.err
        started = time.monotonic()
        ran = pool.cli("disk", "remove", "--lost", "--yes", index + 1, pool.config)
        assert ran.status == 0, ran.err
        lost = pool.disks[index]
        pool.disks = [disk for disk in pool.disks if disk != lost]
        pool.start()
        broker.start()
        check_all(newest, stand.names, "After", send_all(newest, stand.names, "After", 100))
        assert time.monotonic() - started < 60
        broker.kill()
        pool.stop()
    stand.disks[index].mount()
    pool.disks = [*pool.disks, lost]
    pool.write_config()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "[disk-removed]" in refused.err
