"""The page cache is one for the whole machine: what a test drops from it, another worker's test may be counting.

The kernel, too, may take pages of a file at any time: some hosts page out what was not used for a minute (DAMON),
by regions of memory, so that new pages may go with old ones. So a test that pages stay checks several files, and
expects it of one.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from commitlogfs.bench.targets_disks import DROP_CACHES


@contextmanager
def kept() -> Iterator[None]:
    """Meanwhile neither a test nor a measurement drops the cache; those that would wait."""
    with DROP_CACHES.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
