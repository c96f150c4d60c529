"""The C extension is there wherever the project is built with libfuse 3.14: nothing but its absence would tell."""

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
    with pytest.raises(ValueError, match="a held descriptor goes with its INIT request"):
        extension.module.prepare(3, b"", True)
    with pytest.raises(ValueError, match="no INIT request"):
        extension.module.prepare(3, b"x" * 100, True)
    with pytest.raises(OverflowError):
        extension.module.close_backing(1 << 40)
    assert extension.module.negotiated() is None
    for inode in (1, 2**64 - 1):
        extension.module.bind(inode, 7)
        extension.module.bind(inode, 8)
        extension.module.unbind(inode)
        extension.module.unbind(inode)
