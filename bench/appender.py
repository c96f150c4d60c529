"""Appends and syncs like a broker with SYNC_FLUSH: stores into a mapped segment, msync, and repeats.

    python -m commitlogfs.bench.appender SEGMENT BYTES

Runs until its standard input is closed, then prints the number of syncs and the seconds that it ran.
"""

import mmap
import select
import sys
import time
from pathlib import Path


def main() -> None:
    segment, append_bytes = Path(sys.argv[1]), int(sys.argv[2])
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        record = bytes(range(256)) * -(-append_bytes // 256)
        position, syncs, started = 0, 0, time.perf_counter()
        print("appending", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            mapping[position : position + append_bytes] = record[:append_bytes]
            page = position - position % mmap.PAGESIZE
            mapping.flush(page, position + append_bytes - page)
            position = (position + append_bytes) % (len(mapping) - append_bytes)
            syncs += 1
    print(f"{syncs} {time.perf_counter() - started:.3f}")


if __name__ == "__main__":
    main()
