"""Which devices are slow: faults are found under load, and no load makes a sound device slow. Simulated hours."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.simulated_devices import (
    APPEND,
    CONSUMERS,
    DRAIN_FROM,
    DRAIN_TO,
    PROBE_AFTER_S,
    SCRUB,
    STORM,
    WINDOW_S,
    WRITEBACK,
    SimulatedDevice,
    SimulatedDevices,
    Work,
    ssd,
    turning_disk,
    usual_policy,
)

from commitlogfs.store.slowness.pace import Operation, Pace
from commitlogfs.store.slowness.policy import (
    FLOOR_S,
    USUAL_LEAST,
    WINDOWS,
    Device,
)

HOUR_WINDOWS = round(3600 / WINDOW_S)
LOADS = {
    "append": [APPEND],
    "writeback": [WRITEBACK],
    "scrub": [SCRUB],
    "storm": [STORM],
    "consumers": [APPEND, CONSUMERS],
    "all": [APPEND, SCRUB, STORM],
}
GENERATED = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed is no simpler hour."""
SEEDS = st.integers(0, 1 << 32)
MIDDLING = SimulatedDevice(0.004, 200 << 20)


def luck_of(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


def middling(count: int) -> dict[int, SimulatedDevice]:
    return {number: SimulatedDevice(MIDDLING.base_s, MIDDLING.bytes_per_s) for number in range(count)}


def on_all(devices: SimulatedDevices, work: Sequence[Work]) -> dict[int, Sequence[Work]]:
    return dict.fromkeys(devices.devices, work)


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [10, 100])
@pytest.mark.parametrize("load", LOADS)
def test_one_of_four_is_found_within_a_minute_and_comes_back(factor: int, load: str) -> None:
    for seed in range(5):
        simulated = SimulatedDevices(middling(4), luck_of(seed))
        work = on_all(simulated, LOADS[load])
        for _ in range(6):
            simulated.window(work)
        assert not simulated.slow
        bad = simulated.devices[2]
        bad.slower = factor
        assert simulated.seconds_until_slow(2, work, 60) <= 50
        for _ in range(round(PROBE_AFTER_S / WINDOW_S) * 2):
            simulated.window(work)
        assert set(simulated.slow) == {2}, "still slow after two probes"
        bad.slower = 1
        for _ in range(round(PROBE_AFTER_S / WINDOW_S) + 3):
            simulated.window(work)
        assert not simulated.slow
        assert simulated.ever_slow == {2}


@pytest.mark.parametrize("factor", [10, 100])
def test_the_only_busy_disk_is_found_by_the_checks_of_the_others(factor: int) -> None:
    simulated = SimulatedDevices(middling(4), luck_of(1))
    for number in (0, 1, 2, 3):
        for _ in range(4):
            simulated.window({number: [APPEND]})
    simulated.devices[3].slower = factor
    assert simulated.seconds_until_slow(3, {3: [APPEND]}, 60) <= 50


def test_a_disk_that_was_slow_from_the_start_is_found_if_no_sound_disk_is_so_slow() -> None:
    devices = middling(4)
    devices[0].slower = 100
    simulated = SimulatedDevices(devices, luck_of(1))
    assert simulated.seconds_until_slow(0, on_all(simulated, [APPEND]), 60) <= 50


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8])
def test_at_most_half_of_the_disks_are_slow(count: int) -> None:
    simulated = SimulatedDevices(middling(count), luck_of(1))
    work = on_all(simulated, [APPEND])
    for _ in range(6):
        simulated.window(work)
    for number in range(count):  # one after the other, so that the first ones have sound peers
        simulated.devices[number].slower = 50
        for _ in range(8):
            simulated.window(work)
    assert 1 <= simulated.most_slow <= count // 2
    assert len(simulated.slow) <= count // 2


def test_disks_on_one_device_count_together() -> None:
    """Three of four disks are partitions of one device: never slow, only noted."""
    policy = usual_policy()
    devices = {0: Device(False, 3), 1: Device(False), 2: Device(False)}
    well = {Operation.WRITE: Pace(100, 0.002, 0.002, 4096, 1, 0.5)}
    for _ in range(USUAL_LEAST):
        policy.observe(devices, dict.fromkeys(devices, well))
    bad = {Operation.WRITE: Pace(100, 0.2, 0.2, 4096, 1, 0.5)}
    seen = [policy.observe(devices, {0: bad, 1: well, 2: well}) for _ in range(WINDOWS)]
    assert not seen[-1].slow
    assert set(seen[-1].noted) == {0}
    assert policy.observe({**devices, 0: Device(False, 1)}, {0: bad, 1: well, 2: well}).slow


@pytest.mark.parametrize(("operations", "seconds"), [(2, 5.0), (1, 9.0)])
def test_a_disk_that_ends_hardly_any_operation_is_found(operations: int, seconds: float) -> None:
    """A process waits for each before it begins the next one."""
    policy = usual_policy()
    devices = dict.fromkeys(range(4), Device(is_rotational=False))
    well = {Operation.WRITE: Pace(100, 0.004, 0.004, 4096, 1, 0.5)}
    for _ in range(USUAL_LEAST):
        policy.observe(devices, dict.fromkeys(devices, well))
    bad = {Operation.WRITE: Pace(operations, seconds, seconds, 4096, 1, 1.0)}
    seen = [policy.observe(devices, {0: bad, 1: well, 2: well, 3: well}) for _ in range(WINDOWS)]
    assert [set(one.slow) for one in seen] == [set(), set(), {0}]


def test_a_few_operations_beside_many_others_are_no_load() -> None:
    policy = usual_policy()
    devices = dict.fromkeys(range(4), Device(is_rotational=False))
    well = {operation: Pace(100, 0.004, 0.004, 4096, 1, 0.9) for operation in Operation}
    for _ in range(USUAL_LEAST):
        policy.observe(devices, dict.fromkeys(devices, well))
    odd = {**well, Operation.READ: Pace(2, 0.5, 0.5, 4096, 1, 0.9)}
    for _ in range(20):
        observation = policy.observe(devices, {0: odd, 1: well, 2: well, 3: well})
        assert not observation.slow
        assert not observation.noted


def test_two_windows_above_the_limits_are_not_enough() -> None:
    policy = usual_policy()
    devices = dict.fromkeys(range(4), Device(is_rotational=False))
    well = {Operation.WRITE: Pace(100, 0.004, 0.004, 4096, 1, 0.5)}
    bad = {Operation.WRITE: Pace(100, 0.4, 0.4, 4096, 1, 0.5)}
    for _ in range(20):
        for pace in (bad, bad, well):
            observation = policy.observe(devices, {0: pace, 1: well, 2: well, 3: well})
            assert not observation.slow
            assert not observation.noted


# --- sound disks -----------------------------------------------------------------------------------------


def mixed_hour(count: int, luck: random.Random) -> Iterator[dict[int, list[Work]]]:
    """Windows of an hour: the append goes from disk to disk, others drain, are scrubbed, stormed, or do nothing."""
    active, drained, scrubbed, stormed = 0, 0, False, set[int]()
    for window in range(HOUR_WINDOWS):
        if window % 3 == 0:
            active = (active + 1) % count
        if luck.random() < 0.05:
            drained, scrubbed = luck.randrange(count), luck.random() < 0.5
        if luck.random() < 0.1:
            stormed = {number for number in range(count) if luck.random() < 0.4}
        work: dict[int, list[Work]] = {number: [] for number in range(count)}
        work[active].append(luck.choice([APPEND, WRITEBACK]))
        for number in range(count):
            work[number] += [SCRUB] if scrubbed else []
            work[number] += [STORM] if number in stormed else []
        work[drained].append(DRAIN_FROM)
        work[(drained + 1) % count].append(DRAIN_TO)
        yield work


@dataclass(frozen=True)
class Hour:
    """An hour in which no device has a fault."""

    devices: dict[int, SimulatedDevice]
    luck: random.Random
    factor: float = 1.0
    """How much longer everything takes in every other five minutes."""

    def require_no_slow_disk(self) -> None:
        simulated = SimulatedDevices(self.devices, self.luck)
        for index, work in enumerate(mixed_hour(len(self.devices), self.luck)):
            simulated.window(work, self.factor if index // 30 % 2 else 1.0)
        assert not simulated.ever_slow


@st.composite
def equal_disks(draw: st.DrawFn) -> Hour:
    """As many as eight, fast or slow."""
    luck = luck_of(draw(SEEDS))
    base_s, rate = luck.uniform(0.0002, 0.012), luck.uniform(80, 1000) * 2**20
    is_serial = luck.random() < 0.7
    count = draw(st.integers(1, 8))
    return Hour({number: SimulatedDevice(base_s, rate, is_serial=is_serial) for number in range(count)}, luck)


@st.composite
def turning_disks_beside_ssds(draw: st.DrawFn) -> Hour:
    luck, turning, is_shown = luck_of(draw(SEEDS)), draw(st.integers(1, 3)), draw(st.booleans())
    return Hour({n: turning_disk(is_shown=is_shown) if n < turning else ssd() for n in range(5)}, luck)


@st.composite
def slow_machines(draw: st.DrawFn) -> Hour:
    return Hour(middling(4), luck_of(draw(SEEDS)), draw(st.floats(2, 50)))


FEW_HOURS = settings(max_examples=5, deadline=None, phases=GENERATED)
MANY_HOURS = settings(max_examples=15, deadline=None, phases=GENERATED)


@FEW_HOURS
@given(equal_disks())
def test_no_load_makes_sound_disks_slow(hour: Hour) -> None:
    hour.require_no_slow_disk()


@FEW_HOURS
@given(turning_disks_beside_ssds())
def test_turning_disks_beside_ssds_are_not_slow(hour: Hour) -> None:
    hour.require_no_slow_disk()


@FEW_HOURS
@given(slow_machines())
def test_a_machine_on_which_everything_takes_longer_has_no_slow_disk(hour: Hour) -> None:
    hour.require_no_slow_disk()


@pytest.mark.full
@pytest.mark.parametrize(
    "hours", [equal_disks(), turning_disks_beside_ssds(), slow_machines()], ids=["equal", "turning", "longer"]
)
def test_no_disk_is_slow_in_many_sound_hours(hours: st.SearchStrategy[Hour]) -> None:
    MANY_HOURS(given(hours)(Hour.require_no_slow_disk))()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("factor", [10, 100])
def test_a_fault_among_two_disks_is_only_noted(count: int, factor: int) -> None:
    simulated = SimulatedDevices(middling(count), luck_of(1))
    work = on_all(simulated, [APPEND])
    for _ in range(6):
        simulated.window(work)
    assert not simulated.noted
    simulated.devices[0].slower = factor
    for _ in range(HOUR_WINDOWS):
        simulated.window(work)
        assert not simulated.slow
    assert set(simulated.noted) == {0}
    noted = simulated.noted[0]
    assert noted.peers_s is None
    assert noted.usual_s is not None
    assert noted.time_s > 5 * noted.usual_s
    simulated.devices[0].slower = 1
    simulated.window(work)
    assert not simulated.noted


def test_an_idle_disk_that_parks_its_heads_is_not_slow() -> None:
    policy = usual_policy()
    devices = dict.fromkeys(range(4), Device(is_rotational=True))
    well = {Operation.WRITE: Pace(200, 0.008, 0.008, 4096, 1, 0.8)}
    for _ in range(30):
        policy.observe(devices, dict.fromkeys(devices, well))
    parked = {Operation.WRITE: Pace(6, 0.300, 0.300, 4096, 1, 0.18)}
    for _ in range(30):
        observation = policy.observe(devices, {0: parked, 1: well, 2: well, 3: well})
        assert not observation.slow
        assert not observation.noted


# --- probes ----------------------------------------------------------------------------------------------


def test_a_probe_within_the_floor_is_well() -> None:
    policy = usual_policy()
    policy.observe({0: Device(False, is_slow=True)}, {})
    assert policy.is_well(0, {Operation.WRITE: Pace(20, FLOOR_S, FLOOR_S, 4096, 1, 0.1)})


def test_a_probe_that_cannot_be_compared_ends_the_state() -> None:
    """In the daemon after the one that had found it, if the others have nothing to do and are not checked."""
    policy = usual_policy()
    policy.observe({0: Device(False, is_slow=True), 1: Device(False)}, {})
    assert policy.is_well(0, {Operation.WRITE: Pace(20, 0.5, 0.5, 4096, 1, 0.9)})


def test_a_slow_disk_does_not_become_its_own_measure() -> None:
    policy = usual_policy()
    devices = {0: Device(False, is_slow=True), **dict.fromkeys(range(1, 4), Device(is_rotational=False))}
    well = {Operation.WRITE: Pace(100, 0.004, 0.004, 4096, 1, 0.5)}
    bad = {Operation.WRITE: Pace(100, 0.050, 0.050, 4096, 1, 0.5)}
    for _ in range(100):
        policy.observe(devices, {0: bad, 1: well, 2: well, 3: well})
    assert not policy.is_well(0, bad)
