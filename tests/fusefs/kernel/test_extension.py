"""The C extension is there wherever the project is built with libfuse 3.14. No other test notices its absence."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from commitlogfs.fusefs.kernel import extension

INIT_REQUEST = struct.pack("=IIQQIIIHHIIIII44x", 104, 26, 2, 0, 0, 0, 0, 0, 0, 7, 45, 1 << 20, (1 << 31) - 1, 0)
"""struct fuse_in_header and fuse_init_in of Linux."""


def has_libfuse() -> bool:
    found = subprocess.run(["pkg-config", "--atleast-version=3.14", "fuse3"], capture_output=True, check=False)
    return found.returncode == 0


@pytest.mark.skipif(not has_libfuse(), reason="no libfuse 3.14 to build with")
def test_it_was_built_and_loads() -> None:
    assert extension.reason == ""
    assert extension.module is not None


def test_bad_arguments_are_refused() -> None:
    if extension.module is None:
        pytest.skip(extension.reason)
    reply = init_reply(0, 64)
    for fd, init, answer in ((3, b"", b""), (3, b"", reply), (3, b"x" * 100, b""), (-1, b"", reply)):
        with pytest.raises(ValueError, match="a held descriptor, its INIT request and its reply belong together"):
            extension.module.prepare(fd, init, answer, True)
    with pytest.raises(ValueError, match="not an INIT request"):
        extension.module.prepare(3, b"x" * 100, reply, True)
    with pytest.raises(ValueError, match="not an INIT reply"):
        extension.module.prepare(3, INIT_REQUEST, reply[:-1], True)
    with pytest.raises(OverflowError):
        extension.module.close_backing(1 << 40)
    assert extension.module.negotiated() is None
    for inode in (1, 2**64 - 1):
        extension.module.bind(inode, 7)
        extension.module.bind(inode, 8)
        extension.module.unbind(inode)
        extension.module.unbind(inode)


_SUCCEED = """
import os, sys
from commitlogfs.fusefs.kernel import extension
import pyfuse3
held, request, reply = int(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
extension.module.prepare(held, request, reply, False)
try:
    pyfuse3.init(pyfuse3.Operations(), "/", {"fsname=test"})
except RuntimeError:
    print(extension.module.failure())
else:
    assert extension.module.negotiated()[:3] == (held, request, reply)
    print("taken over")
"""


@pytest.mark.parametrize(
    ("flags", "max_write", "said"),
    [
        (0, 4096, "taken over"),
        (2**40 - 1, 4096, "taken over"),
        (0, 1 << 30, "this libfuse reads smaller requests than the kernel sends on this mount"),
    ],
)
def test_a_successor_keeps_the_reply_of_the_mount_and_sends_none(
    tmp_path: Path, flags: int, max_write: int, said: str
) -> None:
    """Whatever libfuse would request. A file takes the place of the connection."""
    if extension.module is None:
        pytest.skip(extension.reason)
    kept = init_reply(flags, 64)
    kept = kept[:20] + max_write.to_bytes(4, sys.byteorder) + kept[24:]
    with (tmp_path / "connection").open("w+b") as connection:
        done = subprocess.run(
            [sys.executable, "-c", _SUCCEED, str(connection.fileno()), INIT_REQUEST.hex(), kept.hex()],
            pass_fds=[connection.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == said
    assert (tmp_path / "connection").read_bytes() == b""


def init_reply(flags: int, length: int) -> bytes:
    """A struct fuse_init_out of Linux, cut to `length` bytes."""
    low, high = flags & 0xFFFFFFFF, flags >> 32
    return struct.pack("=IIIIHHIIHHII6I", 7, 45, 9, low, 1, 2, 3, 4, 5, 6, high, *range(10, 17))[:length]


def test_the_flags_of_an_init_reply_are_read() -> None:
    if extension.module is None:
        pytest.skip(extension.reason)
    flags = extension.module.PASSTHROUGH | extension.module.HAS_RESEND | 1 << 3
    assert extension.module.init_reply_flags(init_reply(flags, 64)) == flags
    assert extension.module.init_reply_flags(init_reply(flags, 24)) == 1 << 3  # of an old kernel
    assert extension.module.init_reply_flags(b"") == 0
    with pytest.raises(TypeError):
        extension.module.init_reply_flags("text")
