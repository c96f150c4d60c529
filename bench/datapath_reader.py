"""One of several concurrent readers; see datapath_readers.py.

    python -m commitlogfs.bench.datapath_reader SEGMENT NUMBER

Prints `ready`, waits for a line, reads the segment from start to end and prints `read`, then compares every byte
and prints `verified`.
"""

import os
import sys

from commitlogfs.bench import datapath_content as content

_READ_BYTES = 1 << 20


def main() -> None:
    path, segment = sys.argv[1], int(sys.argv[2])
    size = os.stat(path).st_size  # noqa: PTH116
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    buffer = bytearray(_READ_BYTES)
    print("ready", flush=True)
    sys.stdin.readline()
    for position in range(0, size, _READ_BYTES):
        if os.preadv(fd, [buffer], position) != _READ_BYTES or not content.starts_with(buffer, segment, position):
            sys.exit(f"{path}: wrong or missing bytes at {position}")
    print("read", flush=True)
    content.verify_segment(fd, segment, size)
    print("verified", flush=True)


if __name__ == "__main__":
    main()
