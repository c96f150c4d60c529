"""A broker decides on our mount as it does natively on identical disks: its own cleaning service is asked."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.filling import used_percent
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq.cleaning import CleaningOracle, Judgement
from commitlogfs.store import _syscalls

pytestmark = [
    pytest.mark.broker,
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

SIZES = (64 * MIB, 96 * MIB)
NOTHING_BY_RULE = {"force_after": '"24h"'}


@dataclass
class Twins:
    """The same segments on two sets of disks: bare ones, and ours behind the mount."""

    bare: list[Path]
    pool: PoolMount
    oracle: CleaningOracle
    first: int = 0
    end: int = 0

    def add(self) -> None:
        """A segment, wherever our placement puts it, and its twin on the same bare disk."""
        self.pool.make_segments([self.end], fill=False)
        name = self.pool.path(self.end).name
        fd = os.open(self.bare[self.pool.disk_of(self.end)] / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        _syscalls.fallocate(fd, 0, 0, MIB)
        os.close(fd)
        self.end += 1

    def remove(self) -> None:
        name = self.pool.path(self.first).name
        (self.bare[self.pool.disk_of(self.first)] / name).unlink()
        self.pool.path(self.first).unlink()
        self.first += 1

    def look(self) -> Judgement:
        """Decisions for mount and disks, which must be equal."""
        native, ours = self.oracle.look()
        both = (self.bare, self.pool.disks)
        levels = [[round(used_percent(directory), 2) for directory in directories] for directories in both]
        assert native == ours, levels
        return ours

    def lowest(self) -> float:
        return min(used_percent(directory) for directory in self.bare)


@pytest.fixture
def twins(disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], workdir: Path) -> Iterator[Twins]:
    directories = []
    for number in range(2 * len(SIZES)):
        directory = disk_farm.add("ext4", SIZES[number % len(SIZES)]).path / "commitlog"
        directory.mkdir(mode=0o700)
        directories.append(directory)
    bare, ours = directories[: len(SIZES)], directories[len(SIZES) :]
    pool = make_pool(disks=ours, retention=NOTHING_BY_RULE)
    pool.start()
    stores = [(workdir / "native-root", bare), (workdir / "mount-root", [pool.mountpoint])]
    with CleaningOracle(rocketmq.fetch(), stores) as oracle:
        yield Twins(bare, pool, oracle)


def test_clean_force_and_full_begin_and_end_at_the_same_segment(twins: Twins) -> None:
    seen = [twins.look()]
    while not seen[-1].full:
        twins.add()
        seen.append(twins.look())
    assert twins.lowest() > 90
    upwards = list(dict.fromkeys(seen))
    assert upwards == [
        Judgement(delete=False, forcibly=False, full=False),
        Judgement(delete=True, forcibly=False, full=False),
        Judgement(delete=True, forcibly=True, full=False),
        Judgement(delete=True, forcibly=True, full=True),
    ]
    seen.clear()
    while twins.lowest() > 60:
        twins.remove()
        seen.append(twins.look())
    # Full until 85: the flag has a memory.
    assert list(dict.fromkeys(seen)) == [
        Judgement(delete=True, forcibly=True, full=True),
        Judgement(delete=True, forcibly=False, full=False),
        Judgement(delete=False, forcibly=False, full=False),
    ]
