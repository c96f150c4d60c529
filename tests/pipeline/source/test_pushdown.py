"""Conditions of a query as bounds: what they cannot narrow surely, they leave alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from commitlogfs.pipeline.source.pushdown import bounds_of
from commitlogfs.pipeline.source.selection import Bounds

TIME = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
HALF_A_MS = timedelta(microseconds=500)


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (EqualTo(("topic",), "A"), Bounds(topics=frozenset({b"A"}))),
        (In(("topic",), ("A", "é")), Bounds(topics=frozenset({b"A", "é".encode()}))),
        (EqualTo(("queueId",), 3), Bounds(queue_ids=frozenset({3}))),
        (In(("queueId",), (1, 2)), Bounds(queue_ids=frozenset({1, 2}))),
        (EqualTo(("commitLogOffset",), 5), Bounds(start_offset=5, end_offset=6)),
        (GreaterThan(("commitLogOffset",), 5), Bounds(start_offset=6)),
        (GreaterThanOrEqual(("commitLogOffset",), 5), Bounds(start_offset=5)),
        (LessThan(("commitLogOffset",), 5), Bounds(end_offset=5)),
        (LessThanOrEqual(("commitLogOffset",), 5), Bounds(end_offset=6)),
        (EqualTo(("storeTimestamp",), TIME), Bounds(start_ms=10_000, end_ms=10_001)),
        (EqualTo(("storeTimestamp",), TIME + HALF_A_MS), Bounds(start_ms=10_001, end_ms=10_001)),
        (GreaterThan(("storeTimestamp",), TIME), Bounds(start_ms=10_001)),
        (GreaterThan(("storeTimestamp",), TIME + HALF_A_MS), Bounds(start_ms=10_001)),
        (GreaterThanOrEqual(("storeTimestamp",), TIME), Bounds(start_ms=10_000)),
        (GreaterThanOrEqual(("storeTimestamp",), TIME + HALF_A_MS), Bounds(start_ms=10_001)),
        (LessThan(("storeTimestamp",), TIME), Bounds(end_ms=10_000)),
        (LessThan(("storeTimestamp",), TIME + HALF_A_MS), Bounds(end_ms=10_001)),
        (LessThanOrEqual(("storeTimestamp",), TIME), Bounds(end_ms=10_001)),
        (LessThanOrEqual(("storeTimestamp",), TIME - HALF_A_MS), Bounds(end_ms=10_000)),
    ],
)
def test_a_condition(condition: Filter, bounds: Bounds) -> None:
    assert bounds_of([condition]) == bounds


@pytest.mark.parametrize(
    "condition",
    [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "A")),
        StringStartsWith(("topic",), "A"),
        EqualTo(("tags",), "A"),
        EqualTo(("properties", "topic"), "A"),
        EqualTo(("queueId",), 1.5),
        EqualTo(("commitLogOffset",), True),
        In(("queueId",), (1, None)),
        GreaterThan(("storeTimestamp",), TIME.replace(tzinfo=None)),
        GreaterThan(("bornTimestamp",), TIME),
    ],
)
def test_what_says_nothing_of_use(condition: Filter) -> None:
    assert bounds_of([condition]) == Bounds()


def test_all_of_them_hold() -> None:
    conditions: list[Any] = [EqualTo(("topic",), "A"), GreaterThan(("commitLogOffset",), 5), IsNotNull(("topic",))]
    conditions += [LessThan(("commitLogOffset",), 50), LessThan(("commitLogOffset",), 40)]
    assert bounds_of(conditions) == Bounds(topics=frozenset({b"A"}), start_offset=6, end_offset=40)
