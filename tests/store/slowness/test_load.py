"""How busy the machine is, beside work that makes it so."""

import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm

from commitlogfs.store.slowness.load import Machine, MachineLoad, device_counters, whole_device
from commitlogfs.store.timing import DEFAULT


def spin() -> None:
    while True:
        pass


@pytest.mark.timing
def test_busy_processors() -> None:
    machine = MachineLoad(DEFAULT.pace.load_s)
    processes = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    try:
        time.sleep(1.0)
        busy = machine.busy([], time.monotonic())
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert 0.7 < busy <= 1.0


@pytest.mark.root
@pytest.mark.timing
def test_a_busy_disk(disk_farm: DiskFarm) -> None:
    """Writes of one byte after the other keep a disk busy, and other disks do not count."""

    def write_on(file: Path, seconds: float) -> None:
        fd = os.open(file, os.O_RDWR | os.O_DSYNC)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                os.pwrite(fd, b"x", 0)
        finally:
            os.close(fd)

    busy_disk, idle_disk = (disk_farm.add("ext4").path for _ in range(2))
    file = busy_disk / "file"
    file.write_bytes(bytes(1 << 20))
    devices = [os.stat(disk).st_dev for disk in (busy_disk, idle_disk)]
    machine = IdleProcessors()  # tests beside this one keep them busy
    write_on(file, 0.1)
    busy_ms = MachineLoad(DEFAULT.pace.load_s, machine)
    now = time.monotonic()
    busy_ms.busy(devices, now)
    of_busy = counted(lambda: write_on(file, 0.5), devices[:1], machine)
    of_idle = counted(lambda: time.sleep(0.5), devices[1:], machine)
    assert of_busy > of_idle
    assert of_busy > 0.2


def counted(work: Callable[[], None], devices: list[int], machine: Machine) -> float:
    load = MachineLoad(DEFAULT.pace.load_s, machine)
    load.busy(devices, time.monotonic())
    work()
    return load.busy(devices, time.monotonic())


class IdleProcessors(Machine):
    def processor_times(self) -> tuple[int, int]:
        return 0, 0


def test_a_device_without_counters_is_idle(tmp_path: Path) -> None:
    now_s = time.monotonic()
    assert 0.0 <= MachineLoad(DEFAULT.pace.load_s).busy([os.makedev(0, 12345)], now_s) <= 1.0


@pytest.mark.root
def test_counters_of_a_device(disk_farm: DiskFarm) -> None:
    disk = disk_farm.add("ext4").path
    device = disk.stat().st_dev
    before = device_counters(device)
    fd = os.open(disk / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fsync(fd)
    os.close(fd)
    after = device_counters(device)
    assert before is not None
    assert after is not None
    assert after.write_bytes - before.write_bytes >= 1 << 20
    assert 0 < after.writes - before.writes < 100
    assert after.write_ms >= before.write_ms
    assert after.reads >= before.reads


def test_a_device_without_counters_is_unknown() -> None:
    assert device_counters(os.makedev(0, 12345)) is None
    assert whole_device(os.makedev(0, 12345)) is None


@pytest.mark.root
def test_partitions_are_one_device(disk_farm: DiskFarm, workdir: Path) -> None:
    image = workdir / "partitioned"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    command = ["losetup", "--show", "-f", str(image)]
    device = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    try:
        for number in (1, 2):  # of 8 MiB each
            subprocess.run(["addpart", str(device), str(number), str(number * 16384), "16384"], check=True)
        whole = whole_device(device.stat().st_rdev)
        assert whole is not None
        assert whole.device == device.stat().st_rdev
        for number in (1, 2):
            partition = Path(f"/sys/class/block/{device.name}p{number}/dev").read_text().split(":")
            assert whole_device(os.makedev(*map(int, partition))) == whole
        other = disk_farm.add("ext4").path
        assert whole_device(other.stat().st_dev) != whole
    finally:
        for number in (1, 2):  # they would outlive the image
            subprocess.run(["delpart", str(device), str(number)], check=False)
        subprocess.run(["losetup", "-d", str(device)], check=True)
