"""Audit of a store: compares every record of the log with the entries of its consume queues and of its index.

    log     records follow one another, bodies and records match their CRCs, queue offsets have no jumps
    queues  each record has its entry at the right position, with offset, size and tags code; no entry is stray
    index   each key is there, no key is stray, and every chain leads to its entries

One pass over the log; the entries of a split are read from queues and index meanwhile. Nothing is changed.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from commitlogfs.console.formatting import count_of, moment
from commitlogfs.pipeline.broker.dispatch import LMQ_PREFIX, QueueKey
from commitlogfs.pipeline.broker.index_reader import IndexFile, IndexFileError, keys_between, list_index
from commitlogfs.pipeline.broker.lock import broker_pid
from commitlogfs.pipeline.broker.queue_reader import QueueReader
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs import audit_tasks as tasks
from commitlogfs.pipeline.jobs.audit_tasks import AuditPlan, QueueTally, SplitReport, UnseenError
from commitlogfs.pipeline.jobs.findings import Findings, Kind
from commitlogfs.pipeline.jobs.progress import OnProgress, show_progress
from commitlogfs.pipeline.jobs.worker_errors import worker_errors
from commitlogfs.pipeline.log.errors import SegmentGoneError
from commitlogfs.pipeline.log.losses import accepted_lines, missing_ranges, require_log, sort_missing
from commitlogfs.pipeline.log.segments import LogListing, SegmentFile, list_with_twins
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.truncation import crossing_record, expected_end
from commitlogfs.pipeline.log.unread_end import Unread, find_unread, require_messages
from commitlogfs.pipeline.source.session import Spark
from commitlogfs.store.broker_store import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, INDEX
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.segment import LARGEST_OFFSET

_TASKS_AT_MOST = 20_000


@dataclass(slots=True)
class AuditReport:
    """Result of an audit. `notes` are not findings; they explain numbers that may surprise."""

    log: str
    store_root: Path | None
    begin_offset: int
    end_offset: int
    segments: int
    seconds: float = 0.0
    ended_ms: int = 0
    """When the audit ended, milliseconds since 1970."""
    host: str = ""
    """The machine of the driver."""
    queues: int = 0
    queue_entries: int = 0
    """Entries that match their records."""
    queue_entries_behind: int = 0
    """Entries that a running broker has not written yet."""
    index_files: int = 0
    compared: tuple[str, ...] = ("log",)
    found: SplitReport = field(default_factory=SplitReport)
    notes: list[str] = field(default_factory=list)

    @property
    def findings(self) -> Findings:
        return self.found.findings

    @property
    def is_whole(self) -> bool:
        return not self.findings.total

    def to_json(self) -> dict[str, Any]:
        """The report as JSON. The schema is stable."""
        return {
            "log": self.log,
            "storeRoot": None if self.store_root is None else str(self.store_root),
            "compared": list(self.compared),
            "beginOffset": self.begin_offset,
            "endOffset": self.end_offset,
            "segments": self.segments,
            "records": self.found.records,
            "recordBytes": self.found.record_bytes,
            "queues": self.queues,
            "queueEntries": self.queue_entries,
            "queueEntriesBehind": self.queue_entries_behind,
            "keys": self.found.keys,
            "indexFiles": self.index_files,
            "seconds": round(self.seconds, 3),
            "endedMs": self.ended_ms,
            "host": self.host,
            "bytesByTopic": dict(self.found.topics.most_common()),
            "recordsByHour": dict(sorted(self.found.hours.items())),
            "whole": self.is_whole,
            "findings": self.findings.to_json(),
            "notes": self.notes,
        }


def audit(
    spark: Spark,
    log: str,
    *,
    store_root: Path | None = None,
    settings: BrokerSettings | None = None,
    known_topics: frozenset[str] | None = None,
    split_size: int = DEFAULT_SPLIT_BYTES,
    on_progress: OnProgress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AuditReport:
    """Audit the log at `log` (as in `list_segments`) and, with `store_root`, the queues and index of that store.

    `known_topics`: the existing topics; records of other topics may belong to a deleted topic and need no queue. A
    broker may be running: entries that it has not written yet are a note. Raises LocationError, IndexFileError,
    SegmentGoneError, UnseenError and other PipelineErrors.
    """
    started = clock.monotonic()
    settings = settings or BrokerSettings()
    root = None if store_root is None else store_root.absolute()  # workers have another working directory
    listing, twins = list_with_twins(log, settings.segment_size)
    require_log(listing)
    require_messages(listing, clock=clock)
    live = root is not None and broker_pid(root) is not None
    plan = AuditPlan(
        listing,
        find_end(listing, clock=clock),
        settings.rules,
        queues=root if not settings.queues_refused else None,
        index=_index_of(root, settings, live=live),
        live=live,
    )
    begin = listing.begin_offset
    report = AuditReport(log, store_root, begin, plan.end_offset, len(listing.segments))
    _add_listing_findings(listing, plan.end_offset, twins, report, clock)
    with show_progress(spark, on_progress, clock=clock), worker_errors():
        _Run(spark, plan, report, known_topics, settings.segment_size).run(split_size)
    _add_notes(report, plan, settings)
    report.seconds, report.ended_ms = clock.monotonic() - started, int(clock.wall() * 1000)
    report.host = os.uname().nodename
    return report


def _index_of(store_root: Path | None, settings: BrokerSettings, *, live: bool) -> tuple[IndexFile, ...] | None:
    """The index files; None if the index is not compared."""
    if store_root is None or settings.index_refused:
        return None
    try:
        directory = store_root / INDEX
        return tuple(list_index(directory, settings.index_slots, settings.index_capacity, growing=live))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise IndexFileError(f"{store_root}/index: cannot be read ({error.strerror})") from error


def _require_deleted(report: AuditReport, segment_size: int | None) -> None:
    """Checks that files which workers did not find are files that a broker deletes: the first segments, index
    files."""
    found, log = report.found, report.log
    if found.segments_gone:
        segments = list_with_twins(log, segment_size)[0].segments
        newest = max(found.segments_gone)
        if not segments or newest >= segments[0].base_offset:
            now = f"the log still begins at {segments[0].base_offset}" if segments else f"{log} holds no segments"
            raise SegmentGoneError(
                f"segment {newest:020d}: does not exist for a worker, but the broker has not deleted it ({now}); "
                "check that all disks are mounted and that every worker can read the log"
            )
    for path in sorted(found.index_gone):
        if path.exists():
            raise UnseenError.of(path)


def _add_listing_findings(
    listing: LogListing,
    end_offset: int,
    twins: Sequence[tuple[SegmentFile, SegmentFile]],
    report: AuditReport,
    clock: Clock,
) -> None:
    findings, notes = report.findings, report.notes
    gaps = sort_missing(listing, listing.gaps)
    for end, begin in gaps.lost:
        findings.add(Kind.GAP, end, f"{end:020d}", f"{begin - end:,} bytes, up to log offset {begin}")
    notes.extend(accepted_lines(gaps.accepted))
    missing = missing_ranges(listing, end_offset, expected_end(listing, end_offset))
    for start, stop in missing:
        findings.add(Kind.CUT_SHORT, start, f"{start:020d}", f"its last {stop - start:,} bytes are not there")
    crossing = None if missing else crossing_record(listing, end_offset)
    if crossing is not None:
        findings.add(Kind.CUT_SHORT, end_offset, f"{end_offset:020d}", crossing)
    for unread in find_unread(listing, end_offset, clock=clock) if crossing is None else ():
        if unread.kind is Unread.MESSAGE:
            findings.add(Kind.UNREAD_END, unread.offset, unread.segment, str(unread))
        else:
            notes.append(str(unread))
    for place in listing.empty_places:
        findings.add(Kind.EMPTY_PLACE, -1, place, "holds no segment, although the other locations do")
    for left_out in listing.not_served:
        findings.add(Kind.NOT_SERVED, -1, left_out.place, left_out.fact)
    for one, other in twins:
        findings.add(Kind.DUPLICATE_SEGMENT, one.base_offset, one.name, f"{one.uri} (read) and {other.uri}")


class _Run:
    def __init__(
        self,
        spark: Spark,
        plan: AuditPlan,
        report: AuditReport,
        known_topics: frozenset[str] | None,
        segment_size: int | None,
    ) -> None:
        self._context, self._plan, self._report = spark.sparkContext, plan, report
        self._known_topics, self._segment_size = known_topics, segment_size

    def run(self, split_size: int) -> None:
        tallies = self._audit_log(split_size)
        _require_deleted(self._report, self._segment_size)
        self._report.queues = len(tallies)
        for queue, tally in sorted(tallies.items()):
            self._check_queue(queue, tally)
        if self._plan.queues is not None:
            self._audit_queues(tallies)
        if self._plan.index:
            self._find_keys_behind_the_end(self._plan.index)
            self._report.index_files = len(self._plan.index)
            of_files = self._context.parallelize(self._plan.index, len(self._plan.index))
            for findings in of_files.mapPartitions(
                partial(tasks.audit_index_files, live=self._plan.live)
            ).collect():
                self._report.findings.merge(findings)

    def _audit_log(self, split_size: int) -> dict[QueueKey, QueueTally]:
        splits = plan_splits(self._plan.listing, self._plan.end_offset, split_size=split_size)
        if not splits:
            return {}
        numbers = self._context.parallelize(range(len(splits)), min(len(splits), _TASKS_AT_MOST))
        audited = numbers.mapPartitions(partial(tasks.audit_splits, splits=splits, plan=self._plan))
        # One total for the report, one for each queue: merged in the workers, so that the driver gets each once.
        pairs = audited.map(lambda item: (None, item) if isinstance(item, SplitReport) else item)
        added: list[tuple[Any, Any]] = pairs.reduceByKey(_merged, self._context.defaultParallelism).collect()
        for queue, report in added:
            if queue is None:
                self._report.found.merge(report)
        return {queue: tally for queue, tally in added if queue is not None}

    def _check_queue(self, queue: QueueKey, tally: QueueTally) -> None:
        report, name = self._report, tasks.queue_name(queue)
        older, runs = tally.split_by_fall()
        for one, following in pairwise(runs):
            skipped = following.first - one.after
            if skipped:
                detail = f"after queue offset {one.after - 1} comes {following.first}: {skipped:,} are missing"
                report.findings.add(Kind.QUEUE_JUMP, following.offset, name, detail)
        if older:
            report.notes.append(
                f"queue {name} begins again at queue offset {runs[0].first}, log offset {runs[0].offset}: its "
                "topic was deleted and made again, or the broker truncated its log; earlier records have no "
                "entries any more"
            )
        if self._plan.queues is None:
            return
        directory = tasks.queue_directory(self._plan.queues, queue)
        if not QueueReader(directory, batch=queue.batch).exists:
            records = sum(run.records for run in runs)
            if self._known_topics is not None and not self._is_known(queue.topic):
                report.notes.append(
                    f"topic {queue.topic} is not in topics.json, and queue {name} has no files: it is deleted"
                )
            elif not self._plan.live:
                report.findings.add(Kind.QUEUE_MISSING, runs[0].offset, name, f"{records:,} records")
            return
        for run in runs:
            if not run.compared and not self._plan.live:
                raise UnseenError.of(directory)
            # A running broker may have made the files only now. `_audit_queues` checks whether workers see them.
            behind = run.behind if run.compared else run.records
            report.findings.merge(run.findings)
            report.queue_entries += run.records - run.unlike - behind
            report.queue_entries_behind += behind
        self._note_other_delays(queue, sum((run.other_delays for run in runs), Counter()))

    def _note_other_delays(self, queue: QueueKey, delays: Counter[int]) -> None:
        if not delays:
            return
        levels = self._plan.rules.delays_ms
        level = queue.queue_id + 1
        delay_s = levels[min(level, len(levels)) - 1] // 1000
        due = " and ".join(
            f"{count_of(count, 'message')} {'is' if count == 1 else 'are'} due {delay // 1000:,} s"
            for delay, count in delays.most_common()
        )
        self._report.notes.append(
            f"delay level {level}: {due} after they were stored, not {delay_s:,} s: messageDelayLevel was changed "
            "after their entries were made"
        )

    def _is_known(self, topic: str) -> bool:
        # A light queue (LMQ) is created by its first message and is in no list of topics.
        return topic.startswith(LMQ_PREFIX) or topic in (self._known_topics or ())

    def _audit_queues(self, tallies: dict[QueueKey, QueueTally]) -> None:
        root = self._plan.queues or Path()
        named = sorted({*tallies, *self._queues_on_disk()})
        queues = [q for q in named if QueueReader(tasks.queue_directory(root, q), batch=q.batch).exists]
        if not queues:
            return
        task_count = min(len(queues), 4 * self._context.defaultParallelism)
        work = partial(tasks.audit_queues, plan=self._plan, tallies=tallies)
        for findings in self._context.parallelize(queues, task_count).mapPartitions(work).collect():
            self._report.findings.merge(findings)

    def _find_keys_behind_the_end(self, index: Sequence[IndexFile]) -> None:
        if self._plan.live:
            return
        end = self._plan.end_offset
        for file in index:
            _, offsets = keys_between(file, end, LARGEST_OFFSET)
            if len(offsets):
                detail = f"keys with log offsets after the log's end, {end}"
                self._report.findings.add(
                    Kind.INDEX_ENTRY_STRAY, int(offsets[0]), file.path.name, detail, count=len(offsets)
                )

    def _queues_on_disk(self) -> Iterator[QueueKey]:
        for directory, batch in ((CONSUME_QUEUE, False), (BATCH_CONSUME_QUEUE, True)):
            for path in (self._plan.queues or Path()).glob(f"{directory}/*/*"):
                if path.name.isdecimal():
                    yield QueueKey(path.parent.name, int(path.name), batch)


def _merged(one: Any, other: Any) -> Any:
    """The sum of two reports, or of two tallies of one queue."""
    return one.merge(other)


def _add_notes(report: AuditReport, plan: AuditPlan, settings: BrokerSettings) -> None:
    if plan.queues is not None:
        report.compared += ("queues",)
    elif settings.queues_refused:
        report.notes.append(f"the consume queues were not compared: {settings.queues_refused}")
    if plan.index is not None:
        report.compared += ("index",)
    elif settings.index_refused:
        report.notes.append(f"the index was not compared: {settings.index_refused}")
    if plan.live:
        report.notes.append("a broker has the store open: entries that it has not written yet are not findings")
    _note_falls(report)
    if report.found.keys_behind:
        report.notes.append(f"{report.found.keys_behind:,} keys are not in the index yet")
    if report.queue_entries_behind:
        report.notes.append(f"{report.queue_entries_behind:,} records are not in their queues yet")
    if report.found.splits_gone:
        report.notes.append(
            f"{report.found.splits_gone:,} parts were deleted by the broker before they were compared"
        )


def _note_falls(report: AuditReport) -> None:
    times = report.found.store_times
    times.join()
    if times.count:
        where = ", ".join(
            f"log offset {fall.offset} (from {moment(fall.before_ms)} to {moment(fall.stored_ms)})"
            for fall in times.first
        )
        more = ", ..." if times.count > len(times.first) else ""
        report.notes.append(
            f"store times fall at {count_of(times.count, 'place')}, {where}{more}: a clock was set back, a store "
            "time is damaged, or older messages follow there that remain from before the broker cut off the end of "
            "its log, which it reads, too"
        )
