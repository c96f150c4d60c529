"""How far the scrub is on one disk, and its form in an extended attribute of the disk's directory.

A scrub is one run over all disks. Each disk records the run and its own position, so that the next daemon continues
it. Of several runs, or several orders to one run, the latest counts (`Run.order`), also if the clock was set back
between them: a run that does not begin after the one before, by the clock, is the first one of the next era.

The attribute has 59 bytes, in little-endian order:

    position   bytes
    0          1       version of this format: 2
    1          1       number of the command
    2          1       flags: 1 begun by the schedule, 2 all chains are followed; the other six bits are the era,
                       which is 0 in the records of former versions, and which they ignore
    3          2       sequence of the orders to this run
    5          2       number of segments that were not read
    7          4 x 4   seconds since 1970: begun, ended here, last complete run ended here; seconds at work
    23         4 x 8   rate, end, position, bytes read
    55         4       CRC-32 of the 55 bytes before it
"""

import os
import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlogfs.store import layout
from commitlogfs.store.files import durable
from commitlogfs.store.segment import BaseOffset

FORMAT_VERSION: Final = 2
_BODY: Final = struct.Struct("<BBBHH4I4Q")
_CRC: Final = struct.Struct("<I")
ATTRIBUTE_BYTES: Final = 96
"""Room that the attribute takes in a block of ext4, with its name."""
MOST_UNREAD: Final = (1 << 16) - 1
MOST_ORDERS: Final = (1 << 16) - 1
"""The greatest sequence of an order."""
MOST_RATE: Final = (1 << 63) - 1
MOST_ERAS: Final = (1 << 6) - 1
"""The greatest era."""
LATEST_S: Final = (1 << 32) - (1 << 16)
"""A time after this one counts as this one: a time has four bytes, and after the last era each run begins a second
after the one before."""
_SCHEDULED, _CHAINS, _ERA_SHIFT = 1, 2, 2
FROM_THE_BEGINNING: Final = BaseOffset(0)


class Command(Enum):
    """The operator's last order to a run."""

    RUN = 0
    PAUSE = 1
    CANCEL = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One scrub of the pool."""

    begun_s: int
    """Seconds since 1970; identifies the run within its era. 0 before the first one."""
    end: BaseOffset
    """Segments from this log offset on do not belong to it."""
    sequence: int = 0
    """Number of orders to this run before this one."""
    command: Command = Command.RUN
    rate: int = 0
    """Bytes per second on each disk; 0 if none was given."""
    is_scheduled: bool = False
    follows_chains: bool = False
    """Whether the chains of segments with a right checksum are checked, too."""
    era: int = 0
    """Number of runs until this one that did not begin after the one before, by the clock."""

    @property
    def number(self) -> tuple[int, int]:
        """Identifies the run. The greater one is the later one."""
        return self.era, self.begun_s

    @property
    def order(self) -> tuple[tuple[int, int], int]:
        """The greater one is the later one."""
        return self.number, self.sequence

    def next_number(self, now_s: int) -> tuple[int, int]:
        """The number of a run that begins now, after this one."""
        if now_s > self.begun_s:
            return self.era, now_s
        return (self.era + 1, now_s) if self.era < MOST_ERAS else (self.era, self.begun_s + 1)


@dataclass(frozen=True, slots=True)
class Progress:
    """State of one disk."""

    run: Run
    position: BaseOffset = FROM_THE_BEGINNING
    """Segments before this log offset are done."""
    read_bytes: int = 0
    active_s: int = 0
    """Seconds in which the disk was read, pauses of the rate included."""
    ended_s: int = 0
    """When the run has ended here, complete or cancelled; 0 while it has not. Before the first run, the time from
    which the schedule counts."""
    completed_s: int = 0
    """When the latest complete run has ended here; 0 if there was none."""
    unread: int = 0
    """Number of segments that this run has not read, because they, or the disk, could not be read; MOST_UNREAD
    stands for all greater ones."""


NOTHING: Final = Progress(Run(0, BaseOffset(0)))
"""State of a disk that records none."""


def format_progress(progress: Progress) -> bytes:
    run = progress.run
    body = _BODY.pack(
        FORMAT_VERSION,
        run.command.value,
        _SCHEDULED * run.is_scheduled | _CHAINS * run.follows_chains | run.era << _ERA_SHIFT,
        run.sequence,
        min(progress.unread, MOST_UNREAD),
        run.begun_s,
        progress.ended_s,
        progress.completed_s,
        progress.active_s,
        run.rate,
        run.end,
        progress.position,
        progress.read_bytes,
    )
    return body + _CRC.pack(zlib.crc32(body))


def parse_progress(raw: bytes) -> Progress | None:
    """None for a damaged value, and for one of another version."""
    if len(raw) != _BODY.size + _CRC.size:
        return None
    body, crc = raw[: _BODY.size], raw[_BODY.size :]
    version, command, flags, sequence, unread, *numbers = _BODY.unpack(body)
    begun, ended, completed, active, rate, end, position, read = numbers
    if version != FORMAT_VERSION or crc != _CRC.pack(zlib.crc32(body)) or command > Command.CANCEL.value:
        return None
    run = Run(
        begun,
        BaseOffset(end),
        sequence,
        Command(command),
        rate,
        is_scheduled=bool(flags & _SCHEDULED),
        follows_chains=bool(flags & _CHAINS),
        era=flags >> _ERA_SHIFT,
    )
    return Progress(run, BaseOffset(position), read, active, ended, completed, unread)


def read_progress(dirfd: int) -> Progress:
    """NOTHING if the directory records none. Blocks. Raises OSError."""
    raw = durable.read_xattr(dirfd, layout.XATTR_SCRUB)
    return (None if raw is None else parse_progress(raw)) or NOTHING


def write_progress(dirfd: int, progress: Progress) -> None:
    """Not durable at once: a power cut may lose the last seconds, and some segments are read again. Blocks. Raises
    OSError."""
    os.setxattr(dirfd, layout.XATTR_SCRUB, format_progress(progress))
