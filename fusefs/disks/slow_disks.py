"""Slow disks: the counters of the disks' devices, window by window, and what follows from them.

A slow disk gets no new segments until a probe finds it well: checks of it, one after the other, whose operations
are compared like those of a window.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.store.disks import health
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.slowness.load import (
    DeviceCounters,
    Machine,
    WholeDevice,
    rates_between,
)
from commitlogfs.store.slowness.pace import Paces, paces_between
from commitlogfs.store.slowness.policy import WINDOWS, Comparison, Device, SlownessPolicy

log = logging.getLogger(__name__)

PROBE_CHECKS: Final = 5
"""Checks of which a probe consists: enough operations for a comparison."""
_LONGEST_WINDOW: Final = 2.0
"""In units of a window's length. A longer one says nothing: the machine stood still in it."""


class SlowDisks:
    def __init__(
        self, commitlog: CommitLog, save: Callable[[], None], threads: DiskThreads, machine: Machine
    ) -> None:
        """`save` keeps what is known of the disks for the next daemon."""
        self._commitlog = commitlog
        self._clock = commitlog.clock
        self._save = save
        self._threads = threads
        self._machine = machine
        self._policy = SlownessPolicy(commitlog.timing.slowness.window_s)
        self._wholes: dict[DiskNumber, WholeDevice] = {}
        self._windows = 0
        """Number of windows that were evaluated."""
        self._probed: dict[DiskNumber, tuple[float, DeviceCounters]] = {}
        """Begin of each probe that is under way, and the counters by then."""

    async def run(self) -> None:
        """Evaluate the devices of the disks until cancelled."""
        self._wholes = await self._threads.aside(self._whole_devices)
        before_s, before = await self._read()
        window_s = self._commitlog.timing.slowness.window_s
        while True:
            await trio.sleep(window_s)
            now_s, now = await self._read()
            if now_s - before_s <= _LONGEST_WINDOW * window_s:
                self._evaluate(before, now, now_s - before_s)
            before_s, before = now_s, now

    # --- probes --------------------------------------------------------------------------------------

    def probe_is_due(self, disk: Disk) -> bool:
        """Whether a slow disk is to be checked PROBE_CHECKS times now. A daemon that has taken the mount over
        observes the other disks first."""
        if disk.slowness is None or disk.slowness.probe_at_s is None or self._windows < WINDOWS:
            return False
        return self._clock.monotonic() >= disk.slowness.probe_at_s

    async def begin_probe(self, disk: Disk) -> None:
        """The checks begin."""
        now_s, counters = await self._read()
        device = self._wholes.get(disk.number)
        if device is not None and device.device in counters:
            self._probed[disk.number] = now_s, counters[device.device]

    async def end_probe(self, disk: Disk) -> None:
        """All checks have their answers: evaluate what the device has done meanwhile."""
        begun = self._probed.pop(disk.number, None)
        now_s, counters = await self._read()
        if begun is None or disk.slowness is None:
            return
        device = self._wholes[disk.number].device
        paces = paces_between(begun[1], counters[device], now_s - begun[0]) if device in counters else {}
        comparison, probe_after_s = disk.slowness.comparison, self._commitlog.timing.slowness.probe_after_s
        for other in self._on(device):
            if not self._policy.is_well(device, paces):
                # If it got well meanwhile, the next probe is soon.
                health.record_slow(other, comparison, begun[0], probe_after_s)
            elif other.is_slow:
                health.record_not_slow(other)
                log_event(log, logging.WARNING, "disk_not_slow", disk=other.path)
        self._save()

    # --- windows -------------------------------------------------------------------------------------

    async def _read(self) -> tuple[float, dict[int, DeviceCounters]]:
        """The monotonic time, and the counters of all devices by then."""
        numbers = {whole.device for whole in self._wholes.values()}

        def work() -> tuple[float, dict[int, DeviceCounters]]:
            read = {
                number: counters
                for number in numbers
                if (counters := self._machine.device_counters(number)) is not None
            }
            return self._clock.monotonic(), read

        return await self._threads.aside(work)

    def _evaluate(
        self, before: Mapping[int, DeviceCounters], now: Mapping[int, DeviceCounters], seconds: float
    ) -> None:
        paces: dict[int, Paces] = {
            number: paces_between(before[number], counters, seconds)
            for number, counters in now.items()
            if number in before
        }
        devices = {whole.device: self._device(whole) for whole in self._wholes.values()}
        observation = self._policy.observe(devices, paces)
        self._windows += 1
        now_s = self._clock.monotonic()
        for number in devices:
            is_known = number in before and number in now
            rates = rates_between(before[number], now[number], seconds) if is_known else None
            for disk in self._on(number):
                disk.device_rates = rates
                disk.operation_times = observation.compared.get(number, ())
                if number in observation.slow:
                    self._record_slow(disk, observation.slow[number], now_s)
                else:
                    health.record_noted_slowness(disk, observation.noted.get(number), now_s)
        if observation.slow:
            self._save()

    def _device(self, whole: WholeDevice) -> Device:
        disks = self._on(whole.device)
        return Device(whole.is_rotational, len(disks), any(disk.is_slow for disk in disks))

    def _on(self, device: int) -> list[Disk]:
        """The disks of the pool on one device."""
        return [self._commitlog.disks[number] for number, whole in self._wholes.items() if whole.device == device]

    def _record_slow(self, disk: Disk, comparison: Comparison, now_s: float) -> None:
        health.record_slow(disk, comparison, now_s, self._commitlog.timing.slowness.probe_after_s)
        log_event(
            log,
            logging.ERROR,
            "disk_slow",
            disk=disk.path,
            operation=comparison.operation.value,
            seconds=comparison.time_s,
            peers_seconds=comparison.peers_s,
        )

    def _whole_devices(self) -> dict[DiskNumber, WholeDevice]:
        found = ((disk.number, self._machine.whole_device(disk.device)) for disk in self._commitlog.disks.values())
        return {number: whole for number, whole in found if whole is not None}
