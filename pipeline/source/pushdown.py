"""The bounds that a query's own conditions set on log offsets and store times. Spark applies the conditions
again."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from commitlogfs.pipeline.source.selection import Bounds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds from all of `filters` together; conditions that set no bound are ignored."""
    return reduce(Bounds.and_also, map(_bounds, filters), Bounds())


def _bounds(condition: Filter) -> Bounds:
    match condition:
        case EqualTo(("topic",), str(value)):
            return Bounds(topics=frozenset({value.encode()}))
        case In(("topic",), values) if all(isinstance(value, str) for value in values):
            return Bounds(topics=frozenset(value.encode() for value in values))
        case EqualTo(("queueId",), value) if _is_whole(value):
            return Bounds(queue_ids=frozenset({value}))
        case In(("queueId",), values) if all(map(_is_whole, values)):
            return Bounds(queue_ids=frozenset(values))
        case (
            EqualTo(("commitLogOffset",), value)
            | GreaterThan(("commitLogOffset",), value)
            | GreaterThanOrEqual(("commitLogOffset",), value)
            | LessThan(("commitLogOffset",), value)
            | LessThanOrEqual(("commitLogOffset",), value)
        ) if _is_whole(value):
            start, end = _range(condition, value, value + 1)
            return Bounds(start_offset=start, end_offset=end)
        case (
            EqualTo(("storeTimestamp",), datetime() as value)
            | GreaterThan(("storeTimestamp",), datetime() as value)
            | GreaterThanOrEqual(("storeTimestamp",), datetime() as value)
            | LessThan(("storeTimestamp",), datetime() as value)
            | LessThanOrEqual(("storeTimestamp",), datetime() as value)
        ) if value.tzinfo is not None:
            microseconds = (value - _EPOCH) // _MICROSECOND
            # Store times are whole milliseconds: the first one at or after `value`, and the first one after it.
            start, end = _range(condition, -(-microseconds // 1000), microseconds // 1000 + 1)
            return Bounds(start_ms=start, end_ms=end)
    return Bounds()


def _range(condition: Filter, at_or_after: int, after: int) -> tuple[int | None, int | None]:
    """[start, end) for a comparison with a value; None for an open side."""
    match condition:
        case GreaterThan():
            return after, None
        case GreaterThanOrEqual():
            return at_or_after, None
        case LessThan():
            return None, at_or_after
        case LessThanOrEqual():
            return None, after
    return at_or_after, after


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
