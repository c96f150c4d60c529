"""One mount for each module; a secret that must never be reached through it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount, pool_in

from commitlogfs.store.timing import DEFAULT

SECRET = b"secret of somebody else\n"


@pytest.fixture(scope="module")
def shared(module_directory: Path) -> Iterator[PoolMount]:
    """A mounted pool of three directories, shared by a module's tests: each uses segments of its own.

    It has the times of the product, since tests that measure time use it, too.
    """
    with pool_in(module_directory, times=DEFAULT) as pool:
        pool.start()
        yield pool


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
