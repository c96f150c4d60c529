"""Stores to be refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.refusals import write_segment


@pytest.fixture
def striped(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Segments 0 ... 6 on three directories, adopted, never mounted: 0, 3, 6 on the first, the newest among
    them."""
    pool = make_pool(3, born=False)
    for index in range(7):
        write_segment(Path(pool.disks[index % 3]), index)
    pool.adopt()
    return pool
