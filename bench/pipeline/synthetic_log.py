"""Writes a log like a broker's with any number of messages in seconds: the same bytes for the same arguments.

Sixty-four templates (topics, queues, bodies, tags) alternate; in each copy only the parts that differ between
messages are set: offsets, times, the producer's unique key and one key. Bodies match their CRCs, so that
a broker recovers from it.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitlogfs.store.record_layout import (
    BORN_TIMESTAMP_AT,
    END_BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
)

TOPICS, QUEUES = 8, 8
BODY_BYTES = 200
FIRST_STORED_MS = 1_750_000_000_000
_MESSAGES_PER_MS = 50
_UNIQUE_DIGITS, _KEY_DIGITS = 16, 10
_AT_ONCE = 1 << 14

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SyntheticLog:
    directory: Path
    segment_size: int
    messages: int
    bytes: int

    @property
    def topics(self) -> dict[str, int]:
        """Number of messages by topic."""
        rounds, rest = divmod(self.messages, TOPICS * QUEUES)
        extra = [max(0, min(QUEUES, rest - topic * QUEUES)) for topic in range(TOPICS)]
        return {_topic(topic).decode(): rounds * QUEUES + extra[topic] for topic in range(TOPICS)}


def write_log(directory: Path, messages: int, segment_size: int, tell: Callable[[str], None]) -> SyntheticLog:
    """Messages in segments of `segment_size`, the last of them unfinished."""
    directory.mkdir(parents=True)
    block = _Block()
    done = offset = 0
    while done < messages:
        per_segment = (segment_size - END_BLANK_BYTES) // block.size * len(block.starts)
        count = min(per_segment, messages - done)
        path = directory / f"{offset:020d}"
        with path.open("wb") as file:
            for start in range(0, count, _AT_ONCE * len(block.starts)):
                part = min(_AT_ONCE * len(block.starts), count - start)
                file.write(block.render(done + start, part, offset + start // len(block.starts) * block.size).data)
            written = file.tell()
            if count == per_segment:
                file.write(struct.pack(">II", segment_size - written, MAGIC_BLANK))
            file.truncate(segment_size)
        done += count
        tell(f"{done:,} of {messages:,} messages written")
        end = offset + written
        offset += segment_size
    return SyntheticLog(directory, segment_size, messages, end)


class _Block:
    """One copy of every template."""

    def __init__(self) -> None:
        records = [_template(topic, queue) for topic in range(TOPICS) for queue in range(QUEUES)]
        self.starts = np.cumsum([0, *(len(record) for record in records[:-1])])
        self.bytes: Bytes = np.frombuffer(b"".join(records), np.uint8)
        self.size = len(self.bytes)
        self._unique_at = [record.index(b"UNIQ_KEY\x01") + 9 + 16 for record in records]
        self._key_at = [record.index(b"KEYS\x01k") + 6 for record in records]
        self._ends = self.starts + np.array([len(record) for record in records])

    def render(self, first: int, count: int, offset: int) -> Bytes:
        """Messages `first` (a multiple of the block's) to `first + count`, of which the first lies at `offset`."""
        blocks = -(-count // len(self.starts))
        out = np.tile(self.bytes, (blocks, 1))
        number = np.arange(blocks)
        for index, start in enumerate(self.starts.tolist()):
            sequence = first + number * len(self.starts) + index
            stored = FIRST_STORED_MS + sequence // _MESSAGES_PER_MS
            for at, value in (
                (QUEUE_OFFSET_AT, first // len(self.starts) + number),
                (PHYSICAL_OFFSET_AT, offset + number * self.size + start),
                (BORN_TIMESTAMP_AT, stored - 1),
                (STORE_TIMESTAMP_AT, stored),
            ):
                out[:, start + at : start + at + 8] = value.astype(">i8")[:, None].view(np.uint8)
            _write_digits(out, start + self._unique_at[index], sequence, _UNIQUE_DIGITS)
            _write_digits(out, start + self._key_at[index], sequence, _KEY_DIGITS)
        rest = count - (blocks - 1) * len(self.starts)
        return out.reshape(-1)[: (blocks - 1) * self.size + int(self._ends[rest - 1])]


def _write_digits(out: Bytes, at: int, values: npt.NDArray[np.int64], digits: int) -> None:
    places = 10 ** np.arange(digits - 1, -1, -1, dtype=np.int64)
    out[:, at : at + digits] = values[:, None] // places % 10 + ord("0")


def _topic(number: int) -> bytes:
    return b"Bench-%02d" % number


def _template(topic: int, queue: int) -> bytes:
    body = bytes((topic * 31 + queue * 7 + index) % 251 for index in range(BODY_BYTES))
    properties = (
        b"KEYS\x01k%s\x02UNIQ_KEY\x01%s%s\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01Tag%d\x02"
    ) % (b"0" * _KEY_DIGITS, b"7F00000100002A14", b"0" * _UNIQUE_DIGITS, (topic + queue) % 5)
    host = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
    record = struct.pack(">IIiiqqiq", MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, queue, 0, 0, 0, 0, 0)
    record += host + struct.pack(">q", 0) + host + struct.pack(">iqi", 0, 0, len(body)) + body
    record += (
        struct.pack(">b", len(_topic(topic))) + _topic(topic) + struct.pack(">h", len(properties)) + properties
    )
    return struct.pack(">i", len(record) + 4) + record
