"""One mount per module for tests that leave each other alone: each takes segments of its own with `next_index`."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.timings import BRISK, timing_variables

from commitlogfs.bench import sweep


@pytest.fixture(scope="module")
def module_directory(base_directory: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory for all tests of a module."""
    directory = base_directory / request.module.__name__.rpartition(".")[2]
    directory.mkdir(mode=0o755)
    yield directory
    sweep.remove_tree(directory)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says BOTH_MODES has its tests of `shared` run with and without passthrough."""
    if "shared" in metafunc.fixturenames and getattr(metafunc.module, "BOTH_MODES", False):
        metafunc.parametrize("shared", ["auto", "off"], indirect=True, scope="module", ids=["passed", "plain"])


@pytest.fixture(scope="module")
def shared(module_directory: Path, request: pytest.FixtureRequest) -> Iterator[PoolMount]:
    """A pool of three directories with segments of 1 MiB, mounted once for the module (and mode)."""
    mode = getattr(request, "param", "auto")
    module_directory = module_directory / mode
    module_directory.mkdir(mode=0o755)
    disks = [module_directory / f"disk{number}" for number in range(3)]
    for disk in disks:
        disk.mkdir()
    settings, times = {"passthrough": f'"{mode}"'}, timing_variables(BRISK)
    pool = PoolMount(module_directory, disks, settings=settings, variables=times)
    pool.init()
    try:
        pool.start()
        yield pool
    finally:
        pool.abandon()


@pytest.fixture(scope="module")
def next_index(shared: PoolMount) -> Callable[[], int]:
    """The number of a segment that no other test of the module uses."""
    return itertools.count().__next__
