"""A read-only FUSE filesystem that shows the files of a directory, as sshfs or rclone do. A test stops it, so that
every access hangs.

Run as a program: `fuse_backup.py MOUNTPOINT DIRECTORY CLOSE_S`; each close of a file takes CLOSE_S seconds.
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


@contextlib.contextmanager
def fuse_backup(mountpoint: Path, directory: Path, close_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """Mount for the length of the context; at its end the connection is aborted."""
    arguments = [str(mountpoint), str(directory), str(close_s)]
    server = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"mounted\n"
        yield server
    finally:
        server.stdout.close()
        # By force first: it aborts the connection, so that nobody goes on waiting for a stopped server.
        subprocess.run(["umount", "-i", "-f", "-l", str(mountpoint)], check=False, capture_output=True)
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGKILL)
        server.wait()


def main(mountpoint: str, directory: str, close_s: str) -> None:
    import pyfuse3
    import trio

    contents = [(os.fsencode(path.name), path.read_bytes()) for path in sorted(Path(directory).iterdir())]
    inodes = {name: inode for inode, (name, _) in enumerate(contents, 2)}

    def attributes(inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode)
        entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o644)
        entry.st_size = 0 if inode == 1 else len(contents[inode - 2][1])
        return entry

    class Backup(pyfuse3.Operations):
        async def lookup(self, parent_inode, name, ctx):
            if name not in inodes:
                raise pyfuse3.FUSEError(errno.ENOENT)
            return attributes(inodes[name])

        async def getattr(self, inode, ctx):
            return attributes(inode)

        async def open(self, inode, flags, ctx):
            return pyfuse3.FileInfo(fh=inode)

        async def read(self, fh, off, size):
            return contents[fh - 2][1][off : off + size]

        async def flush(self, fh):
            await trio.sleep(float(close_s))

        async def release(self, fh):
            return None

        async def opendir(self, inode, ctx):
            return inode

        async def readdir(self, fh, start_id, token):
            for number, (name, _) in enumerate(contents[start_id:], start_id + 1):
                if not pyfuse3.readdir_reply(token, name, attributes(number + 1), number):
                    break

    pyfuse3.init(Backup(), mountpoint, {*pyfuse3.default_options, "fsname=backup"})
    os.write(1, b"mounted\n")
    trio.run(pyfuse3.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
