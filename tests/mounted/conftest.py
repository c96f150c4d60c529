"""One mount per module for tests that leave each other alone: each takes segments of its own with `next_index`."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import unprivileged
from support.pools import PoolMount, pool_in
from support.unprivileged import Desktop

from commitlogfs.bench import sweep


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says BOTH_MODES has its tests of `shared` run with and without passthrough."""
    if "shared" in metafunc.fixturenames and getattr(metafunc.module, "BOTH_MODES", False):
        metafunc.parametrize("shared", ["auto", "off"], indirect=True, scope="module", ids=["passed", "plain"])


@pytest.fixture(scope="module")
def shared(module_directory: Path, request: pytest.FixtureRequest) -> Iterator[PoolMount]:
    """A pool of three directories with segments of 1 MiB, mounted once for the module (and mode)."""
    mode = getattr(request, "param", "auto")
    with pool_in(module_directory / mode, settings={"passthrough": f'"{mode}"'}) as pool:
        pool.start()
        yield pool


@pytest.fixture(scope="module")
def next_index(shared: PoolMount) -> Callable[[], int]:
    """The number of a segment that no other test of the module uses."""
    return itertools.count().__next__


@pytest.fixture
def desktop(base_directory: Path) -> Iterator[Desktop]:
    """An ordinary user, whose home has a short path: sockets lie in it."""
    lack = unprivileged.lacking()
    if lack:
        pytest.skip(lack)
    directory = base_directory / "u"
    directory.mkdir(mode=0o755)
    with Desktop(directory) as desktop:
        yield desktop
    sweep.remove_tree(directory)
