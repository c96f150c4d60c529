"""How big and how long a run of `commitlogfs bench` is."""

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


class Part(Enum):
    DATA = "data"
    BROKER = "broker"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Settings:
    parts: tuple[Part, ...] = tuple(Part)
    rounds: int = 5
    disks: int = 3
    fstype: str = "ext4"
    folder: Path | None = None
    """On a real disk, to be used as it is; otherwise loop disks."""
    segment_bytes: int = 256 * MIB
    """Of the data path's segments, a multiple of 1 MiB."""
    append_bytes: int = 16 * KIB
    sync_appends: int = 2048
    """Appends of one run that are each followed by msync."""
    random_reads: int = 4096
    creates: int = 20
    listed: int = 1000
    listings: int = 5
    """Per run; their median counts."""
    readers: int = 4
    messages: int = 100_000
    sync_messages: int = 30_000
    warm_up_messages: int = 5_000
    """Sent to another topic first: a cold JVM says nothing of the disk."""
    body_bytes: int = 4 * KIB
    broker_segment_bytes: int = 32 * MIB
    threads: int = 16
    kills: int = 30
    """Of the daemon, for each load."""
    loads: tuple[int, ...] = (0,)
    """Busy processes per processor while daemons are killed."""

    def as_json(self) -> dict[str, Any]:
        folder = str(self.folder) if self.folder is not None else None
        return {**asdict(self), "parts": [part.value for part in self.parts], "folder": folder}

    @property
    def random_reads_per_run(self) -> int:
        """No page twice: the second time it would not be cold."""
        return min(self.random_reads, self.segment_bytes // (4 * KIB))


QUICK: dict[str, Any] = {
    "rounds": 2,
    "segment_bytes": 4 * MIB,
    "sync_appends": 32,
    "random_reads": 64,
    "creates": 2,
    "listed": 50,
    "listings": 2,
    "messages": 600,
    "sync_messages": 200,
    "warm_up_messages": 50,
    "body_bytes": KIB,
    "broker_segment_bytes": MIB,
    "kills": 2,
}
"""For tests: everything happens, the figures mean nothing."""
