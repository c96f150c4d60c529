"""One mount for each module; a secret that must never be reached through it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount

from commitlogfs.bench import sweep

SECRET = b"secret of somebody else\n"


@pytest.fixture(scope="module")
def shared(base_directory: Path, request: pytest.FixtureRequest) -> Iterator[PoolMount]:
    """A mounted pool of three directories, shared by a module's tests: each uses segments of its own."""
    directory = base_directory / request.module.__name__.rpartition(".")[2]
    disks = [directory / f"disk{number}" for number in range(3)]
    for disk in disks:
        disk.mkdir(parents=True)
    pool = PoolMount(directory, disks)
    pool.init()
    pool.start()
    yield pool
    pool.abandon()
    sweep.remove_tree(directory)


@pytest.fixture
def secret(workdir: Path) -> Iterator[Path]:
    """Outside every disk, and untouched when the test is over."""
    path = workdir / "secret"
    path.write_bytes(SECRET)
    before = path.lstat()
    yield path
    after = path.lstat()
    assert path.read_bytes() == SECRET
    assert (before.st_mode, before.st_uid, before.st_mtime_ns, before.st_nlink, before.st_ino) == (
        after.st_mode,
        after.st_uid,
        after.st_mtime_ns,
        after.st_nlink,
        after.st_ino,
    )
