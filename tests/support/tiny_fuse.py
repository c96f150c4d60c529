"""The smallest FUSE daemon that looks like a mount of ours, to be stopped, killed and held by tests.

Run as a program: `tiny_fuse.py MOUNTPOINT SUBTYPE HIDDEN HANG`. It serves `file`, and with HIDDEN = 1
also `.commitlogfs/status.json`; with HANG = 1 it reads a statfs and never answers. SIGSTOP makes it a daemon
that reads nothing, SIGKILL a dead one.
"""

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAMES = {
    (1, b"file"): 2,
    (1, b".commitlogfs"): 3,
    (3, b"status.json"): 4,
}
DIRECTORIES = {1, 3}
SIZE_BYTES = 8192


@contextlib.contextmanager
def tiny_fuse(
    mountpoint: Path, subtype: str = "commitlogfs", *, hidden: bool = True, hang_after_read: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Mount at `mountpoint` for the length of the context; at its end the connection is aborted."""
    arguments = [str(mountpoint), subtype, str(int(hidden)), str(int(hang_after_read))]
    daemon = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    try:
        assert daemon.stdout.readline() == b"mounted\n"
        yield daemon
    finally:
        daemon.stdout.close()
        # By force first: it aborts the connection, so that nobody goes on waiting for a hung daemon.
        subprocess.run(["umount", "-i", "-f", "-l", str(mountpoint)], check=False, capture_output=True)
        with contextlib.suppress(ProcessLookupError):
            daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def main(mountpoint: str, subtype: str, hidden: str, hang: str) -> None:
    import pyfuse3
    import trio

    def attributes(inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode)
        entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755 if inode in DIRECTORIES else stat.S_IFREG | 0o644)
        entry.st_size = 0 if inode in DIRECTORIES else SIZE_BYTES
        return entry

    class Tiny(pyfuse3.Operations):
        async def lookup(self, parent_inode, name, ctx):
            inode = NAMES.get((parent_inode, name))
            if inode is None or (inode > 2 and hidden == "0"):
                raise pyfuse3.FUSEError(errno.ENOENT)
            return attributes(inode)

        async def getattr(self, inode, ctx):
            return attributes(inode)

        async def open(self, inode, flags, ctx):
            return pyfuse3.FileInfo(fh=inode)

        async def read(self, fh, off, size):
            return bytes(max(0, min(size, SIZE_BYTES - off)))

        async def opendir(self, inode, ctx):
            return inode

        async def readdir(self, fh, start_id, token):
            return None

        async def statfs(self, ctx):
            if hang == "1":
                await trio.sleep_forever()
            return pyfuse3.StatvfsData()

    options = {*pyfuse3.default_options, "fsname=tiny", f"subtype={subtype}"}
    pyfuse3.init(Tiny(), mountpoint, options)
    os.write(1, b"mounted\n")
    trio.run(pyfuse3.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
