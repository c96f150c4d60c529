"""Client that uses the mount while its daemon is killed; see recovery.py.

    python -m commitlogfs.bench.recovery_client SEGMENT [urgent [FLOOR]]

Keeps the segment open and mapped. For each line on standard input it prints lines that begin with a time
(CLOCK_MONOTONIC, in seconds):

    use         uses the mount, then prints `TIME ok`, or the error
    kill PID    kills that process (`TIME killed`), then does as `use`
    floor       kills the process that the program FLOOR waits for (`TIME killed`), prints `TIME ok` when it answers

To use the mount, the client calls statvfs, opens the segment once more, stores into the mapping and syncs
it, syncs the file that was open all the time, and reads. `urgent`: with the priority of a daemon, so that the
time does not include the client's wait for a processor.
"""

import mmap
import os
import signal
import subprocess
import sys
import time

from commitlogfs.mount.linux import priority


def main() -> None:
    path, urgent, floor_program = (*sys.argv[1:], "", "")[:3]
    place = mmap.PAGESIZE if urgent else 0  # each client stores into its own page
    if urgent:
        priority.raise_priority()
        priority.lock_memory()
    floor = None
    if floor_program:
        command = [floor_program, str(priority.NICE)]
        floor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with mmap.mmap(fd, 0) as mapping:
        for turn, line in enumerate(sys.stdin):
            verb, _, pid = line.strip().partition(" ")
            if verb == "floor":
                assert floor is not None
                assert floor.stdout is not None
                _kill(int(floor.stdout.readline()))
                _say(floor.stdout.readline().strip())
                continue
            if verb == "kill":
                _kill(int(pid))
            _say(_use(path, fd, mapping, place, turn % 256))


def _kill(pid: int) -> None:
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    print(f"{started:.6f} killed", flush=True)


def _say(text: str) -> None:
    print(f"{time.monotonic():.6f} {text}", flush=True)


def _use(path: str, fd: int, mapping: mmap.mmap, place: int, value: int) -> str:
    step = "statfs"
    try:
        os.statvfs(os.path.dirname(path))  # noqa: PTH120
        step = "open"
        other = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            step = "msync"
            mapping[place] = value
            mapping.flush(place, mmap.PAGESIZE)
            step = "fsync"
            os.fsync(fd)
            step = "read"
            found = os.pread(other, 1, place)[0]
        finally:
            os.close(other)
    except OSError as error:
        return f"{step}: {error.strerror}"
    return "ok" if found == value else f"read: {found} instead of {value}"


if __name__ == "__main__":
    main()
