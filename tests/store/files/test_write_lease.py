"""The lease probe sees other users of a file, and leaves no trace in the process that probes."""

import os
import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE_S

from commitlogfs.store.files.write_lease import is_open_elsewhere

OPENED_MEANWHILE = """
import fcntl, os, sys, threading, time
from commitlogfs.store.files import write_lease

dirfd = os.open(sys.argv[1], os.O_RDONLY)
real = fcntl.fcntl
opener = threading.Thread(target=lambda: os.close(os.open(os.path.join(sys.argv[1], "file"), os.O_RDWR)))

def then_open(fd, command, *arguments):
    result = real(fd, command, *arguments)
    if (command, *arguments) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
        opener.start()
        begun = time.monotonic()
        while real(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK and time.monotonic() < begun + 120:
            time.sleep(0.01)  # the kernel has not asked for the lease yet
    return result

fcntl.fcntl = then_open
print(write_lease.is_open_elsewhere(dirfd, b"file"))
opener.join()
"""
"""Another thread opens the file while the probe holds the lease."""


def test_open_and_not_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    dirfd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert is_open_elsewhere(dirfd, b"file") is False
        with path.open("rb"):
            assert is_open_elsewhere(dirfd, b"file") is True
        assert is_open_elsewhere(dirfd, b"file") is False
    finally:
        os.close(dirfd)


def test_an_open_meanwhile_does_not_end_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    ran = subprocess.run(
        [sys.executable, "-c", OPENED_MEANWHILE, tmp_path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr
