"""The part of a log, or of an export of it, that is left to send."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.log.scanner import Damage
from commitlogfs.pipeline.replay.frames import Row
from commitlogfs.pipeline.source.options import Edge, ReadOptions

Range = tuple[int, int]
"""Log offsets [start, end)."""


class Source(Protocol):
    """Messages in the order of the log."""

    damages: list[Damage]
    """Damage that was skipped so far."""

    @property
    def ranges(self) -> Sequence[Range]:
        """The ranges that hold the messages, in their order."""

    def rows(self) -> Iterator[Row]:
        """The messages as consumers get them."""

    def fingerprint(self, offset: int) -> Fingerprint | None:
        """Fingerprint of a message before `offset`; None if nothing is known of it."""


def bytes_from(ranges: Sequence[Range], offset: int = 0) -> int:
    """Bytes of log in these ranges, from a log offset on."""
    return sum(max(0, end - max(offset, start)) for start, end in ranges)


def first_offset(options: ReadOptions, position: int | None) -> Edge | int:
    """The position that earlier runs have reached, unless the given start is after it."""
    if position is None:
        return options.start
    return max(position, options.start) if isinstance(options.start, int) else position


def other_log(source: str, position: int | None) -> str:
    """The error of a source that has other messages before the position."""
    return (
        f"{source}: has other messages now than those before the position {position} that the replay has reached; "
        "it is another log, or its end was cut off: name another --position to send it from its beginning"
    )


def past_end(source: str, position: int | None) -> str:
    """The error of a source that ends before the position."""
    return (
        f"{source}: ends before the position {position} that the replay has reached; it lost its end, or is "
        "another log: name another --position to send it from its beginning"
    )
