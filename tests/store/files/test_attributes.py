"""statx of backing files, packed."""

import os

import pytest

from commitlogfs.store.files.attributes import stat_name, unpack

IN_2300_NS = 10_413_792_000 * 10**9


def test_a_time_beyond_what_nanoseconds_can_tell_shows_as_the_latest(workdir):
    file = workdir / "file"
    file.touch()
    os.utime(file, ns=(IN_2300_NS, IN_2300_NS))
    if file.stat().st_mtime_ns != IN_2300_NS:
        pytest.skip("a filesystem without times after 2262")
    dirfd = os.open(workdir, os.O_RDONLY)
    try:
        attributes = unpack(stat_name(dirfd, b"file"))
    finally:
        os.close(dirfd)
    assert (attributes.atime_ns, attributes.mtime_ns) == (2**63 - 1, 2**63 - 1)
