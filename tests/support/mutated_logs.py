"""Logs with damage of every kind, each made from its seed alone, and what a reader must have made of them."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from support.messages import FIRST_MS, STEP_MS
from support.records import V1, V2, make_record
from support.written_logs import Maker, WrittenLog

from commitlogfs.store.record_layout import IPV6_EXTRA, STORE_TIMESTAMP_AT

RESTART_MS = 3_600_000
"""How long a broker was down before it cut its log back: later messages were stored so much later."""
_SEGMENT_SIZES = (8 << 10, 16 << 10, 64 << 10)
_NEAR_END_BYTES = 3000


@dataclass(slots=True)
class MutatedLog:
    """A log, some of whose bytes were changed after it was written."""

    log: WrittenLog
    records: dict[int, int]
    """Log offset and size of each message that was in the log before the damage."""
    stale: set[int] = field(default_factory=set)
    """Where messages begin that were cut off before the last ones were written."""
    damages: list[tuple[int, int]] = field(default_factory=list)
    """Log offset and length of what was changed."""

    def is_touched(self, offset: int) -> bool:
        """Whether the message at `offset` was damaged."""
        return self.is_damaged(offset, self.records[offset])

    def is_damaged(self, begin: int, end: int) -> bool:
        """Whether any byte from log offset `begin` to before `end` was changed."""
        return any(start < end and start + length > begin for start, length in self.damages)

    def faults(self, found: Iterable[int], reported: Iterable[tuple[int, int]]) -> list[str]:
        """Problems of a reader that read the messages at the log offsets `found` and reported these ranges.

        A message of which only zeros are left, with only zeros after it, cannot be distinguished from unwritten
        space.
        """
        known, ranges = set(found), list(reported)
        lost = [
            offset
            for offset in self.records
            if offset not in known and not any(start <= offset < stop for start, stop in ranges)
        ]
        faults = [f"message at {offset} is lost" for offset in lost if self._is_seen(offset)]
        return faults + [f"the old message at {offset} is read" for offset in sorted(known & self.stale)]

    def _is_seen(self, offset: int) -> bool:
        segments = [path for path in sorted(self.log.directory.iterdir()) if int(path.name) >= self._base(offset)]
        contents = b"".join(path.read_bytes() for path in segments)
        return any(contents[offset - self._base(offset) :])

    def _base(self, offset: int) -> int:
        return offset - offset % self.log.segment_size


def make_mutated_log(directory: Path, seed: int) -> MutatedLog:
    """One to ten damages in a log of one to four segments, every third of which a broker had cut back before."""
    chance = random.Random(seed)  # noqa: S311
    size = chance.choice(_SEGMENT_SIZES)
    log = WrittenLog(directory, size)
    stop = size * chance.choice((1, 1, 2, 3)) + chance.randrange(size)
    longest = chance.choice((40, 300, 1500))
    number = 0
    while log.end < stop - 2 * longest - 300:
        log.append(_some_message(chance, number, longest))
        number += 1
    mutated = MutatedLog(log, {})
    cut, stale = log.end, set[int]()
    if chance.random() < 1 / 3:
        cut, stale = _cut_back(log, chance, number, longest)
    ends = [*log.offsets[1:], log.end]
    mutated.records = dict(zip(log.offsets, ends, strict=True))
    _add_other_files(log, chance)
    for _ in range(chance.choice((1, 1, 2, 3, 10))):
        damage = _damage(log, chance)
        if damage is not None:
            mutated.damages.append(damage)
    # Only a message that was written later tells that others are old.
    if any(not mutated.is_touched(offset) for offset in log.offsets if offset >= cut):
        # One whose own store time was damaged may look as if it was stored later than all others.
        mutated.stale = {offset for offset in stale if not mutated.is_damaged(*_store_time(offset))}
    return mutated


def _store_time(offset: int) -> tuple[int, int]:
    """Where the store time of the message at `offset` lies, whatever the kind of its born host."""
    return offset + STORE_TIMESTAMP_AT, offset + STORE_TIMESTAMP_AT + IPV6_EXTRA + 8


def _some_message(chance: random.Random, number: int, longest: int, later_ms: int = 0) -> Maker:
    fields: dict[str, object] = {"body": chance.randbytes(chance.randrange(longest))}
    if chance.random() < 0.1:
        fields["born"] = ("2001:db8::1", 50123)
    if chance.random() < 0.1:
        fields["properties"] = b""
    fields["magic"] = chance.choice((V1, V1, V1, V2))
    fields["store_ms"] = FIRST_MS + number * STEP_MS + later_ms
    return lambda offset: make_record(offset, queue_offset=number, **fields)  # type: ignore[arg-type]


def _cut_back(log: WrittenLog, chance: random.Random, number: int, longest: int) -> tuple[int, set[int]]:
    """As a broker does that finds a bad record: later ones in the same segment stay, it writes over them. The log
    offset of the cut, and those of the messages that stay."""
    in_last = [offset for offset in log.offsets if offset // log.segment_size == log.end // log.segment_size]
    if len(in_last) < 3:
        return log.end, set()
    cut = chance.choice(in_last[1:])
    old = [offset for offset in log.offsets if offset >= cut]
    old_end = log.end
    log.offsets = [offset for offset in log.offsets if offset < cut]
    # What made the broker stop there.
    log.write_at(cut, bytes(8))
    log.end = cut
    for _ in range(chance.choice((1, 2, 5))):
        # Never just up to an old message: whole, it could not be distinguished from the next one.
        ends = {*old, old_end}
        for _ in range(20):
            make = _some_message(chance, number, longest, RESTART_MS)
            if log.end + len(make(log.end)) not in ends:
                break
        else:
            break
        if log.end + len(make(log.end)) > old_end - 100:
            break
        log.append(make)
        number += 1
    return cut, {offset for offset in old if offset >= log.end}


def _add_other_files(log: WrittenLog, chance: random.Random) -> None:
    """Segments made ahead, or a file that was cut short after its last message."""
    last = log.segment_at(log.end - 1 if log.end % log.segment_size == 0 and log.end else log.end)
    kind = chance.randrange(4)
    if kind == 0:
        ahead = log.directory / f"{int(last.name) + log.segment_size:020d}"
        if not ahead.exists():
            with ahead.open("xb") as file:
                file.truncate(log.segment_size)
    elif kind == 1 and log.end % log.segment_size and len(list(log.directory.iterdir())) > 1:
        with last.open("r+b") as file:
            file.truncate(min(log.segment_size, log.end % log.segment_size + chance.randrange(2000)))


def _damage(log: WrittenLog, chance: random.Random) -> tuple[int, int] | None:
    files = sorted(log.directory.iterdir())
    length = chance.choice((1, 1, 1, 2, 8, 40, 200, 1000))
    match chance.randrange(5):
        case 0:
            offset = chance.randrange(max(1, log.end))
        case 1:
            offset = chance.choice(log.offsets or [0]) + chance.randrange(60)
        case 2:
            offset = (log.offsets or [0])[-chance.randrange(1, 4) if len(log.offsets) > 3 else -1]
            offset += chance.randrange(90)
        case _:
            offset = log.end - _NEAR_END_BYTES + chance.randrange(_NEAR_END_BYTES + 500)
    path = log.segment_at(max(0, offset))
    if path not in files:
        return None
    at, size = max(0, offset) % log.segment_size, path.stat().st_size
    length = min(length, size - at)
    if length <= 0:
        return None
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(length)
        match chance.randrange(4):
            case 0:
                new = bytes(length)
            case 1:
                new = b"\xff" * length
            case 2:
                new = bytes(byte ^ (1 << chance.randrange(8)) for byte in old)
            case _:
                new = chance.randbytes(length)
        file.seek(at)
        file.write(new)
    return int(path.name) + at, length
