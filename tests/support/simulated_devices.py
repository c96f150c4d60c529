"""Devices under load, window by window, without disks and clocks: a serial queue, or one with many at a time."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commitlogfs.store.slowness.pace import Operation, Pace, Paces
from commitlogfs.store.slowness.policy import Comparison, Device, SlownessPolicy
from commitlogfs.store.timing import DEFAULT

KIB, MIB = 1 << 10, 1 << 20
WINDOW_S, PROBE_AFTER_S = DEFAULT.slowness.window_s, DEFAULT.slowness.probe_after_s


def usual_policy() -> SlownessPolicy:
    return SlownessPolicy(WINDOW_S)


@dataclass(frozen=True)
class Work:
    """Load of a device in a window: closed loops, each with one request at a time."""

    operation: Operation
    depth: float
    """Requests under way while there is work."""
    size: int
    per_s: float
    """Requests that the loops make at most; a device that is too slow for them ends fewer."""


APPEND = Work(Operation.WRITE, 1.5, 8 * KIB, 60)
WRITEBACK = Work(Operation.WRITE, 40, 512 * KIB, 80)
SCRUB = Work(Operation.READ, 2, MIB, 50)
DRAIN_FROM = Work(Operation.READ, 2, MIB, 60)
DRAIN_TO = Work(Operation.WRITE, 3, MIB, 60)
STORM = Work(Operation.WRITE, 4, 12 * KIB, 400)
CONSUMERS = Work(Operation.READ, 6, 64 * KIB, 300)
CHECKS = (Work(Operation.WRITE, 1, 5 * KIB, 0.45), Work(Operation.READ, 1, 4 * KIB, 0.4))
"""Those of an idle disk."""


@dataclass
class SimulatedDevice:
    """Each request needs a constant time and one for its size, the factor of its fault, and some luck. Requests
    under way at the same time wait for each other if the device works on one after the other."""

    base_s: float
    bytes_per_s: float
    is_serial: bool = True
    slower: float = 1.0
    is_rotational: bool = False

    def window(self, work: Sequence[Work], luck: random.Random, crowd: float = 1.0) -> Paces:
        """`crowd`: how many times longer everything takes on this machine at the moment."""
        paces: Paces = {}
        depth = max(1.0, sum(part.depth for part in work))
        for operation in Operation:
            parts = [part for part in work if part.operation is operation]
            wanted = sum(part.per_s for part in parts)
            if not wanted:
                continue
            size = sum(part.size * part.per_s for part in parts) / wanted
            own_s = (self.base_s + size / self.bytes_per_s) * self.slower * crowd * luck.lognormvariate(0, 0.25)
            time_s = own_s * (depth if self.is_serial else 1.0)
            ended = min(wanted, sum(part.depth for part in parts) / time_s) * WINDOW_S
            count = int(ended) + (luck.random() < ended % 1)
            busy = min(1.0, count * own_s / WINDOW_S)
            if count:
                paces[operation] = Pace(count, time_s, time_s, size, depth, busy)
        return paces


def ssd() -> SimulatedDevice:
    return SimulatedDevice(0.0004, 400 * MIB, is_serial=False)


def turning_disk(*, is_shown: bool = True) -> SimulatedDevice:
    """`is_shown`: the kernel knows what it is."""
    return SimulatedDevice(0.010, 120 * MIB, is_rotational=is_shown)


@dataclass
class SimulatedDevices:
    """Devices under the policy, as the daemon applies it."""

    devices: Mapping[int, SimulatedDevice]
    luck: random.Random
    policy: SlownessPolicy = field(default_factory=usual_policy)
    now_s: float = 0.0
    slow: dict[int, float] = field(default_factory=dict)
    """Slow devices, and the time of their next probe."""
    noted: dict[int, Comparison] = field(default_factory=dict)
    ever_slow: set[int] = field(default_factory=set)
    most_slow: int = 0

    def window(self, work: Mapping[int, Sequence[Work]], crowd: float = 1.0) -> None:
        """WINDOW_S pass. A device gets its checks, too."""
        self.now_s += WINDOW_S
        paces = {
            number: device.window([*work.get(number, ()), *CHECKS], self.luck, crowd)
            for number, device in self.devices.items()
        }
        observation = self.policy.observe(self._views(), paces)
        for number in observation.slow:
            self.slow[number] = self.now_s + PROBE_AFTER_S
            self.ever_slow.add(number)
        self.noted = observation.noted
        self.most_slow = max(self.most_slow, len(self.slow))
        for number, probe_at_s in list(self.slow.items()):
            if self.now_s >= probe_at_s:
                checks = [Work(part.operation, 1, part.size, 2) for part in CHECKS]
                if self.policy.is_well(number, self.devices[number].window(checks, self.luck, crowd)):
                    del self.slow[number]
                else:
                    self.slow[number] = self.now_s + PROBE_AFTER_S

    def seconds_until_slow(self, number: int, work: Mapping[int, Sequence[Work]], most_s: float) -> float:
        began_s = self.now_s
        while number not in self.slow and self.now_s - began_s < most_s:
            self.window(work)
        return self.now_s - began_s

    def _views(self) -> dict[int, Device]:
        return {
            number: Device(device.is_rotational, 1, number in self.slow) for number, device in self.devices.items()
        }
