"""A broker opens every segment and keeps it open; the daemon holds a descriptor for each."""

import contextlib
import os
import resource

import pytest
from support.pools import PoolMount

SOFT_LIMIT = 40
SEGMENTS = SOFT_LIMIT + 10

pytestmark = pytest.mark.mounted


def test_more_segments_are_open_at_once_than_the_soft_limit_allows(make_pool):
    pool: PoolMount = make_pool(2, segment_size=4096)
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, former[1]))
    try:
        pool.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
    pool.make_segments(range(SEGMENTS), fill=False)
    with contextlib.ExitStack() as stack:
        for index in range(SEGMENTS):
            stack.callback(os.close, os.open(pool.path(index), os.O_RDWR))
