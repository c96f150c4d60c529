"""Figures of block devices from two readings of their counters."""

import os
from pathlib import Path

import pytest

from commitlogfs.mount.top.devices import Devices, figures_between
from commitlogfs.store.slowness.load import DeviceCounters

BEFORE = DeviceCounters(100, 1 << 20, 1000, 200, 2 << 20, 2000, 0, 5000)


def test_rates_times_and_queue_of_a_busy_device() -> None:
    after = DeviceCounters(110, 3 << 20, 1100, 240, 6 << 20, 2400, 0, 6000, under_way=7)
    figures = figures_between("vda", BEFORE, after, 2.0)
    assert figures.read_bytes_per_second == 1 << 20
    assert figures.written_bytes_per_second == 2 << 20
    assert figures.read_s == pytest.approx(0.01)
    assert figures.write_s == pytest.approx(0.01)
    assert figures.busy_ratio == 0.5
    assert figures.queue == pytest.approx(0.25)


def test_a_device_that_ends_nothing_shows_what_is_under_way() -> None:
    after = DeviceCounters(100, 1 << 20, 1000, 200, 2 << 20, 2000, 0, 7000, under_way=7)
    figures = figures_between("vda", BEFORE, after, 2.0)
    assert (figures.read_s, figures.write_s, figures.busy_ratio, figures.queue) == (None, None, 1.0, 7.0)


def test_counters_that_began_anew_count_as_no_work() -> None:
    after = DeviceCounters(1, 512, 1, 1, 512, 1, 0, 1)
    figures = figures_between("vda", BEFORE, after, 2.0)
    assert (figures.read_bytes_per_second, figures.written_bytes_per_second, figures.busy_ratio) == (0, 0, 0)


def test_a_path_has_the_device_of_its_mount(tmp_path: Path) -> None:
    devices = Devices()
    absent = str(tmp_path / "absent")
    assert devices.measure({"disk": absent}, 1.0) == {"disk": None}
    device = tmp_path.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    assert devices.names({"disk": absent}) == {"disk": link.readlink().name if link.exists() else ""}


def test_a_filesystem_without_a_device_has_no_figures() -> None:
    devices = Devices()
    assert [devices.measure({"disk": "/proc/self"}, now_s) for now_s in (1.0, 2.0)] == [{"disk": None}] * 2
    assert devices.names({"disk": "/proc/self"}) == {"disk": ""}
