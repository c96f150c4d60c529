"""A segment that is mapped is never cut short under its reader (SIGBUS), whichever way truncation is asked for."""

import errno
import itertools
import mmap
import os
from collections.abc import Callable

import pytest
from support.pools import MIB, PoolMount, segment_bytes

pytestmark = pytest.mark.mounted


def test_opening_with_o_trunc_is_refused_and_a_mapping_continues(
    shared: PoolMount, next_index: Callable[[], int]
) -> None:
    index = next_index()
    shared.make_segments([index])
    fd = os.open(shared.path(index), os.O_RDONLY)
    try:
        with mmap.mmap(fd, MIB, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            for access, create in itertools.product((os.O_RDONLY, os.O_WRONLY, os.O_RDWR), (0, os.O_CREAT)):
                with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what matters
                    os.close(os.open(shared.path(index), access | create | os.O_TRUNC))
                assert refused.value.errno == errno.EINVAL
                assert os.fstat(fd).st_size == MIB
                assert mapped[:4096] == segment_bytes(index, 4096)
    finally:
        os.close(fd)


def test_a_segment_without_content_may_be_opened_with_o_trunc(
    shared: PoolMount, next_index: Callable[[], int]
) -> None:
    index = next_index()
    for _ in range(2):
        fd = os.open(shared.path(index), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        assert os.fstat(fd).st_size == 0
        os.close(fd)


def test_control_files_are_not_opened_with_o_trunc(shared: PoolMount) -> None:
    with pytest.raises(PermissionError):
        os.close(os.open(shared.mountpoint / ".commitlogfs" / "log", os.O_RDONLY | os.O_TRUNC))
