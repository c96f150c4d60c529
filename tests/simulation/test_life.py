"""Pieces of a pool's life in simulated time: nothing that was acknowledged is lost, and everything ends well."""

import os
import re
from pathlib import Path

import pytest
import trio
from support.simulation.daemon import Settings
from support.simulation.life import (
    MONTH,
    MONTH_EVENTS,
    MONTH_PACE,
    SETTINGS,
    Life,
    require_right_disks,
)
from support.simulation.world import World, simulate

SEEDS = 50
SOAK_SEEDS = int(os.environ.get("COMMITLOGFS_SOAK_SEEDS", "5000"))
SEEDS_AT_ONCE = 330
EVENTS = 12
SEGMENTS = 12
DISKS = 4
LOGGED = (
    *("moved", "removed", "create_moved_on", "disk_unresponsive", "disk_unreadable", "disk_joined"),
    *("swept", "segment_damaged"),
)
"""Events of the product that lives bring about."""


def live(
    directory: Path, seed: int, events: int = EVENTS, pace: float = 1.0, settings: Settings = SETTINGS
) -> Life:
    """A life that begins with a new pool. Its seed and its last events are shown if it fails."""
    lives: list[Life] = []

    async def task(world: World) -> None:
        world.init(DISKS)
        lives.append(Life(world, events, pace))
        await world.run(lives[0].live)
        require_right_disks(lives[0])

    simulate(directory, seed, settings, task)
    return lives[0]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_piece_of_life(memory_directory: Path, seed: int) -> None:
    live(memory_directory / "pool", seed)


def test_a_seed_gives_the_same_life_again(memory_directory: Path) -> None:
    """In other directories, on other inodes, and with other names for what is set aside."""
    lives = [live(memory_directory / name, 7, 20) for name in ("first", "second")]
    first, second = ([_comparable(line) for line in life.world.trace] for life in lives)
    assert first == second
    assert len(first) > 100


@pytest.mark.parametrize("waits_s", [0.0, 600.0], ids=["before", "after"])
def test_rot_before_and_after_a_checksum(memory_directory: Path, waits_s: float) -> None:
    """A scrub finds rot that came after the checksum; a scrub of the messages finds it in both cases."""

    async def task(world: World) -> None:
        world.init(DISKS)
        life = Life(world, 0)

        async def rot() -> None:
            for _ in range(SEGMENTS):
                assert await life.broker.append()
            await trio.sleep(waits_s)
            assert life.broker.let_rot(1)
            assert life.broker.log.rotten[1].had_checksum == (waits_s > 0)
            await life.live()

        await world.run(rot)
        require_right_disks(life)

    world = simulate(memory_directory / "pool", 1, SETTINGS, task)
    trace = "\n".join(world.trace)
    # A life ends with two scrubs, and two of the messages.
    assert re.findall(r"scrubbed .*damaged=(\d)", trace) == (["1"] * 4 if waits_s else ["0", "0", "1", "1"])
    assert re.findall(r"segment_damaged .*kind=(\S+)", trace) == ["rotted" if waits_s else "written-broken"]


def _comparable(line: str) -> str:
    return re.sub(r"\.[0-9a-f]{8}\b", "", line.replace("/first/", "/second/"))


@pytest.mark.full
def test_each_event_happens(memory_directory: Path) -> None:
    """The simulation is not only as good as its pieces: a few lives meet each of them."""
    missing = {f" {event} " for event in LOGGED}
    for seed in range(1000, 1020):
        life = live(memory_directory / f"{seed}", seed, 30)
        missing |= {event.__name__ for event in life.choices} if seed == 1000 else set()
        trace = "\n".join(life.world.trace)
        missing -= {event for event in missing if event in life.done or event in trace}
        if not missing:
            return
    pytest.fail(f"never met: {sorted(missing)}")


@pytest.mark.full
def test_a_month(memory_directory: Path) -> None:
    """An event every two hours; the daemon looks for work more rarely than by default."""
    life = live(memory_directory / "pool", 1, MONTH_EVENTS, MONTH_PACE, MONTH)
    assert life.world.clock.elapsed() > 28 * 86_400


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SEEDS_AT_ONCE))
def test_many_pieces_of_life(memory_directory: Path, first: int) -> None:
    for seed in range(first, min(first + SEEDS_AT_ONCE, SOAK_SEEDS)):
        live(memory_directory / f"{seed}", seed, 30)
