"""Pieces of a pool's life in simulated time: nothing that was acknowledged is lost, and everything ends well."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from support.simulation.life import SETTINGS, Life, require_right_disks
from support.simulation.world import World, simulate

SEEDS = 50
SOAK_SEEDS = int(os.environ.get("COMMITLOGFS_SOAK_SEEDS", "5000"))
EVENTS = 12
DISKS = 4


def live(directory: Path, seed: int, events: int = EVENTS) -> Life:
    """A life that begins with a new pool. Its seed and its last events are shown if it fails."""
    lives: list[Life] = []

    async def task(world: World) -> None:
        world.init(DISKS)
        lives.append(Life(world, events))
        await world.run(lives[0].live)
        require_right_disks(lives[0])

    simulate(directory, seed, SETTINGS, task)
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


def _comparable(line: str) -> str:
    return re.sub(r"\.[0-9a-f]{8}\b", "", line.replace("/first/", "/second/"))


@pytest.mark.full
def test_each_event_happens(memory_directory: Path) -> None:
    """The simulation is not only as good as its pieces: it meets each of them, and some at once."""
    done: Counter[str] = Counter()
    lives = [live(memory_directory / f"{seed}", seed, 30) for seed in (1000, 1001, 1002)]
    for life in lives:
        done += life.done
    assert set(done) == {event.__name__ for event in lives[0].choices}
    trace = "\n".join(line for life in lives for line in life.world.trace)
    for event in ("moved", "removed", "create_moved_on", "disk_unresponsive", "disk_unreadable", "disk_joined"):
        assert f" {event} " in trace, event


@pytest.mark.soak
def test_many_pieces_of_life(memory_directory: Path) -> None:
    for seed in range(SEEDS, SOAK_SEEDS):
        live(memory_directory / f"{seed}", seed, 30)
