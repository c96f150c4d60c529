"""The one who uses the mount while its daemon is killed; see recovery.py.

    python -m commitlogfs.bench.recovery_client SEGMENT

Keeps the segment open and mapped. For each line on standard input: asks the filesystem for its figures, opens the
segment once more, stores into the mapping and syncs it, syncs the file that was open all the time, and reads; says
`ok`, or what failed.
"""

import mmap
import os
import sys


def main() -> None:
    path = sys.argv[1]
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with mmap.mmap(fd, 0) as mapping:
        for turn, _ in enumerate(sys.stdin):
            print(_use(path, fd, mapping, turn % 256), flush=True)


def _use(path: str, fd: int, mapping: mmap.mmap, value: int) -> str:
    step = "statfs"
    try:
        os.statvfs(os.path.dirname(path))  # noqa: PTH120
        step = "open"
        other = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            step = "msync"
            mapping[0] = value
            mapping.flush(0, mmap.PAGESIZE)
            step = "fsync"
            os.fsync(fd)
            step = "read"
            found = os.pread(other, 1, 0)[0]
        finally:
            os.close(other)
    except OSError as error:
        return f"{step}: {error.strerror}"
    return "ok" if found == value else f"read: {found} instead of {value}"


if __name__ == "__main__":
    main()
