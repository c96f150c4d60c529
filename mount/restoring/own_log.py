"""The log of a mount, as a restore sees it: what a segment from elsewhere is compared with.

The checks of a segment by itself do not show whose it is: the segments of another broker are as sound.
"""

import heapq
import itertools
import os
import time
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.restoring.places import Place, UnreadablePlaceError
from commitlogfs.store.disks.disk import MEDIUM_ERRORS
from commitlogfs.store.files.direct import ALIGNMENT
from commitlogfs.store.record import RecordError, TruncatedRecordError, decode
from commitlogfs.store.segment import BaseOffset, parse_segment_name

_HEAD_BYTES: Final = 64 << 10
"""Enough for most first records."""
_COMPARED_BYTES: Final = 1 << 20
"""Number of bytes of a damaged segment and its copy that are compared at once."""
_COMPARED: Final = 4
"""Segments of a place that are compared with the log's own."""
_TRIED: Final = 16
"""Segments that are read for that: of some, the first message cannot be read."""

_CLOCKS_DIFFER_MS: Final = 60_000
"""Most by which the clock of a broker may have been set back, or that of the next master may differ."""

Head = Callable[[int], bytes]
"""length -> the first bytes of a segment. Raises OSError, UnreadablePlaceError."""


class FirstRecord(NamedTuple):
    """The record with which a segment begins."""

    data: bytes
    store_host: str
    """Address of the broker that has stored it; a slave's copy has that of its master."""
    stored_ms: int
    """When the broker stored it."""


def first_record(head: Head, base_offset: BaseOffset, segment_size: int) -> FirstRecord | None:
    """None if the segment does not begin with a sound record, or cannot be read."""
    try:
        data = head(_HEAD_BYTES)
        try:
            record = decode(data, base_offset)
        except TruncatedRecordError as error:
            if not len(data) < error.needed <= segment_size:
                return None
            data = head(error.needed)
            record = decode(data, base_offset)
    except (RecordError, OSError, UnreadablePlaceError):
        return None
    return FirstRecord(data[: record.total_size], str(record.store_host), record.store_timestamp_ms)


class OwnLog:
    """The segments of a mounted log, when the restore begins."""

    def __init__(self, mountpoint: Path, segment_size: int, damaged: Collection[BaseOffset] = ()) -> None:
        """Nothing is compared with the messages of `damaged` segments. Raises RefusedError."""
        self._mountpoint = mountpoint
        self._size = segment_size
        self._damaged = frozenset(damaged)
        try:
            names = [path.name for path in mountpoint.iterdir()]
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise RefusedError(f"{mountpoint}: {reason}; run the command as root or the daemon's user") from error
        parsed = (parse_segment_name(os.fsencode(name), segment_size) for name in names)
        self._bases = sorted(base for base in parsed if base is not None)

    def require_same(
        self,
        place: Place,
        held: Collection[BaseOffset],
        missing: Iterable[BaseOffset],
        *,
        was_given_up: bool = False,
    ) -> bool:
        """Compare segments that both the log and a place have, the nearest to the missing or damaged ones. `held`
        are the whole segments of the place. Returns False if there is none to compare. `was_given_up`: the place is
        a former disk of the pool. The broker may have made the newest segments there once more, so those do not
        count. Raises RefusedError if a segment of the place is not the log's own."""
        filled = sorted(base for base in missing if base in held)
        if not filled:
            return False
        common = [base for base in self._bases if base in held and base not in self._damaged]
        compared = 0
        for base in heapq.nsmallest(_TRIED, common, key=lambda base: _distance(base, filled)):
            own = self.first_record(base)
            theirs = None if own is None else first_record(partial(place.head, base), base, self._size)
            if own is None or theirs is None:
                continue
            if own.data != theirs.data and was_given_up:
                continue
            if own.data != theirs.data:
                raise RefusedError(
                    f"--from {place.name}: {base:020d} begins with another message than in the log, so it is not a "
                    "copy of this log; name a slave or a backup of this broker"
                )
            compared += 1
            if compared == _COMPARED:
                break
        return compared > 0

    def first_record(self, base_offset: BaseOffset) -> FirstRecord | None:
        """The first record of a segment of the log; None also if the segment is damaged."""
        if base_offset in self._damaged:
            return None

        def head(length: int) -> bytes:
            with self._path(base_offset).open("rb", buffering=0) as file:
                return file.read(length)

        return first_record(head, base_offset, self._size)

    def first_difference(
        self,
        base_offset: BaseOffset,
        read: Callable[[int, int], bytes],
        ranges: Collection[tuple[int, int]],
        *,
        has_bad_blocks: bool,
    ) -> int | None:
        """The first part of a segment of the log, among these ranges of positions, in which it differs from a copy,
        which `read(position, length)` reads: its position, None if there is none. `has_bad_blocks`: the log's own
        disk is known to be unable to read the segment, and what it cannot read counts as equal. Raises as `read`,
        and UnreadablePlaceError if the segment cannot be compared for another reason."""
        if not ranges:
            return None
        try:
            file = self._path(base_offset).open("rb", buffering=0)
        except OSError as error:
            raise _cannot_compare(base_offset, error) from error
        with file:
            for begin, end in ranges:
                for position in range(begin, end, _COMPARED_BYTES):
                    theirs = read(position, min(_COMPARED_BYTES, end - position))
                    try:
                        is_equal = _is_equal(file.fileno(), position, theirs, has_bad_blocks=has_bad_blocks)
                    except OSError as error:
                        raise _cannot_compare(base_offset + position, error) from error
                    if not is_equal:
                        return position
        return None

    def contradiction(self, base_offset: BaseOffset, head: Head, last_ms: int) -> str:
        """Why a segment, whose copy `head` reads, is not of the broker or the time of its neighbours in the
        log; empty if it fits, or if nothing can be compared. `last_ms`: when its last message was stored."""
        record = first_record(head, base_offset, self._size)
        before, after = (self._nearest_record(side) for side in self._sides(base_offset))
        if record is None:
            return ""
        hosts = {found.store_host: base for base, found in filter(None, (after, before))}
        if hosts and record.store_host not in hosts:
            known = " and ".join(f"of {base:020d} by {host}" for host, base in hosts.items())
            return (
                f"its first message was stored by {record.store_host}, that {known}; if they are of one broker, "
                "put a segment beside it that the log has"
            )
        if before is not None and record.stored_ms < before[1].stored_ms - _CLOCKS_DIFFER_MS:
            return _describe_time(record.stored_ms, "before", *before)
        if after is not None and last_ms > after[1].stored_ms + _CLOCKS_DIFFER_MS:
            return _describe_time(last_ms, "after", *after)
        return ""

    def _nearest_record(self, side: Iterable[BaseOffset]) -> tuple[BaseOffset, FirstRecord] | None:
        """The first record of the nearest segment that has a readable one."""
        for base in itertools.islice(side, _TRIED):
            found = self.first_record(base)
            if found is not None:
                return base, found
        return None

    def bound_mtime_ns(self, base_offset: BaseOffset, mtime_ns: int) -> int:
        """A time for a restored segment that is not in the future, and lies between those of its neighbours: a
        broker's expiry ends at the first segment that seems too young."""
        before, after = ([self._mtime_ns(base) for base in side[:1]] for side in self._sides(base_offset))
        earliest = max((found for found in before if found is not None), default=0)
        latest = min([time.time_ns(), *(found for found in after if found is not None)])
        return min(max(mtime_ns, earliest), latest)

    def _sides(self, base_offset: BaseOffset) -> tuple[list[BaseOffset], list[BaseOffset]]:
        """The segments of the log before and after an offset, the nearest first."""
        before = [base for base in reversed(self._bases) if base < base_offset]
        return before, [base for base in self._bases if base > base_offset]

    def _mtime_ns(self, base_offset: BaseOffset) -> int | None:
        try:
            return self._path(base_offset).stat().st_mtime_ns
        except OSError:
            return None

    def _path(self, base_offset: BaseOffset) -> Path:
        return self._mountpoint / f"{base_offset:020d}"


def _is_equal(fd: int, position: int, theirs: bytes, *, has_bad_blocks: bool) -> bool:
    """Whether the file has these bytes there; with bad blocks, as far as its disk can read it. Raises OSError."""
    at, is_by_block = 0, False
    while at < len(theirs):
        rest = len(theirs) - at
        block = min(rest, ALIGNMENT - (position + at) % ALIGNMENT)
        try:
            ours = os.pread(fd, block if is_by_block else rest, position + at)
        except OSError as error:
            if not has_bad_blocks or error.errno not in MEDIUM_ERRORS:
                raise
            at += block if is_by_block else 0
            is_by_block = True
            continue
        if not ours or ours != theirs[at : at + len(ours)]:
            return False
        at += len(ours)  # a read ends before a bad block
    return True


def _cannot_compare(log_offset: int, error: OSError) -> UnreadablePlaceError:
    reason = os.strerror(error.errno or 0)
    cure = "; `commitlogfs scrub start` records what its disk cannot read" if error.errno in MEDIUM_ERRORS else ""
    return UnreadablePlaceError(f"log offset {log_offset}: cannot be compared with the segment ({reason}){cure}")


def _describe_time(stored_ms: int, side: str, neighbour: BaseOffset, record: FirstRecord) -> str:
    return (
        f"its messages were stored at {_moment(stored_ms)}, {side} those of {neighbour:020d} "
        f"({_moment(record.stored_ms)}), so it is of another history of the log; if it is not, put a segment "
        "beside it that the log has"
    )


def _moment(stored_ms: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored_ms // 1000))
    except (OverflowError, ValueError, OSError):
        return f"{stored_ms} ms"


def _distance(base: BaseOffset, ordered: Sequence[BaseOffset]) -> int:
    """From a base offset to the nearest of others."""
    index = bisect(ordered, base)
    return min(abs(base - other) for other in ordered[max(0, index - 1) : index + 1])
