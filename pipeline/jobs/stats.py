"""Statistics of a log, by topic or by other keys. Workers count; the driver gets no rows of messages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from commitlogfs.pipeline.arrays.java_text import well_formed_text
from commitlogfs.pipeline.log.losses import missing_ranges, not_served, require_log, require_places, sort_missing
from commitlogfs.pipeline.log.scanner import Damage, DamageMode
from commitlogfs.pipeline.log.seek import survey
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, Split, plan_splits
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.group_keys import KEYS, GroupKey, Kind
from commitlogfs.pipeline.source.tally import Figures, Tally, Values, tally_splits
from commitlogfs.pipeline.source.worker_task import worker_task
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.progress import OnProgress
    from commitlogfs.pipeline.source.session import Spark

_BY_QUEUE: Final = (KEYS["topic"], KEYS["queueId"])
_TASKS_AT_MOST = 2_000
"""Number of tasks. Each sends a row for each group of its splits."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Statistics of one topic, or of the whole log."""

    messages: int
    stored_bytes: int
    """Size of the records as stored in the log."""
    body_bytes: int
    largest_bytes: int
    """Size of the largest record."""
    queues: int
    """Number of queues with messages; for the whole log, the sum over all topics."""
    first_ms: int
    """Store times, milliseconds since 1970."""
    last_ms: int

    @property
    def seconds(self) -> float:
        return (self.last_ms - self.first_ms) / 1000

    @property
    def messages_per_s(self) -> float | None:
        """Rate between the first and the last message; None without any time between them."""
        return self.messages / self.seconds if self.seconds > 0 else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.stored_bytes / self.seconds if self.seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "stored_bytes": self.stored_bytes,
            "body_bytes": self.body_bytes,
            "largest_bytes": self.largest_bytes,
            "queues": self.queues,
            "first_stored": time_text(self.first_ms),
            "last_stored": time_text(self.last_ms),
            "messages_per_second": _rounded(self.messages_per_s),
            "bytes_per_second": _rounded(self.bytes_per_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLog:
    """The range that was counted, and what is missing in it."""

    log: str
    segments: int
    start_offset: int
    end_offset: int
    """End of the log; messages written later are not counted."""
    damages: tuple[Damage, ...]
    """Skipped ranges; always empty with FAILFAST."""
    missing: tuple[tuple[int, int], ...]
    """Ranges of log offsets in gaps, or after a truncated last segment."""
    accepted: tuple[tuple[int, int], ...] = ()
    """Ranges in gaps that are accepted losses."""
    not_served: tuple[str, ...] = ()
    """One line for each disk and segment that a degraded mount leaves out."""

    def range_as_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "segments": self.segments,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "damages": [asdict(damage) for damage in self.damages],
            "missing": [{"start_offset": start, "end_offset": end} for start, end in self.missing],
            "accepted_losses": [{"start_offset": start, "end_offset": end} for start, end in self.accepted],
            "not_served": list(self.not_served),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats(CountedLog):
    total: TopicStats | None
    """None for a log without messages."""
    topics: dict[str, TopicStats]
    """Sorted by bytes, largest first."""

    def as_json(self) -> dict[str, Any]:
        """Stable schema (docs/pipeline.md)."""
        return {
            **self.range_as_json(),
            "total": None if self.total is None else self.total.as_json(),
            "topics": [{"topic": name, **topic.as_json()} for name, topic in self.topics.items()],
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of the messages with the same values of the keys."""

    values: tuple[str | int | None, ...]
    """Texts; numbers; of times the milliseconds since 1970 when the unit begins."""
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedStats(CountedLog):
    keys: tuple[GroupKey, ...]
    groups: tuple[Group, ...]
    """Sorted by their values."""

    def as_json(self) -> dict[str, Any]:
        """Stable schema (docs/pipeline.md)."""
        return {**self.range_as_json(), "groups": [self._group_as_json(group) for group in self.groups]}

    def _group_as_json(self, group: Group) -> dict[str, Any]:
        shown = {
            key.column: time_text(cast("int", value)) if key.kind is Kind.TIME else value
            for key, value in zip(self.keys, group.values, strict=True)
        }
        return {
            **shown,
            "messages": group.figures.messages,
            "stored_bytes": group.figures.stored_bytes,
            "body_bytes": group.figures.body_bytes,
            "largest_bytes": group.figures.largest_bytes,
            "first_stored": time_text(group.figures.first_ms),
            "last_stored": time_text(group.figures.last_ms),
        }


def stats(
    spark: "Spark",
    log: str,
    *,
    segment_size: int | None = None,
    mode: DamageMode = DamageMode.FAILFAST,
    split_size: int = DEFAULT_SPLIT_BYTES,
    on_progress: "OnProgress | None" = None,
    clock: Clock = SYSTEM_CLOCK,
) -> LogStats:
    """Count every record of the log, including system topics and transactions, by topic. `log`: as in
    `list_segments`. Raises LocationError, DamagedLogError, DataLossError (FAILFAST: a location without segments)
    and other PipelineErrors."""
    counted, tally = _counted(spark, log, _BY_QUEUE, segment_size, mode, split_size, on_progress, clock)
    total, topics = _summed(tally)
    return LogStats(**counted, total=total, topics=topics)


def grouped_stats(
    spark: "Spark",
    log: str,
    keys: Sequence[GroupKey],
    *,
    segment_size: int | None = None,
    mode: DamageMode = DamageMode.FAILFAST,
    split_size: int = DEFAULT_SPLIT_BYTES,
    on_progress: "OnProgress | None" = None,
    clock: Clock = SYSTEM_CLOCK,
) -> GroupedStats:
    """As `stats`, by these keys."""
    counted, tally = _counted(spark, log, keys, segment_size, mode, split_size, on_progress, clock)
    merged = Tally()
    for values, figures in tally.figures.items():
        shown = tuple(key.readable(value) for key, value in zip(keys, values, strict=True))
        merged.add(cast("Values", shown), figures)
    ordered = sorted(merged.figures.items(), key=lambda item: [(value is not None, value) for value in item[0]])
    groups = tuple(Group(cast("tuple[str | int | None, ...]", values), figures) for values, figures in ordered)
    return GroupedStats(**counted, keys=tuple(keys), groups=groups)


def _counted(
    spark: "Spark",
    log: str,
    keys: Sequence[GroupKey],
    segment_size: int | None,
    mode: DamageMode,
    split_size: int,
    on_progress: "OnProgress | None",
    clock: Clock,
) -> tuple[dict[str, Any], Tally]:
    """The arguments of CountedLog, and the figures."""
    from commitlogfs.pipeline.jobs.progress import show_progress
    from commitlogfs.pipeline.jobs.worker_errors import worker_errors

    listing, end = survey(log, segment_size, clock=clock)
    require_log(listing)
    require_places(listing, fail=mode is DamageMode.FAILFAST, tolerant="mode=PERMISSIVE")
    splits = plan_splits(listing, end, split_size=split_size)
    tally = Tally()
    if splits:
        tasks = min(len(splits), _TASKS_AT_MOST)
        numbers = spark.sparkContext.parallelize(range(len(splits)), tasks)
        count = partial(_count, splits=splits, mode=mode, keys=keys)
        with show_progress(spark, on_progress, clock=clock), worker_errors():
            for part in numbers.mapPartitions(count).collect():
                tally.merge(part)
    begin = listing.begin_offset
    missing = sort_missing(listing, missing_ranges(listing, begin, expected_end(listing, end)))
    counted = {
        "log": log,
        "segments": len({split.segment.base_offset for split in splits}),
        "start_offset": begin,
        "end_offset": end,
        "damages": tuple(sorted(tally.damages, key=lambda damage: damage.offset)),
        "missing": missing.lost,
        "accepted": missing.accepted,
        "not_served": not_served(listing),
    }
    return counted, tally


def time_text(milliseconds: int) -> str | None:
    """ISO 8601 in UTC; None for a time outside the calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return None


@worker_task
def _count(
    numbers: Iterable[int], *, splits: Sequence[Split], mode: DamageMode, keys: Sequence[GroupKey]
) -> Iterator[Tally]:
    yield tally_splits((splits[number] for number in numbers), mode, keys, None)


def _summed(tally: Tally) -> tuple[TopicStats | None, dict[str, TopicStats]]:
    queues: dict[str, set[int]] = {}
    figures: dict[str, Figures] = {}
    for values, of_queue in tally.figures.items():
        raw, queue = cast("tuple[bytes, int]", values)
        topic = well_formed_text(raw)
        queues.setdefault(topic, set()).add(queue)
        figures[topic] = figures[topic] | of_queue if topic in figures else of_queue
    topics = {topic: _as_stats(figures[topic], len(queues[topic])) for topic in figures}
    ordered = dict(sorted(topics.items(), key=lambda item: (-item[1].stored_bytes, item[0])))
    whole: Figures | None = None
    for of_topic in figures.values():
        whole = of_topic if whole is None else whole | of_topic
    return None if whole is None else _as_stats(whole, sum(map(len, queues.values()))), ordered


def _as_stats(figures: Figures, queues: int) -> TopicStats:
    return TopicStats(
        messages=figures.messages,
        stored_bytes=figures.stored_bytes,
        body_bytes=figures.body_bytes,
        largest_bytes=figures.largest_bytes,
        queues=queues,
        first_ms=figures.first_ms,
        last_ms=figures.last_ms,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
