"""Which devices are slow, from what they have done in windows of time. Pure.

A device is above its limits in a window if it had a load, and one of its reads or writes took longer, without the
time of flushes, than each of

    FLOOR_S;
    FACTOR times what it took in its own earlier windows with a load, in nearly all of them;
    FACTOR times the median of its peers, and that median and DEVIATIONS deviations of them,

the latter two as expected under its present load (pace.py). It is slow after WINDOWS such windows in a row. Peers
are the devices that are not slow, with PEER_OPERATIONS in the latest WINDOWS windows: those of the same kind (that
turn, or do not) if there are enough, else all. With fewer than LEAST_PEERS of them nothing is slow: a device that
is above its own limit is only noted. At most half of the disks are slow at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from commitlogfs.store.slowness.pace import Operation, Pace, Paces, combined

WINDOWS: Final = 3
FLOOR_S: Final = 0.020
FACTOR: Final = 3.0
DEVIATIONS: Final = 3 * 1.4826
"""In units of the median absolute deviation: three standard deviations."""
LEAST_PEERS: Final = 2
PEER_OPERATIONS: Final = 6
"""The checks of an idle disk make twice as many. They show that the others are well, however little they have to
do."""
LOADED_OPERATIONS: Final = 20
LOADED_PART: Final = 0.3
"""A device that was busy for this part of a window had a load, also with fewer operations. Checks alone are none: a
disk that turns and is idle may park its heads before each of them."""
LEAST_OPERATIONS: Final = 3
"""Fewer are a load only if they alone have taken LOADED_PART of a window: a device may end hardly any."""
USUAL_WINDOWS: Final = 360
"""Windows with a load that a device is compared with: an hour of them."""
USUAL_LEAST: Final = 3
USUAL_PART: Final = 0.9
UNKNOWN: Final = Pace(1, FLOOR_S, FLOOR_S, 0, 1.0, 0.0)
"""Taken for the usual pace of a device that is not known yet: a sound disk that turns is not slower."""

Scale = Callable[[Pace, Pace], float]
"""Expected time of an operation: its pace, the load under which it is expected."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that holds disks of the pool."""

    is_rotational: bool
    disks: int = 1
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The time of one operation of a device in the latest window, and what it was compared with, as measured."""

    operation: Operation
    time_s: float
    peers_s: float | None
    """Median of its peers; None if there are fewer than LEAST_PEERS."""
    usual_s: float | None
    """Median of its own windows with a load; None if it is not known yet."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """A slow disk."""

    comparison: Comparison
    since_s: float
    """Monotonic time."""
    probe_at_s: float | None
    """Monotonic time of the next probe; None if the slowness is only noted."""


@dataclass(slots=True)
class Observation:
    """Result of a window, by device."""

    compared: dict[int, tuple[Comparison, ...]] = field(default_factory=dict)
    slow: dict[int, Comparison] = field(default_factory=dict)
    """Devices that are slow from now on."""
    noted: dict[int, Comparison] = field(default_factory=dict)
    """Devices that are above their limits, but cannot be compared, or have too many slow ones beside them."""


@dataclass(slots=True)
class _History:
    """One kind of operation of one device."""

    recent: deque[Pace | None] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """The latest windows; None for one without such operations."""
    usual: deque[Pace] = field(default_factory=lambda: deque(maxlen=USUAL_WINDOWS))
    """The windows with a load in which the device was well."""
    unusual_in_a_row: int = 0
    above_in_a_row: int = 0

    def usual_time(self, load: Pace, scale: Scale) -> float | None:
        """Time that it has hardly ever exceeded; None if that is not known yet."""
        if len(self.usual) < USUAL_LEAST:
            return None
        times = sorted(scale(pace, load) for pace in self.usual)
        return times[math.ceil(USUAL_PART * len(times)) - 1]

    def is_unusual(self, pace: Pace) -> bool:
        usual_s = self.usual_time(pace, Pace.longest_under)
        return pace.working_s > FACTOR * (UNKNOWN.longest_under(pace) if usual_s is None else usual_s)


class SlownessPolicy:
    """Memory of all devices of a pool."""

    def __init__(self, window_s: float) -> None:
        """`window_s` is the length of a window."""
        self._window_s = window_s
        self._devices: dict[int, Device] = {}
        self._histories: dict[tuple[int, Operation], _History] = {}

    def observe(self, devices: Mapping[int, Device], paces: Mapping[int, Paces]) -> Observation:
        """Evaluate the window that has ended. `paces` lacks devices without counters."""
        self._devices = dict(devices)
        present = {
            (device, operation): paces.get(device, {}).get(operation)
            for device in devices
            for operation in Operation
        }
        for key, pace in present.items():
            self._histories.setdefault(key, _History()).recent.append(pace)
        observation = Observation()
        for (device, operation), pace in present.items():
            if pace is None:
                self._record_without_load(device, operation)
                continue
            self._record(device, operation, pace)
            compared = self._compare(device, operation, pace)
            observation.compared[device] = (*observation.compared.get(device, ()), compared)
        self._choose(observation)
        return observation

    def is_well(self, device: int, paces: Paces) -> bool:
        """Whether a slow device was well in a probe that has seen these operations: FLOOR_S is enough for a disk
        with as little to do. One that cannot be compared with anything is well, too."""
        return not any(
            self._is_still_slow(device, operation, pace)
            for operation, pace in paces.items()
            if pace.operations >= LEAST_OPERATIONS and pace.working_s > FLOOR_S
        )

    # --- one window ----------------------------------------------------------------------------------

    def _record(self, device: int, operation: Operation, pace: Pace) -> None:
        if not self._has_load(pace):
            self._record_without_load(device, operation)
            return
        history = self._histories[device, operation]
        if pace.working_s > FLOOR_S and history.is_unusual(pace):
            limit_s = self._limit(device, operation, pace, Pace.longest_under)
            if limit_s is None or pace.working_s > limit_s:
                history.unusual_in_a_row += 1
                history.above_in_a_row = 0 if limit_s is None else history.above_in_a_row + 1
                return
        self._record_without_load(device, operation)
        if not self._devices[device].is_slow:
            history.usual.append(pace)

    def _record_without_load(self, device: int, operation: Operation) -> None:
        history = self._histories[device, operation]
        history.unusual_in_a_row = history.above_in_a_row = 0

    def _has_load(self, pace: Pace) -> bool:
        if pace.operations < LEAST_OPERATIONS:
            return pace.operations * pace.time_s / pace.depth >= LOADED_PART * self._window_s
        return pace.operations >= LOADED_OPERATIONS or pace.busy >= LOADED_PART

    def _is_still_slow(self, device: int, operation: Operation, pace: Pace) -> bool:
        limit_s = self._limit(device, operation, pace, Pace.time_under)
        history = self._histories.setdefault((device, operation), _History())
        usual_s = history.usual_time(pace, Pace.time_under)
        if limit_s is None:
            return usual_s is not None and pace.working_s > FACTOR * usual_s
        return pace.working_s > limit_s and (usual_s is None or pace.working_s > FACTOR * usual_s)

    # --- peers ---------------------------------------------------------------------------------------

    def _peers(self, device: int, operation: Operation) -> list[Pace]:
        peers, of_its_kind = [], []
        for number, other in self._devices.items():
            if number == device or other.is_slow:
                continue
            recent = self._histories[number, operation].recent
            pace = combined(window for window in recent if window is not None)
            if pace is not None and pace.operations >= PEER_OPERATIONS:
                peers.append(pace)
                if other.is_rotational is self._devices[device].is_rotational:
                    of_its_kind.append(pace)
        if len(of_its_kind) >= LEAST_PEERS:
            return of_its_kind
        return peers if len(peers) >= LEAST_PEERS else []

    def _limit(self, device: int, operation: Operation, pace: Pace, scale: Scale) -> float | None:
        """Time that a device may need, compared with its peers; None without them."""
        times = [scale(peer, pace) for peer in self._peers(device, operation)]
        if not times:
            return None
        middle = median(times)
        deviation = median(abs(time_s - middle) for time_s in times)
        return max(FLOOR_S, FACTOR * middle, middle + DEVIATIONS * deviation)

    def _compare(self, device: int, operation: Operation, pace: Pace) -> Comparison:
        peers = self._peers(device, operation)
        usual = self._histories[device, operation].usual
        return Comparison(
            operation,
            pace.time_s,
            median(peer.time_s for peer in peers) if peers else None,
            median(window.time_s for window in usual) if len(usual) >= USUAL_LEAST else None,
        )

    # --- all devices ---------------------------------------------------------------------------------

    def _choose(self, observation: Observation) -> None:
        """The slowest first, as long as at most half of the disks are slow."""
        slow = sum(device.disks for device in self._devices.values() if device.is_slow)
        most = sum(device.disks for device in self._devices.values()) // 2
        for device, comparisons in sorted(
            observation.compared.items(), key=lambda item: -max(compared.time_s for compared in item[1])
        ):
            if self._devices[device].is_slow:
                continue
            found = max(comparisons, key=lambda compared: self._rank(device, compared))
            history = self._histories[device, found.operation]
            if history.unusual_in_a_row < WINDOWS:
                continue
            count = self._devices[device].disks
            if history.above_in_a_row >= WINDOWS and slow + count <= most:
                observation.slow[device] = found
                slow += count
            else:
                observation.noted[device] = found

    def _rank(self, device: int, compared: Comparison) -> tuple[int, int, float]:
        history = self._histories[device, compared.operation]
        return min(WINDOWS, history.above_in_a_row), history.unusual_in_a_row, compared.time_s
