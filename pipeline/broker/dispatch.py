"""The entries of consume queues and index for the records of the log: the broker's dispatch, on arrays.

Follows CommitLog#checkMessageAndReturnSize and its dispatchers (DefaultMessageStore#doDispatch):

- A record enters its queue unless it is the first half of a transaction or its roll-back.
- Its tags code in the queue is Java's hash of TAGS; for a delayed message it is the time at which the message is
  due.
- A record of a topic with queue.type=BatchCQ enters a queue of inner batches by INNER_BASE and INNER_NUM; without
  both properties it is a batch of one at its queue offset.
- With enableMultiDispatch it also enters each queue that INNER_MULTI_DISPATCH names; which topics are exempt
  depends on the version (MultiDispatch).
- Its index keys are `topic#UNIQ_KEY`, `topic#k` for each word of KEYS and, from RocketMQ 5.4 on, `topic#T#TAGS`;
  the roll-back of a transaction has none.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.fields import RecordFields, record_fields
from commitlogfs.pipeline.arrays.groups import group_spans
from commitlogfs.pipeline.arrays.java_text import java_hashes, well_formed_text
from commitlogfs.pipeline.broker import dispatch_properties as props
from commitlogfs.pipeline.log.errors import PipelineError

DEFAULT_DELAYS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""messageDelayLevel, level 1 first."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LMQ_PREFIX = "%LMQ%"

_TRANSACTION, _PREPARED, _ROLLBACK = 0b1100, 4, 12
_INNER_BATCH = 1 << 7
_NAME_BYTES = 255
"""Maximum length of a directory name."""
_BLANK = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029"
    "\u205f\u3000"
)
"""Character#isWhitespace, which excludes non-breaking spaces."""


class UndispatchableRecordError(PipelineError):
    """A record that the broker cannot dispatch, or whose topic cannot be the name of a directory."""

    reason: str = ""

    @classmethod
    def at(cls, offset: int, reason: str) -> Self:
        """The error for the record at this log offset."""
        error = cls(f"log offset {offset}: {reason}")
        error.reason = reason
        return error


@dataclass(frozen=True, slots=True)
class MultiDispatch:
    """Which records a broker with enableMultiDispatch enters in other queues as well. Defaults: 5.2 and later."""

    exempt_prefixes: tuple[str, ...] = ("%RETRY%", "rmq_sys_")
    """Records of topics with these prefixes enter their own queue only."""
    exempt_topics: frozenset[str] = frozenset({SCHEDULE_TOPIC})
    skips_slashes: bool = True
    """Whether names with a slash are skipped; otherwise the broker makes nested directories that it cannot load."""

    def spreads(self, topic: str) -> bool:
        return topic not in self.exempt_topics and not topic.startswith(self.exempt_prefixes)


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """Dispatch settings from the broker's version and configuration. Picklable."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    index_tags: bool = True
    """RocketMQ 5.4 and later."""
    inner_batches: bool = True
    """RocketMQ 5.0 and later: records may be batches."""
    batch_topics: frozenset[str] | None = None
    """Topics with queues of inner batches; None: unknown."""
    multi_dispatch: MultiDispatch | None = None
    """None if enableMultiDispatch is off."""
    lmq: bool = False
    topics: frozenset[str] | None = None
    """Topics that get queues; None: all."""
    topic_starts: Mapping[str, int] = field(default_factory=dict)
    """Topic -> log offset: records before it belong to a deleted topic with the same name."""


class QueueKey(NamedTuple):
    topic: str
    queue_id: int
    batch: bool
    """Whether it is a queue of inner batches."""


class Entries(NamedTuple):
    """Entries for consume queues, in the order of the log."""

    queues: Longs
    """Number of the entry's queue (index into Dispatcher.queue_keys)."""
    queue_offsets: Longs
    """Queue offset; in a queue of batches, that of the first message in the batch."""
    offsets: Longs
    """Log offset."""
    sizes: Longs
    tags_codes: Longs
    times_ms: Longs
    counts: Longs
    """Messages in the batch; 0 if the message is not a batch."""


class Keys(NamedTuple):
    """Keys for the index, in the order of the log."""

    hashes: Ints
    offsets: Longs
    times_ms: Longs


class Dispatched(NamedTuple):
    """Entries and keys of a chunk's records, and the last of these records, even if it has neither."""

    entries: Entries
    keys: Keys
    last_offset: int
    last_ms: int


class _Queue(NamedTuple):
    number: int
    """Number of the queue; -1 if its records enter no queue."""
    start: int
    delayed: bool
    batch: bool
    spreads: bool
    """Whether its records may also enter other queues."""
    key_prefix: int
    """Hash of `topic#`."""
    tag_prefix: int
    """Hash of `topic#T#`."""


class Dispatcher:
    """Dispatches chunk after chunk, and numbers the queues that occur.

    `queues`: whether the entries will be written to files of consume queues, so that each queue's type must be
    known.
    """

    def __init__(self, rules: DispatchRules, *, queues: bool = True) -> None:
        self._rules = rules
        self._types_missing = queues and rules.batch_topics is None
        self._types_guessed = not queues and rules.batch_topics is None
        self._delays = np.array([0, *rules.delays_ms], np.int64)
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._numbers: dict[QueueKey, int] = {}

    @property
    def queue_keys(self) -> list[QueueKey]:
        """The queues by number."""
        return list(self._numbers)

    def dispatch(self, data: Bytes, positions: Longs) -> Dispatched:
        """`positions`: where in `data` the records begin, at least one; the lengths of all are checked.

        Raises UndispatchableRecordError.
        """
        records = record_fields(data, positions)
        found = props.find_dispatch_properties(data, records.properties_start, records.properties_length)
        groups, queues = self._group(data, records)
        transaction = records.sys_flag & _TRANSACTION
        entries = self._entries(data, records, found, groups, queues, (transaction & _PREPARED) == 0)
        keys = self._keys(data, records, found, groups, queues, transaction != _ROLLBACK)
        return Dispatched(entries, keys, int(records.physical_offset[-1]), int(records.store_ms[-1]))

    def dispatch_around(self, data: Bytes, positions: Longs) -> "Iterator[Dispatched | tuple[int, str]]":
        """As `dispatch`, in the order of the log. A record that cannot be dispatched is found by bisection and
        yielded as (position, reason)."""
        try:
            yield self.dispatch(data, positions)
        except UndispatchableRecordError as error:
            if len(positions) == 1:
                yield int(positions[0]), error.reason
                return
            half = len(positions) // 2
            yield from self.dispatch_around(data, positions[:half])
            yield from self.dispatch_around(data, positions[half:])

    # --- queues -----------------------------------------------------------------------------------------

    def _group(self, data: Bytes, records: RecordFields) -> tuple[Longs, list[_Queue]]:
        """The group of each record, and the groups' queues."""
        starts, lengths = records.topic_start, records.topic_length
        groups, firsts = group_spans(data, starts, lengths, records.queue_id)
        queues = []
        for row in firsts:
            topic = data[starts[row] : starts[row] + lengths[row]].tobytes()
            place = (topic, int(records.queue_id[row]))
            if place not in self._queues:
                self._queues[place] = self._meet(topic, place[1], int(records.physical_offset[row]))
            queues.append(self._queues[place])
        return groups, queues

    def _meet(self, raw_topic: bytes, queue_id: int, offset: int) -> _Queue:
        topic = well_formed_text(raw_topic)
        batch = topic in (self._rules.batch_topics or ())
        gets_entries = self._rules.topics is None or topic in self._rules.topics
        prefix = _hash(raw_topic + b"#")
        return _Queue(
            number=self._number(QueueKey(topic, queue_id, batch), offset) if gets_entries else -1,
            start=self._rules.topic_starts.get(topic, 0),
            delayed=topic == SCHEDULE_TOPIC,
            batch=batch,
            spreads=not batch
            and self._rules.multi_dispatch is not None
            and self._rules.multi_dispatch.spreads(topic),
            key_prefix=prefix,
            tag_prefix=_hash(b"T#", prefix),
        )

    def _number(self, key: QueueKey, offset: int) -> int:
        topic = key.topic
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic or len(topic.encode()) > _NAME_BYTES:
            raise UndispatchableRecordError.at(
                offset,
                f"topic {key.topic!r} cannot be the name of a directory; mode=PERMISSIVE skips its records",
            )
        return self._numbers.setdefault(key, len(self._numbers))

    # --- consume queues ---------------------------------------------------------------------------------

    def _entries(
        self,
        data: Bytes,
        records: RecordFields,
        found: props.Spans,
        groups: Longs,
        queues: list[_Queue],
        enters: Bools,
    ) -> Entries:
        numbers = np.array([queue.number for queue in queues], np.int64)[groups]
        starts = np.array([queue.start for queue in queues], np.int64)[groups]
        enters &= (numbers >= 0) & (records.physical_offset >= starts)
        tags = _hashes_where_present(data, found, props.TAGS)
        if any(queue.delayed for queue in queues):
            self._set_due_times(data, records, found, _flag(queues, groups, "delayed"), tags)
        queue_offsets, counts = records.queue_offset, np.zeros(len(groups), np.int64)
        if self._rules.inner_batches:
            batch = _flag(queues, groups, "batch")
            queue_offsets, counts = self._batches(data, records, found, batch)
            enters &= ~batch | ((queue_offsets >= 0) & (counts >= 0))
        entries = Entries(
            numbers, queue_offsets, records.physical_offset, records.total_size, tags, records.store_ms, counts
        )
        chosen = Entries(*(column[enters] for column in entries))
        if any(queue.spreads for queue in queues):
            rows = np.flatnonzero(
                enters & _flag(queues, groups, "spreads") & (found.length[props.MULTI_DISPATCH] >= 0)
            )
            return self._spread(data, records, found, entries, chosen, np.flatnonzero(enters), rows)
        return chosen

    def _set_due_times(
        self, data: Bytes, records: RecordFields, found: props.Spans, delayed: Bools, tags: Longs
    ) -> None:
        rows = np.flatnonzero(delayed & (found.length[props.DELAY] >= 0))
        levels = _numbers_in(data, records, found, props.DELAY, rows, "DELAY", bits=32)
        levels = np.minimum(levels, len(self._delays) - 1)
        rows, levels = rows[levels > 0], levels[levels > 0]
        tags[rows] = records.store_ms[rows] + self._delays[levels]

    def _batches(self, data: Bytes, records: RecordFields, found: props.Spans, batch: Bools) -> tuple[Longs, Longs]:
        """Queue offset of each record and, for queues of batches, the number of messages in it.

        If no files are written, the types of queues may be unknown; then a record that claims to be a batch counts
        as one.
        """
        if self._types_missing:
            self._require_no_batch(data, records)
        is_batch = (found.length[props.INNER_BASE] >= 0) & (found.length[props.INNER_NUM] >= 0)
        rows = np.flatnonzero(is_batch)
        # A broker parses both numbers of every record, whatever the topic.
        bases = _numbers_in(data, records, found, props.INNER_BASE, rows, "INNER_BASE", bits=64)
        sizes = _numbers_in(data, records, found, props.INNER_NUM, rows, "INNER_NUM", bits=16)
        counts = batch.astype(np.int64)
        of_batch = batch[rows] | self._types_guessed
        if not of_batch.any():
            return records.queue_offset, counts
        queue_offsets = records.queue_offset.copy()
        queue_offsets[rows[of_batch]], counts[rows[of_batch]] = bases[of_batch], sizes[of_batch]
        return queue_offsets, counts

    def _require_no_batch(self, data: Bytes, records: RecordFields) -> None:
        """Raises UndispatchableRecordError at a record that only a queue of batches can hold."""
        rows = np.flatnonzero(records.sys_flag & _INNER_BATCH)
        if not len(rows):
            return
        row = rows[0]
        start = records.topic_start[row]
        topic = well_formed_text(data[start : start + records.topic_length[row]].tobytes())
        raise UndispatchableRecordError.at(
            int(records.physical_offset[row]),
            f"topic {topic} has a batch here, but without config/topics.json it is unknown which topics have "
            "batch queues; name the broker's store root",
        )

    def _spread(
        self,
        data: Bytes,
        records: RecordFields,
        found: props.Spans,
        entries: Entries,
        chosen: Entries,
        chosen_rows: Longs,
        rows: Longs,
    ) -> Entries:
        """`chosen` and, after each of `rows`, its entries for other queues."""
        more: list[tuple[int, int, int]] = []
        for row in rows:
            offset = int(records.physical_offset[row])
            names = found.text(data, props.MULTI_DISPATCH, row)
            queue_offsets = found.text(data, props.MULTI_OFFSETS, row)
            for name, queue_offset in self._pairs(names, queue_offsets, offset):
                queue_id = int(records.queue_id[row])
                if self._rules.lmq and name.startswith(LMQ_PREFIX):
                    queue_id = 0
                more.append((row, self._number(QueueKey(name, queue_id, False), offset), queue_offset))
        if not more:
            return chosen
        extra = np.array(more, np.int64)
        added = Entries(*(column[extra[:, 0]] for column in entries))._replace(
            queues=extra[:, 1], queue_offsets=extra[:, 2]
        )
        order = np.argsort(np.concatenate((chosen_rows, extra[:, 0])), kind="stable")
        return Entries(*(np.concatenate(pair)[order] for pair in zip(chosen, added, strict=True)))

    def _pairs(self, names: str, queue_offsets: str, offset: int) -> Iterator[tuple[str, int]]:
        """Names and offsets of two comma lists, by the rules of ConsumeQueue#multiDispatchLmqQueue."""
        if not names.strip(_BLANK) or not queue_offsets.strip(_BLANK):
            return
        name_list, offset_list = _java_split(names), _java_split(queue_offsets)
        if len(name_list) != len(offset_list):
            return
        skips_slashes = self._rules.multi_dispatch is not None and self._rules.multi_dispatch.skips_slashes
        for name, queue_offset in zip(name_list, offset_list, strict=True):
            if skips_slashes and "/" in name:
                continue
            value = _java_long(queue_offset)
            if value is None:
                raise UndispatchableRecordError.at(
                    offset,
                    f"property INNER_MULTI_QUEUE_OFFSET is {queue_offsets!r}, which is not a list of numbers: a "
                    "broker's dispatch stops here, too; mode=PERMISSIVE skips the record",
                )
            if name in (self._rules.batch_topics or ()):
                raise UndispatchableRecordError.at(
                    offset,
                    f"property INNER_MULTI_DISPATCH names topic {name}, which has batch queues: a broker's "
                    "dispatch stops here, too; mode=PERMISSIVE skips the record",
                )
            yield name, value

    # --- index ------------------------------------------------------------------------------------------

    def _keys(
        self,
        data: Bytes,
        records: RecordFields,
        found: props.Spans,
        groups: Longs,
        queues: list[_Queue],
        enters: Bools,
    ) -> Keys:
        key_prefixes = np.array([queue.key_prefix for queue in queues], np.int32)
        tag_prefixes = np.array([queue.tag_prefix for queue in queues], np.int32)
        texts = props.key_texts(
            data, found, enters, groups, key_prefixes, tag_prefixes, with_tags=self._rules.index_tags
        )
        hashes = java_hashes(data, texts.starts, texts.lengths, texts.prefixes)
        return Keys(hashes, records.physical_offset[texts.rows], records.store_ms[texts.rows])


def _flag(queues: list[_Queue], groups: Longs, name: str) -> Bools:
    flags: Bools = np.array([getattr(queue, name) for queue in queues], np.bool_)[groups]
    return flags


def _hash(text: bytes, prefix: int = 0) -> int:
    data = np.frombuffer(text, np.uint8)
    return int(java_hashes(data, np.zeros(1, np.int64), np.array([len(text)]), np.array([prefix], np.int32))[0])


def _hashes_where_present(data: Bytes, found: props.Spans, name: int) -> Longs:
    """Hashes of the texts; 0 where a text is absent."""
    return java_hashes(data, found.start[name], found.length[name]).astype(np.int64)


def _numbers_in(
    data: Bytes, records: RecordFields, found: props.Spans, name: int, rows: Longs, shown: str, *, bits: int
) -> Longs:
    """The numbers in a property of these rows. `bits`: size of the number in the broker."""
    values, valid = props.parse_longs(data, found.start[name][rows], found.length[name][rows])
    valid &= (values >= -(1 << bits - 1)) & (values <= (1 << bits - 1) - 1)
    if not valid.all():
        row = rows[np.flatnonzero(~valid)[0]]
        raise UndispatchableRecordError.at(
            int(records.physical_offset[row]),
            f"property {shown} is {found.text(data, name, row)!r}, which is not a number: a broker's dispatch "
            "stops here, too; mode=PERMISSIVE skips the record",
        )
    return values


def _java_split(text: str) -> list[str]:
    """The parts of a comma list, without empty parts at the end, as String#split."""
    text = text.rstrip(",")
    return text.split(",") if text else []


def _java_long(text: str) -> int | None:
    """The number that Long#parseLong returns; None if it raises."""
    found = re.fullmatch(r"([+-]?)0*([0-9]{0,19})", text)
    if found is None or not text[-1:].isdigit():
        return None
    value = int(f"{found[1]}{found[2] or 0}")
    return value if -(1 << 63) <= value < 1 << 63 else None
