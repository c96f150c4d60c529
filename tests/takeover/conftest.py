"""Mounts that outlive their daemons."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from support.kept import KeptMount
from support.pools import PoolMount


@pytest.fixture(params=["auto", "off"], ids=["passed", "plain"])
def mode(request: pytest.FixtureRequest) -> str:
    """With and without passthrough."""
    return str(request.param)


@pytest.fixture
def keep(make_pool: Callable[..., PoolMount]) -> Iterator[Callable[..., KeptMount]]:
    """Makes a kept mount of a new pool; the arguments are make_pool's. Started."""
    mounts: list[KeptMount] = []

    def make(*arguments: object, **options: object) -> KeptMount:
        mount = KeptMount(make_pool(*arguments, **options))
        mounts.append(mount)
        mount.start()
        return mount

    yield make
    for mount in mounts:
        if mount.pool.daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(mount.pool.daemon.pid, signal.SIGCONT)


@pytest.fixture
def kept(keep: Callable[..., KeptMount], mode: str) -> KeptMount:
    """Three folders, segments of 1 MiB, mounted; gaps are allowed."""
    return keep(3, settings={"passthrough": f'"{mode}"'})
