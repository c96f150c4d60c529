"""One name server for the whole run; brokers run one at a time."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Stand, make_stand
from support.loop_disks import loop_available, mkfs_available

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Distribution, NameServer

MakeStand = Callable[..., Stand]


@pytest.fixture(scope="session")
def newest() -> Distribution:
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK (java, javac)")
    return rocketmq.fetch("5.5.0")


@pytest.fixture(scope="session")
def names(newest: Distribution, base_directory: Path) -> Iterator[NameServer]:
    directory = base_directory / "names"
    directory.mkdir()
    with NameServer(newest, directory) as server:
        yield server


def _require_disks() -> None:
    lack = loop_available() or ("" if mkfs_available("xfs") else "no mkfs.xfs")
    if lack:
        pytest.skip(lack)


@pytest.fixture
def new_stand(workdir: Path, names: NameServer) -> Iterator[MakeStand]:
    """Makes stands for one test: `new_stand(("ext4", "xfs"), segment_size=...)`."""
    _require_disks()
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Stand:
            return stack.enter_context(make_stand(workdir, names, *args, **options))

        yield make


@pytest.fixture(scope="module")
def module_stand(module_directory: Path, names: NameServer) -> Iterator[MakeStand]:
    """The same for one stand that the tests of a module share."""
    _require_disks()
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Stand:
            return stack.enter_context(make_stand(module_directory, names, *args, **options))

        yield make
