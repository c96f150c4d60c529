"""Selects the records that become rows, from their header fields, before any column is gathered."""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.fields import RecordFields
from commitlogfs.pipeline.arrays.groups import group_spans
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS, SYSTEM_PREFIX, SYSTEM_TOPICS
from commitlogfs.pipeline.source.options import ReadOptions

_MOST_VERDICTS: Final = 100_000
_LONGEST: Final = 255
_TRANSACTION_BITS: Final = 0b1100
_PREPARED, _ROLLBACK = 0b0100, 0b1100

Selection = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that a query's own conditions set; None: no bound. Ranges exclude their end."""

    topics: frozenset[bytes] | None = None
    queue_ids: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None

    def and_also(self, other: "Bounds") -> "Bounds":
        """The bounds of both together."""
        topics = other.topics if self.topics is None else self.topics
        if self.topics is not None and other.topics is not None:
            topics = self.topics & other.topics
        return Bounds(
            topics=topics,
            queue_ids=_common(self.queue_ids, other.queue_ids),
            start_ms=_highest(self.start_ms, other.start_ms),
            end_ms=_lowest(self.end_ms, other.end_ms),
            start_offset=_highest(self.start_offset, other.start_offset),
            end_offset=_lowest(self.end_offset, other.end_offset),
        )


@dataclass(slots=True)
class RecordFilter:
    """The filter for all rows of a query. Picklable."""

    topics: frozenset[bytes] | None = None
    """Topics named by the query. They are selected even if they are system topics."""
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    start_ms: int | None = None
    """Store times in [start_ms, end_ms)."""
    end_ms: int | None = None
    include_system_topics: bool = False
    include_half_messages: bool = False
    only_topics: frozenset[bytes] | None = None
    """Restricts the topics. Unlike `topics`, it does not select a system topic."""
    _verdicts: dict[bytes, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    _uncertain: Selection | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        topics = options.topics
        return cls(
            topics=None if topics is None else frozenset(topic.encode() for topic in topics),
            topic_pattern=options.topic_pattern,
            queue_ids=options.queue_ids,
            start_ms=options.start_ms,
            end_ms=options.end_ms,
            include_system_topics=options.include_system_topics,
            include_half_messages=options.include_half_messages,
        )

    def narrowed(self, bounds: "Bounds") -> Self:
        """This filter, restricted by `bounds`."""
        return replace(
            self,
            only_topics=bounds.topics,
            queue_ids=_common(self.queue_ids, bounds.queue_ids),
            start_ms=_highest(self.start_ms, bounds.start_ms),
            end_ms=_lowest(self.end_ms, bounds.end_ms),
        )

    def select(self, data: Bytes, fields: RecordFields) -> Longs | None:
        """The selected rows, ascending; None for all rows."""
        selected = np.ones(len(fields.total_size), np.bool_)
        if self.start_ms is not None:
            selected &= fields.store_ms >= self.start_ms
        if self.end_ms is not None:
            selected &= fields.store_ms < self.end_ms
        if self.queue_ids is not None:
            selected &= np.isin(fields.queue_id, np.fromiter(self.queue_ids, np.int64))
        if not self.include_half_messages:
            state = fields.sys_flag & _TRANSACTION_BITS
            selected &= (state != _PREPARED) & (state != _ROLLBACK)
        if not self._takes_every_topic:
            selected &= self._has_selected_topic(data, fields)
        return None if selected.all() else np.flatnonzero(selected)

    @property
    def _takes_every_topic(self) -> bool:
        chosen = (self.topics, self.topic_pattern, self.only_topics) != (None, None, None)
        return not chosen and self.include_system_topics and self.include_half_messages

    def _has_selected_topic(self, data: Bytes, fields: RecordFields) -> Selection:
        """Whether each record's topic is selected. A few topics have most records, so each distinct one is checked
        once, and a table by first byte and length shows most records to need no check."""
        starts, lengths = fields.topic_start, fields.topic_length
        if self.topic_pattern is not None:
            return self._checked(data, starts, lengths)
        if self._uncertain is None:
            self._uncertain = _prefilter(self._topics_to_check(), b"" if self._is_by_name else SYSTEM_PREFIX)
        uncertain = np.flatnonzero(self._uncertain[data[starts], np.minimum(lengths, _LONGEST)])
        selected = np.full(len(starts), not self._is_by_name)
        if len(uncertain):
            selected[uncertain] = self._checked(data, starts[uncertain], lengths[uncertain])
        return selected

    @property
    def _is_by_name(self) -> bool:
        return self.topics is not None or self.only_topics is not None

    def _topics_to_check(self) -> frozenset[bytes]:
        """The topics that need a check: the only selected ones if topics are chosen by name, else the excluded
        ones."""
        if self.topics is not None:
            return self.topics
        return HALF_TOPICS | SYSTEM_TOPICS if self.only_topics is None else self.only_topics

    def _checked(self, data: Bytes, starts: Longs, lengths: Longs) -> Selection:
        groups, firsts = group_spans(data, starts, lengths)
        spans = zip(starts[firsts].tolist(), lengths[firsts].tolist(), strict=True)
        verdicts = [self.selects_topic(data[start : start + length].tobytes()) for start, length in spans]
        return np.array(verdicts, np.bool_)[groups]

    def selects_topic(self, topic: bytes) -> bool:
        """Whether messages of this topic may be selected."""
        verdict = self._verdicts.get(topic)
        if verdict is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[topic] = self._evaluate(topic)
        return verdict

    def _evaluate(self, topic: bytes) -> bool:
        for topics in (self.topics, self.only_topics):
            if topics is not None and topic not in topics:
                return False
        if self.topic_pattern is not None:
            if re.fullmatch(self.topic_pattern, topic.decode(errors="replace")) is None:
                return False
        elif self.topics is not None:
            return True
        if topic in HALF_TOPICS:
            return self.include_half_messages
        return self.include_system_topics or not (topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX))


def _prefilter(names: frozenset[bytes], prefix: bytes) -> Selection:
    """By a topic's first byte and length: whether it may be one of `names`, or begin with `prefix`."""
    table = np.zeros((256, _LONGEST + 1), np.bool_)
    for name in names:
        if name:
            table[name[0], min(len(name), _LONGEST)] = True
        else:
            table[:, 0] = True
    if prefix:
        table[prefix[0], len(prefix) :] = True
    return table


def _common(one: frozenset[int] | None, other: frozenset[int] | None) -> frozenset[int] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _highest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _lowest(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
