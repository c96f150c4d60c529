"""Extended attributes: what a segment tells, and what tools may not write."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount

pytestmark = pytest.mark.mounted

ACCESS_ACL = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
"""u::rw-,g::r--,o::r-- as the kernel packs it (acl_ea_header, three entries)."""


def test_a_segment_tells_where_it_lies(shared: PoolMount, next_index: Callable[[], int]) -> None:
    index = next_index()
    shared.make_segments([index])
    path = shared.path(index)
    disk = Path(shared.disks[shared.disk_of(index)])
    values = {name.removeprefix("user.commitlogfs."): os.getxattr(path, name) for name in os.listxattr(path)}
    assert values["disk"] == os.fsencode(disk)
    assert values["fullpath"] == os.fsencode(disk / path.name)
    assert values["base_offset"] == b"%d" % (index * MIB)
    assert values["state"] == b"active"
    assert int(values["allocated_bytes"]) == (disk / path.name).stat().st_blocks * 512
    with pytest.raises(OSError) as unknown:  # noqa: PT011
        os.getxattr(path, "user.commitlogfs.nothing")
    assert unknown.value.errno == errno.ENODATA


def test_acls_are_unsupported_rather_than_forbidden(shared: PoolMount, next_index: Callable[[], int]) -> None:
    """Tools that preserve permissions set an ACL first and fall back to chmod only where there are no ACLs."""
    index = next_index()
    shared.make_segments([index])
    access, default = "system.posix_acl_access", "system.posix_acl_default"
    for path, name in ((shared.path(index), access), (shared.mountpoint, access), (shared.mountpoint, default)):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.setxattr(path, name, ACCESS_ACL)
        assert refused.value.errno == errno.EOPNOTSUPP
        with pytest.raises(OSError) as refused:  # noqa: PT011
            os.removexattr(path, name)
        assert refused.value.errno == errno.EOPNOTSUPP


def test_cp_archives_into_the_mount(shared: PoolMount, next_index: Callable[[], int], workdir: Path) -> None:
    index = next_index()
    source = workdir / "source"
    source.write_bytes(os.urandom(MIB))
    source.chmod(0o640)
    done = subprocess.run(["cp", "-a", source, shared.path(index)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert shared.path(index).stat().st_mode & 0o777 == 0o640
