"""Size and duration of a run of `commitlogfs bench`."""

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20


class Part(Enum):
    DATA = "data"
    BROKER = "broker"
    RECOVERY = "recovery"
    MOVES = "moves"
    SCRUB = "scrub"


@dataclass(frozen=True, slots=True)
class Settings:
    parts: tuple[Part, ...] = tuple(Part)
    rounds: int = 5
    disks: int = 3
    fstype: str = "ext4"
    directory: Path | None = None
    """Directory on a real disk to measure instead of loop disks."""
    segment_bytes: int = 256 * MIB
    """Size of the data path's segments, a multiple of 1 MiB."""
    append_bytes: int = 16 * KIB
    sync_appends: int = 2048
    """Number of appends in one run with msync after each."""
    random_reads: int = 4096
    creates: int = 20
    listed: int = 1000
    listings: int = 5
    """Number of creates per run; their median counts."""
    readers: int = 4
    messages: int = 100_000
    sync_messages: int = 30_000
    warm_up_messages: int = 5_000
    """Messages sent to another topic first, to warm up the JVM."""
    body_bytes: int = 4 * KIB
    broker_segment_bytes: int = 32 * MIB
    threads: int = 16
    kills: int = 30
    """Number of kills of the daemon for each load."""
    loads: tuple[int, ...] = (0,)
    """Busy processes per processor while daemons are killed."""
    cold_bytes: int = 3072 * MIB
    """Messages that a broker has written before, which are moved or scrubbed while it takes others."""
    move_rate: int = 20 * MIB
    """Bytes per second of a move with a given rate."""
    move_window_s: float = 10.0
    move_windows: int = 3
    move_changes: int = 4
    scrub_bytes: int = 2048 * MIB
    """Bytes that a scrub without a limit reads."""
    scrub_segment_bytes: int = 256 * MIB
    """Size of its segments: with small ones, opening them counts, which a segment of 1 GiB does not show."""

    def as_json(self) -> dict[str, Any]:
        directory = str(self.directory) if self.directory is not None else None
        return {**asdict(self), "parts": [part.value for part in self.parts], "directory": directory}

    @property
    def random_reads_per_run(self) -> int:
        """Number of random reads: no page twice, because it would be cached the second time."""
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
    "sync_messages": 1000,
    "warm_up_messages": 50,
    "body_bytes": KIB,
    "broker_segment_bytes": MIB,
    "kills": 2,
    "cold_bytes": 64 * MIB,
    "move_rate": 4 * MIB,
    "move_window_s": 1.0,
    "move_changes": 1,
    "scrub_bytes": 64 * MIB,
    "scrub_segment_bytes": MIB,
}
"""For tests: every step runs, but the figures are meaningless."""
