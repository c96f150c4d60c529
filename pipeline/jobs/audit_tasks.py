"""Tasks of Spark workers in an audit: compare each split of the log with the consume queues and the index, each
queue with the records found in the log, and each index file in itself. Nothing is written."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.arrays.array_types import Bools, Bytes, Longs
from commitlogfs.pipeline.arrays.fields import RecordFields, record_fields
from commitlogfs.pipeline.arrays.groups import group_spans
from commitlogfs.pipeline.arrays.record_crcs import wrong_body_crcs, wrong_property_crcs
from commitlogfs.pipeline.broker.dispatch import (
    SCHEDULE_TOPIC,
    Dispatched,
    Dispatcher,
    DispatchRules,
    Entries,
    Keys,
    QueueKey,
)
from commitlogfs.pipeline.broker.index_reader import IndexFile, broken_chains, first_descent, keys_between
from commitlogfs.pipeline.broker.queue_entry import BATCH_REST
from commitlogfs.pipeline.broker.queue_reader import QueueEntries, QueueReader
from commitlogfs.pipeline.jobs.findings import Findings, Kind
from commitlogfs.pipeline.log.errors import PipelineError, SegmentGoneError
from commitlogfs.pipeline.log.lookup import LogLookup
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.segments import LogListing
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.worker_task import worker_task
from commitlogfs.store.broker_store import BATCH_CONSUME_QUEUE, CONSUME_QUEUE

_HELD_AT_MOST = 1_000_000
_WIDEST_JUMP = 1 << 16
"""Queue offsets with a larger distance are read separately."""
_BEYOND_ALL = 2**63 - 1
_FALLS_SHOWN = 3
_HOUR_MS = 3_600_000
_LONGEST_DELAY_MS = 1000 * 24 * _HOUR_MS


class UnseenError(PipelineError):
    """A directory that the driver sees and a worker does not."""

    @classmethod
    def of(cls, directory: Path) -> Self:
        """The error for this directory."""
        return cls(f"{directory}: is not visible to every worker; run the audit where all workers see the store")


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """Input of every task. Picklable."""

    listing: LogListing
    end_offset: int
    rules: DispatchRules
    queues: Path | None
    """Root of the store whose consume queues are compared; None if they are not compared."""
    index: tuple[IndexFile, ...] | None
    live: bool
    """Whether a broker has the store open: entries that it has not written yet are not findings."""


class QueueRun(NamedTuple):
    """Records of one queue, in the order of the log, with consecutive queue offsets."""

    offset: int
    """Log offset of the first record."""
    first: int
    after: int
    """The queue offset after the last record."""
    records: int
    unlike: int
    """Records whose entries are missing or differ."""
    behind: int
    """Records whose entries a running broker has not written yet."""
    compared: bool
    """Whether the records were compared with the queue's files; if not, the worker saw no files."""
    findings: Findings
    other_delays: Counter[int]
    """Delay in milliseconds -> number of delayed messages whose entries have it, and not that of their level."""


class QueueTally(NamedTuple):
    """All runs of one queue in the log."""

    runs: tuple[QueueRun, ...]

    def merge(self, other: "QueueTally") -> "QueueTally":
        return QueueTally(self.runs + other.runs)

    def split_by_fall(self) -> tuple[list[QueueRun], list[QueueRun]]:
        """The runs in the order of the log, before and after the last fall of the queue offsets.

        Queue offsets fall where a topic was deleted and made again, or where a broker truncated its log: the queue
        then has the newer records at the positions of the older ones.
        """
        runs = sorted(self.runs, key=lambda run: run.offset)
        start = 0
        for index in range(1, len(runs)):
            # A return from a single wrong number to the expected one is not a fall.
            one, other, run = runs[max(0, index - 2)], runs[index - 1], runs[index]
            is_back = index > 1 and one.after < other.first and one.after <= run.first
            if run.first < other.after and not is_back:
                start = index
        return runs[:start], runs[start:]


class Fall(NamedTuple):
    """A message that was stored before the one before it."""

    offset: int
    """Log offset of this message."""
    before_ms: int
    stored_ms: int


class StoreTimesEdge(NamedTuple):
    """The first and the last store time of one split."""

    offset: int
    """Log offset of the first record."""
    first_ms: int
    last_ms: int


@dataclass(slots=True)
class StoreTimes:
    """Where the store times of the log fall. Can be merged in any order; `join` adds the falls between splits."""

    count: int = 0
    first: list[Fall] = field(default_factory=list)
    """The first falls of the log."""
    edges: list[StoreTimesEdge] = field(default_factory=list)

    def add(self, falls: Sequence[Fall], count: int) -> None:
        """Add `count` falls, of which `falls` are the first ones."""
        self.count += count
        self.first = sorted([*self.first, *falls])[:_FALLS_SHOWN]

    def merge(self, other: "StoreTimes") -> None:
        self.add(other.first, other.count)
        self.edges += other.edges

    def join(self) -> None:
        """Add the falls between two splits, once all splits are merged."""
        edges, self.edges = sorted(self.edges), []
        falls = [
            Fall(after.offset, before.last_ms, after.first_ms)
            for before, after in pairwise(edges)
            if after.first_ms < before.last_ms
        ]
        self.add(falls, len(falls))


@dataclass(slots=True)
class SplitReport:
    """Findings and figures of one split."""

    records: int = 0
    record_bytes: int = 0
    keys: int = 0
    keys_behind: int = 0
    splits_gone: int = 0
    """Parts that were listed but no longer exist: a running broker deletes segments."""
    segments_gone: set[int] = field(default_factory=set)
    """Base offsets of the segments that no longer existed."""
    index_gone: set[Path] = field(default_factory=set)
    topics: Counter[str] = field(default_factory=Counter)
    """Topic -> bytes of its records."""
    hours: Counter[int] = field(default_factory=Counter)
    """Hours since 1970 of the store time -> number of records."""
    store_times: StoreTimes = field(default_factory=StoreTimes)
    findings: Findings = field(default_factory=Findings)

    def merge(self, other: "SplitReport") -> "SplitReport":
        self.records += other.records
        self.record_bytes += other.record_bytes
        self.keys += other.keys
        self.keys_behind += other.keys_behind
        self.splits_gone += other.splits_gone
        self.segments_gone |= other.segments_gone
        self.index_gone |= other.index_gone
        self.topics.update(other.topics)
        self.hours.update(other.hours)
        self.store_times.merge(other.store_times)
        self.findings.merge(other.findings)
        return self


Audited = SplitReport | tuple[QueueKey, QueueTally]


def queue_directory(root: Path, queue: QueueKey) -> Path:
    return root / (BATCH_CONSUME_QUEUE if queue.batch else CONSUME_QUEUE) / queue.topic / str(queue.queue_id)


def queue_name(queue: QueueKey) -> str:
    return f"{queue.topic}/{queue.queue_id}"


def _topic_of(data: Bytes, fields: RecordFields, row: int) -> str:
    start = fields.topic_start[row]
    return data[start : start + fields.topic_length[row]].tobytes().decode(errors="replace")


def _queue_of(data: Bytes, fields: RecordFields, row: int) -> str:
    """As the record names it; it may be what is damaged."""
    return f"queue {_topic_of(data, fields, row)}/{fields.queue_id[row]}"


# --- the log ---------------------------------------------------------------------------------------------


@worker_task
def audit_splits(numbers: Iterable[int], *, splits: Sequence[Split], plan: AuditPlan) -> Iterator[Audited]:
    """One report for each split, and one tally for each split and queue."""
    for number in numbers:
        audit = _SplitAudit(splits[number], plan)
        audit.run()
        yield audit.report
        yield from audit.tallies.items()


class _SplitAudit:
    def __init__(self, split: Split, plan: AuditPlan) -> None:
        self._split, self._plan = split, plan
        self._dispatcher = Dispatcher(plan.rules, queues=plan.queues is not None)
        self._entries: list[Entries] = []
        self._keys: list[Keys] = []
        self._held = 0
        self._edge: StoreTimesEdge | None = None
        self.report = SplitReport()
        self.tallies: dict[QueueKey, QueueTally] = {}

    def run(self) -> None:
        try:
            self._read()
        except SegmentGoneError:
            if not self._plan.live:
                raise
            self.report.splits_gone += 1
            self.report.segments_gone.add(self._split.segment.base_offset)
            return
        if self._edge is not None:
            self.report.store_times.edges.append(self._edge)
        self._compare_queues()
        if self._plan.index is not None:
            self._compare_index(self._plan.index)

    def _read(self) -> None:
        for part in scan_split(self._split, DamageMode.PERMISSIVE):
            if isinstance(part, Damage):
                detail = f"{part.length:,} bytes: {part.reason}"
                self.report.findings.add(Kind.DAMAGE, part.offset, part.segment, detail)
            else:
                self._check(part)
                if self._held >= _HELD_AT_MOST:
                    self._compare_queues()

    def _check(self, chunk: Chunk) -> None:
        data, positions, report = chunk.data, chunk.positions, self.report
        fields = record_fields(data, positions)
        report.records += len(positions)
        report.record_bytes += int(fields.total_size.sum())
        groups, firsts = group_spans(data, fields.topic_start, fields.topic_length)
        for row, size in zip(firsts, np.bincount(groups, fields.total_size), strict=True):
            report.topics[_topic_of(data, fields, row)] += int(size)
        for hour, count in zip(*np.unique(fields.store_ms // _HOUR_MS, return_counts=True), strict=True):
            report.hours[int(hour)] += int(count)
        self._check_store_times(fields)

        for row in wrong_body_crcs(data, fields):
            detail = f"a body of {fields.body_length[row]:,} bytes, {_queue_of(data, fields, row)}"
            report.findings.add(Kind.BODY_CRC, int(fields.physical_offset[row]), chunk.segment.name, detail)
        for row in wrong_property_crcs(data, positions, fields):
            detail = f"a record of {fields.total_size[row]:,} bytes, {_queue_of(data, fields, row)}"
            report.findings.add(Kind.PROPERTY_CRC, int(fields.physical_offset[row]), chunk.segment.name, detail)

        for dispatched in self._dispatcher.dispatch_around(data, positions):
            if not isinstance(dispatched, Dispatched):
                at, reason = dispatched
                report.findings.add(Kind.DAMAGE, chunk.offset + at, chunk.segment.name, reason)
                continue
            self._entries.append(dispatched.entries)
            self._held += len(dispatched.entries.queues)
            if self._plan.index is not None:
                self._keys.append(dispatched.keys)
                self._held += len(dispatched.keys.hashes)
            report.keys += len(dispatched.keys.hashes)

    def _check_store_times(self, fields: RecordFields) -> None:
        times, edge = fields.store_ms, self._edge
        first = int(times[0])
        if edge is None:
            edge = StoreTimesEdge(int(fields.physical_offset[0]), first, first)
        before = np.concatenate(([edge.last_ms], times[:-1]))
        rows = np.flatnonzero(times < before)
        falls = [
            Fall(int(fields.physical_offset[row]), int(before[row]), int(times[row])) for row in rows[:_FALLS_SHOWN]
        ]
        self.report.store_times.add(falls, len(rows))
        self._edge = edge._replace(last_ms=int(times[-1]))

    # --- consume queues ---------------------------------------------------------------------------------

    def _compare_queues(self) -> None:
        if not self._entries:
            return
        entries = Entries(*(np.concatenate(column) for column in zip(*self._entries, strict=True)))
        self._entries, self._held = [], 0
        order = np.argsort(entries.queues, kind="stable")
        entries = Entries(*(column[order] for column in entries))
        cuts = np.flatnonzero(np.diff(entries.queues)) + 1
        keys = self._dispatcher.queue_keys
        for rows in np.split(np.arange(len(order)), cuts):
            if len(rows):
                queue = keys[int(entries.queues[rows[0]])]
                self._compare_queue(queue, Entries(*(column[rows] for column in entries)))

    def _compare_queue(self, queue: QueueKey, entries: Entries) -> None:
        live = end = None
        if self._plan.queues is not None:
            reader = QueueReader(queue_directory(self._plan.queues, queue), batch=queue.batch)
            if reader.exists:
                live = (
                    reader.find_batches(entries.offsets)
                    if queue.batch
                    else _read_places(reader, entries.queue_offsets)
                )
                end = reader.end() if self._plan.live else None
        # A broker counts an empty batch as one message.
        after = entries.queue_offsets + np.maximum(entries.counts, 1)
        cuts = np.flatnonzero(entries.queue_offsets[1:] != after[:-1]) + 1
        delays = _other_delays(queue, entries, live, self._plan.rules.delays_ms)
        runs = []
        for rows in np.split(np.arange(len(after)), cuts):
            findings, behind, unlike = Findings(), 0, 0
            if live is not None:
                unlike, behind = _compare_entries(queue, entries, live, rows[delays[rows] == 0], end, findings)
            first = int(rows[0])
            runs.append(
                QueueRun(
                    int(entries.offsets[first]),
                    int(entries.queue_offsets[first]),
                    int(after[rows[-1]]),
                    len(rows),
                    unlike,
                    behind,
                    live is not None,
                    findings,
                    Counter(delays[rows][delays[rows] > 0].tolist()),
                )
            )
        before = self.tallies.get(queue, QueueTally(()))
        self.tallies[queue] = before.merge(QueueTally(tuple(runs)))

    # --- index ------------------------------------------------------------------------------------------

    def _compare_index(self, index: Sequence[IndexFile]) -> None:
        found_keys = self._keys_of(index)
        if found_keys is None:
            return
        expected_keys = [_pair(keys.hashes, keys.offsets, self._split.start_offset) for keys in self._keys]
        expected, found = (
            np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
            for parts in (expected_keys, found_keys)
        )
        reached = max((file.end_offset for file in index if file.entries), default=-1)
        missing = np.setdiff1d(expected, found, assume_unique=True)
        for file in index:
            if file.problem:
                offsets = self._split.start_offset + (missing >> 31)
                missing = missing[(offsets < file.begin_offset) | (offsets > file.end_offset)]
        for offset, code in self._unpaired(missing):
            if self._plan.live and offset > reached:
                self.report.keys_behind += 1
            else:
                self._add_key_finding(Kind.INDEX_ENTRY_MISSING, offset, code)
        for offset, code in self._unpaired(np.setdiff1d(found, expected, assume_unique=True)):
            self._add_key_finding(Kind.INDEX_ENTRY_STRAY, offset, code)

    def _keys_of(self, index: Sequence[IndexFile]) -> list[Longs] | None:
        """Keys of this split in the index files; None if a running broker has removed one of the files."""
        start, stop = self._split.start_offset, self._split.stop_offset
        found = []
        for file in index:
            if file.entries and file.begin_offset < stop and file.end_offset >= start:
                try:
                    found.append(_pair(*keys_between(file, start, stop), start))
                except FileNotFoundError:
                    if not self._plan.live:
                        raise
                    self.report.splits_gone += 1
                    self.report.index_gone.add(file.path)
                    return None
        return found

    def _unpaired(self, pairs: Longs) -> Iterator[tuple[int, int]]:
        """Log offset and hash of each number that `_pair` has made."""
        for pair in pairs.tolist():
            yield self._split.start_offset + (pair >> 31), pair & 0x7FFFFFFF

    def _add_key_finding(self, kind: Kind, offset: int, code: int) -> None:
        self.report.findings.add(kind, offset, self._split.segment.name, f"a key with hash {code}")


def _other_delays(queue: QueueKey, entries: Entries, live: QueueEntries | None, delays_ms: Sequence[int]) -> Longs:
    """For each of the records, the delay in milliseconds that its entry in `live` has, if this is not the delay of
    the record's level; 0 for all others.

    The broker computes when a message is due as it makes the entry, so messageDelayLevel may have been different.
    It gives whole seconds, which a damaged entry hardly ever has.
    """
    if live is None or queue.topic != SCHEDULE_TOPIC or queue.batch:
        return np.zeros(len(entries.offsets), np.int64)
    found, expected = live.tags_codes - entries.times_ms, entries.tags_codes - entries.times_ms
    other = (found != expected) & (found > 0) & (found <= _LONGEST_DELAY_MS) & (found % 1000 == 0)
    other &= np.isin(expected, delays_ms)
    other &= (live.offsets == entries.offsets) & (live.sizes == entries.sizes)
    return np.where(other, found, 0)


def _compare_entries(
    queue: QueueKey, entries: Entries, live: QueueEntries, rows: Longs, end: int | None, findings: Findings
) -> tuple[int, int]:
    """Number of `rows` whose entries are missing or differ, and number of those that a running broker will still
    write: it has written this queue up to queue offset `end`."""
    same = (live.offsets[rows] == entries.offsets[rows]) & (live.sizes[rows] == entries.sizes[rows])
    same &= live.tags_codes[rows] == entries.tags_codes[rows]
    if queue.batch:
        rest = np.full(len(entries.counts), BATCH_REST)
        expected = (entries.times_ms, entries.queue_offsets, entries.counts, rest)
        for column, values in zip(live.batch, expected, strict=True):
            same &= column[rows] == values[rows]
    used, behind = live.used, 0
    unlike = rows[~same]
    for row in unlike.tolist():
        offset, place = int(entries.offsets[row]), int(entries.queue_offsets[row])
        if used[row]:
            says = [live.offsets[row], live.sizes[row], live.tags_codes[row], *live.batch[:, row]]
            wants = [offset, entries.sizes[row], entries.tags_codes[row]]
            names = "log offset, size and tags code"
            if queue.batch:
                wants += [entries.times_ms[row], place, entries.counts[row], BATCH_REST]
                names = "log offset, size, tags code, store time, queue offset, count and rest"
            detail = f"queue offset {place} has {_listed(says)} for {names}, instead of {_listed(wants)}"
            findings.add(Kind.QUEUE_ENTRY_WRONG, offset, queue_name(queue), detail)
        elif end is not None and place >= end:
            behind += 1
        else:
            findings.add(Kind.QUEUE_ENTRY_MISSING, offset, queue_name(queue), f"queue offset {place}")
    return len(unlike) - behind, behind


def _listed(values: Sequence[int]) -> str:
    return f"({', '.join(str(value) for value in values)})"


def _read_places(reader: QueueReader, places: Longs) -> QueueEntries:
    """The entries at these queue offsets, in the given order."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    table = np.zeros((3, len(places)), np.int64)
    for rows in np.split(np.arange(len(ordered)), np.flatnonzero(np.diff(ordered) > _WIDEST_JUMP) + 1):
        rows = rows[ordered[rows] >= 0]  # a queue has no position below 0
        if len(rows):
            first = int(ordered[rows[0]])
            entries = reader.read(first, int(ordered[rows[-1]]) - first + 1)
            for column, values in zip(table, entries[1:4], strict=True):
                column[order[rows]] = values[ordered[rows] - first]
    return QueueEntries(0, table[0], table[1], table[2], table[3:])


def _pair(hashes: npt.NDArray[np.int32], offsets: Longs, start: int) -> Longs:
    """Offset and hash, as stored in the index, in one number that sorts by the offset."""
    codes = np.abs(hashes.astype(np.int64))
    codes[codes > 0x7FFFFFFF] = 0  # -2**31, for which Java's Math.abs returns a negative number
    pairs: Longs = ((offsets - start) << 31) | codes
    return pairs


# --- queues and index files ------------------------------------------------------------------------------


@worker_task
def audit_queues(
    queues: Iterable[QueueKey], *, plan: AuditPlan, tallies: Mapping[QueueKey, QueueTally]
) -> Iterator[Findings]:
    """Findings for entries without a record in the log. `queues`: queues with files; `tallies`: of all queues with
    records in the log. Raises UnseenError."""
    for queue in queues:
        findings = Findings()
        _audit_queue(queue, plan, tallies.get(queue, QueueTally(())), findings)
        yield findings


def _audit_queue(queue: QueueKey, plan: AuditPlan, tally: QueueTally, findings: Findings) -> None:
    if plan.queues is None:
        return
    directory = queue_directory(plan.queues, queue)
    reader = QueueReader(directory, batch=queue.batch)
    if not reader.exists:
        raise UnseenError.of(directory)
    begin, end = plan.listing.begin_offset, plan.end_offset
    pointing = beyond = 0
    for part in reader.scan():
        pointing += int(_points_between(part, begin, end).sum())
        beyond += int(_points_between(part, end, _BEYOND_ALL).sum())
    if beyond and not plan.live:
        findings.add(
            *(Kind.QUEUE_ENTRY_STRAY, end, queue_name(queue), f"entries with offsets after the log's end, {end}"),
            count=beyond,
        )
    _, runs = tally.split_by_fall()
    # All other entries were found from their records. A wrong entry may point anywhere.
    found = sum(run.records - run.behind for run in runs)
    missing = sum(run.findings.counts[Kind.QUEUE_ENTRY_MISSING] for run in runs)
    stray = pointing - (found - missing)
    if stray <= 0 or (plan.live and stray <= sum(run.behind for run in runs)):
        return
    try:
        _find_stray(queue, plan, reader, stray, findings)
    except SegmentGoneError:
        # The count above includes records of segments that the broker has deleted since.
        if not plan.live:
            raise


def _find_stray(queue: QueueKey, plan: AuditPlan, reader: QueueReader, stray: int, findings: Findings) -> None:
    """Adds a finding for `stray` entries, with the position of the first one."""
    begin, end = plan.listing.begin_offset, plan.end_offset
    with LogLookup(plan.listing) as lookup:
        for part in reader.scan():
            for row in np.flatnonzero(_points_between(part, begin, end)).tolist():
                found = lookup.record_at(int(part.offsets[row]))
                place = part.first + row
                if (
                    found is None
                    or found.total_size != part.sizes[row]
                    or (not queue.batch and found.queue_offset != place)
                ):
                    findings.add(
                        *(Kind.QUEUE_ENTRY_STRAY, int(part.offsets[row]), queue_name(queue)),
                        f"queue offset {place}, {part.sizes[row]} bytes",
                        count=stray,
                    )
                    return
    findings.add(Kind.QUEUE_ENTRY_STRAY, -1, queue_name(queue), "entries without a record", count=stray)


def _points_between(part: QueueEntries, begin: int, end: int) -> Bools:
    points: Bools = part.used & (part.offsets >= begin) & (part.offsets < end)
    return points


@worker_task
def audit_index_files(files: Iterable[IndexFile], *, live: bool) -> Iterator[Findings]:
    for file in files:
        findings = Findings()
        if file.problem:
            findings.add(Kind.INDEX_BROKEN, -1, file.path.name, file.problem)
        falls = first_descent(file)
        if falls is not None:
            detail = f"the log offset of entry {falls} is below that of the entry before it"
            findings.add(Kind.INDEX_BROKEN, -1, file.path.name, detail)
        broken = broken_chains(file, growing=live)
        if broken:
            findings.add(Kind.INDEX_BROKEN, -1, file.path.name, f"{broken:,} entries and slots have wrong links")
        yield findings
