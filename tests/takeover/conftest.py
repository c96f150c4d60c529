"""Mounts that outlive their daemons."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest
from support.kept import KeptMount
from support.pools import PoolMount
from support.versions import VersionedMount

Kind = TypeVar("Kind", bound=KeptMount)


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.full)], ids=["passed", "plain"])
def mode(request: pytest.FixtureRequest) -> str:
    """With and without passthrough."""
    return str(request.param)


@pytest.fixture
def keep(make_pool: Callable[..., PoolMount]) -> Iterator[Callable[..., KeptMount]]:
    """Makes a kept mount of a new pool; the arguments are make_pool's, and `prepare`, which is called before the
    first daemon starts. Started."""
    yield from _started(make_pool, KeptMount)


@pytest.fixture
def keep_versions(make_pool: Callable[..., PoolMount]) -> Iterator[Callable[..., VersionedMount]]:
    """As `keep`; its daemons can be of another version."""
    yield from _started(make_pool, VersionedMount)


@pytest.fixture
def keep_reserved(make_pool: Callable[..., PoolMount]) -> Iterator[Callable[..., VersionedMount]]:
    """As `keep_versions`; a daemon of the version chosen when it was started stands by."""
    yield from _started(make_pool, partial(VersionedMount, standby=True))


def _started(
    make_pool: Callable[..., PoolMount], kind: Callable[[PoolMount], Kind]
) -> Iterator[Callable[..., Kind]]:
    mounts: list[Kind] = []

    def make(
        *arguments: object, prepare: Callable[[PoolMount], None] = lambda _pool: None, **options: object
    ) -> Kind:
        mount = kind(make_pool(*arguments, **options))
        mounts.append(mount)
        prepare(mount.pool)
        mount.start()
        return mount

    yield make
    for mount in mounts:
        if mount.pool.daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(mount.pool.daemon.pid, signal.SIGCONT)


@pytest.fixture
def kept(keep: Callable[..., KeptMount], mode: str) -> KeptMount:
    """Three directories, segments of 1 MiB, mounted; gaps are allowed."""
    return keep(3, settings={"passthrough": f'"{mode}"'})
