"""Any bytes as a name, through the kernel: only documented errnos, and nothing but segments on the disks."""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pools import MIB, PoolMount
from support.waiting import eventually

from commitlogfs.store.segment import LARGEST_OFFSET, parse_segment_name, parse_temporary_name

pytestmark = [pytest.mark.mounted, pytest.mark.full]

EXPECTED = {
    errno.EINVAL,
    errno.ENOENT,
    errno.EEXIST,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EBUSY,
    errno.ENOTEMPTY,
    errno.EXDEV,
}

near_names = st.one_of(
    st.integers(0, 20).map(lambda index: b"%020d" % (index * MIB)),
    st.integers(0, 10**20 - 1).map(lambda offset: b"%020d" % offset),
    st.text("0123456789\u0660\u0967\uff10", min_size=18, max_size=22).map(str.encode),
    st.sampled_from(
        [b"%020d" % (LARGEST_OFFSET - LARGEST_OFFSET % MIB), b"%020d" % (2**63), b"9" * 20, b"-" + b"0" * 19]
    ),
)
names = st.one_of(
    near_names,
    near_names.map(lambda name: b"." + name + b".part"),
    st.binary(min_size=1, max_size=256).map(lambda raw: raw.replace(b"\0", b"0")),
    st.lists(
        st.sampled_from([b"..", b".", b"disk0", b".commitlogfs", b"0" * 20, b"~", b"*"]), min_size=1, max_size=4
    ).map(b"/".join),
)


def attempt(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        assert error.errno in EXPECTED, error  # noqa: PT017
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=names, other=names)
def test_any_name_in_any_call(shared: PoolMount, name: bytes, other: bytes) -> None:
    if b".." in name.split(b"/") or b".." in other.split(b"/"):
        # The kernel resolves it, and we would act on the test's own directories, so they are only read.
        root = os.open(shared.mountpoint, os.O_PATH)
        attempt(lambda: os.stat(name, dir_fd=root))
        os.close(root)
        return
    root = os.open(shared.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        attempt(lambda: os.stat(name, dir_fd=root))
        attempt(lambda: os.readlink(name, dir_fd=root))
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_CREAT | os.O_RDWR, os.O_CREAT | os.O_EXCL | os.O_WRONLY):
            fd = attempt(lambda flags=flags: os.open(name, flags | os.O_NONBLOCK, 0o644, dir_fd=root))
            if isinstance(fd, int):
                os.close(fd)
        for make in (
            lambda: os.mkdir(name, dir_fd=root),
            lambda: os.symlink("/etc/shadow", name, dir_fd=root),
            lambda: os.mknod(name, stat.S_IFIFO | 0o644, dir_fd=root),
            lambda: os.link(other, name, src_dir_fd=root, dst_dir_fd=root),
            lambda: os.rename(name, other, src_dir_fd=root, dst_dir_fd=root),
            lambda: os.rename(other, name, src_dir_fd=root, dst_dir_fd=root),
            lambda: os.rmdir(name, dir_fd=root),
        ):
            attempt(make)
        only_segments(shared)
        attempt(lambda: os.unlink(name, dir_fd=root))
        attempt(lambda: os.unlink(other, dir_fd=root))
    finally:
        os.close(root)
    eventually(lambda: only_segments(shared) == [])  # what was open is freed when the kernel has forgotten it
    assert shared.daemon is not None
    assert shared.daemon.poll() is None


def only_segments(pool: PoolMount) -> list[bytes]:
    found = [name for disk in pool.disks for name in os.listdir(os.fsencode(disk))]
    for name in found:
        assert parse_segment_name(name, MIB) is not None or parse_temporary_name(name, MIB) is not None, name
    return found


def test_names_from_outside_end_no_line_of_the_log(shared: PoolMount) -> None:
    """A reader of the log would believe a forged line."""
    forged = b"x\n2099-01-01T00:00:00.000Z error event=forged\r\x1b[2J\xff"
    for call in (
        lambda: os.open(os.fsencode(shared.mountpoint) + b"/" + forged, os.O_CREAT | os.O_RDWR),
        lambda: os.mkdir(os.fsencode(shared.mountpoint) + b"/" + forged),
        lambda: os.unlink(os.fsencode(shared.mountpoint) + b"/" + forged),
        lambda: os.rename(
            os.fsencode(shared.mountpoint) + b"/" + forged, os.fsencode(shared.mountpoint) + b"/" + b"0" * 20
        ),
    ):
        with pytest.raises(OSError):  # noqa: PT011
            call()
    assert eventually(lambda: "forged" in shared.log_since_start())  # refusals are logged with -v
    raw = shared.log_path.read_bytes()
    assert b"\x1b" not in raw
    assert b"\xff" not in raw
    for line in raw.splitlines():
        assert not line.startswith(b"2099")
        time.strptime(line[:19].decode(), "%Y-%m-%dT%H:%M:%S")


def test_names_from_outside_are_no_metric_labels(shared: PoolMount) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        os.mkdir(shared.mountpoint / 'x"} 1\nforged{a="')
    assert "forged" not in (shared.mountpoint / ".commitlogfs/metrics").read_text()


def test_control_names_cannot_be_made_or_removed(shared: PoolMount) -> None:
    hidden = shared.mountpoint / ".commitlogfs"
    before = sorted(os.listdir(hidden))
    for call in (
        lambda: os.rmdir(hidden),
        lambda: os.unlink(hidden / "log"),
        lambda: os.open(hidden / "new", os.O_CREAT | os.O_RDWR),
        lambda: os.open(hidden / "log", os.O_RDWR),
        lambda: os.open(hidden / "status.json", os.O_WRONLY | os.O_TRUNC),
        lambda: os.truncate(hidden / "log", 0),
        lambda: os.rename(hidden, shared.mountpoint / ("0" * 20)),
        lambda: os.rename(hidden / "log", shared.mountpoint / ("0" * 20)),
        lambda: os.mkdir(hidden / "x"),
    ):
        with pytest.raises(OSError) as error:  # noqa: PT011
            call()
        assert error.value.errno in (errno.EPERM, errno.EACCES, errno.ENOENT), error.value
    assert sorted(os.listdir(hidden)) == before
    assert not any(os.path.lexists(Path(disk) / ".commitlogfs") for disk in shared.disks)
