"""Probe of a disk by a child process with a deadline: a disk may hang, and its reader with it.

    python -m commitlogfs.mount.doctor.disk_probe PATH DESCRIPTOR SEGMENT_SIZE WRITE

reads a few segments of the directory behind the descriptor, past the page cache. With WRITE = 1 it also reserves
the beginning of a segment without a name, and frees it again. It prints one line of JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from commitlogfs.store.checks.probe import probe_disk
from commitlogfs.store.errors import DiskFullError
from commitlogfs.store.segment import parse_segment_name

SAMPLES: Final = 3
"""Number of segments that are read: the oldest, the newest, and one between them."""
RESERVED_BYTES: Final = 1 << 20
"""Most bytes that are reserved. A whole segment on every disk at once could bring the pool above a threshold for a
moment; then a broker, or a create that finds every disk full, would delete old segments."""
_GRACE_S: Final = 0.2
"""Time to read the answer of a child that has ended, and for a killed child to end, which a disk may delay."""


@dataclass(frozen=True, slots=True)
class DiskProbe:
    """Faults that a probe has found; there is none if all fields are empty."""

    silence: str = ""
    """Why the probe has no result."""
    unlisted: str = ""
    """Why the directory cannot be listed."""
    unreadable: tuple[str, ...] = ()
    """Segments that cannot be read."""
    not_made: str = ""
    """Why no segment can be made."""
    is_full: bool = False
    """Whether it cannot be made only because space is missing."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A disk to be probed: its open directory, and whether a segment may be made there."""

    path: str
    dirfd: int
    segment_size: int
    may_write: bool


def probe_disks(disks: Sequence[Probed], timeout_s: float) -> list[DiskProbe]:
    """Probe all disks at once. Returns soon after `timeout_s` even if disks hang."""
    deadline = time.monotonic() + timeout_s
    children = [_start(disk) for disk in disks]
    return [_result(child, deadline, timeout_s) for child in children]


def _start(disk: Probed) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "commitlogfs.mount.doctor.disk_probe"]
    command += [disk.path, str(disk.dirfd), str(disk.segment_size), "1" if disk.may_write else "0"]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=[disk.dirfd],
        cwd="/",
        text=True,
    )


def _result(child: subprocess.Popen[str], deadline: float, timeout_s: float) -> DiskProbe:
    try:
        answer, _ = child.communicate(timeout=max(_GRACE_S, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.returncode = -9  # it is gone when the disk answers; nobody waits for it
        return DiskProbe(silence=f"does not answer within {timeout_s:g} s")
    try:
        found = json.loads(answer)
    except ValueError:
        return DiskProbe(silence=f"cannot be probed (status {child.returncode})")
    return DiskProbe(**{**found, "unreadable": tuple(found["unreadable"])})


def _probe(path: str, dirfd: int, segment_size: int, *, may_write: bool) -> DiskProbe:
    unlisted = ""
    try:
        names = _samples(dirfd, segment_size)
    except OSError as error:
        unlisted, names = os.strerror(error.errno or 0), []
    probes = {name: probe_disk(path, dirfd, (name,), segment_size, may_write=False) for name in names}
    unreadable = tuple(name.decode() for name, probe in probes.items() if not probe.is_readable)
    refusal = probe_disk(path, dirfd, (), min(segment_size, RESERVED_BYTES), may_write=may_write).error
    return DiskProbe(
        unlisted=unlisted,
        unreadable=unreadable,
        not_made="" if refusal is None else str(refusal),
        is_full=isinstance(refusal, DiskFullError),
    )


def _samples(dirfd: int, segment_size: int) -> list[bytes]:
    names = sorted(os.fsencode(name) for name in os.listdir(dirfd))
    segments = [name for name in names if parse_segment_name(name, segment_size) is not None]
    places = {round(index * (len(segments) - 1) / (SAMPLES - 1)) for index in range(SAMPLES)} if segments else set()
    return [segments[place] for place in sorted(places)]


def main() -> None:
    path, dirfd, segment_size, write = sys.argv[1:]
    print(json.dumps(asdict(_probe(path, int(dirfd), int(segment_size), may_write=write == "1"))))


if __name__ == "__main__":
    main()
