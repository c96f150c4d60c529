"""The C extension is there wherever the project is built with libfuse 3.14. No other test notices its absence."""

import struct
import subprocess

import pytest

from commitlogfs.fusefs.kernel import extension


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
    with pytest.raises(ValueError, match="a held descriptor and its INIT request belong together"):
        extension.module.prepare(3, b"", True)
    with pytest.raises(ValueError, match="not an INIT request"):
        extension.module.prepare(3, b"x" * 100, True)
    with pytest.raises(OverflowError):
        extension.module.close_backing(1 << 40)
    assert extension.module.negotiated() is None
    for inode in (1, 2**64 - 1):
        extension.module.bind(inode, 7)
        extension.module.bind(inode, 8)
        extension.module.unbind(inode)
        extension.module.unbind(inode)


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
    assert init_reply(0x01020304, 64)[extension.module.INIT_REPLY_FLAGS :].startswith(b"\4\3\2\1")
    with pytest.raises(TypeError):
        extension.module.init_reply_flags("text")
