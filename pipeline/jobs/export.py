"""Exports the log as Parquet files by topic and date: incremental, resumable, each message once.

    count      read the headers of a range of the log: which files it makes, and their sizes
    pack       decode every split once, and pack its rows by file
    write      shuffle the packed rows to one writer per file
    commit     rename the files of the range into place; its manifest then says that the range is finished

Manifests in the output record the finished ranges (`export_directory`): the same call again exports only what is
new in the log, and after a kill continues after the last finished range.

Rows do not pass through the JVM as rows: packed Arrow batches are shuffled, and workers write the files with
pyarrow. Measured with 200,000 messages of 570 bytes, all columns, zstd and snappy, 43 files, six interleaved pairs
on a busy machine: 1.4 to 4.6 times as fast (median 2.5) as the same source through
`df.repartition("topic", "date").write.partitionBy("topic", "date").parquet`.
"""

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from commitlogfs.pipeline.arrays.java_text import well_formed_text
from commitlogfs.pipeline.jobs import export_tasks as tasks
from commitlogfs.pipeline.jobs.export_directory import (
    FORMAT,
    ExportDirectory,
    ExportInterruptedError,
    ExportRefusedError,
    FinishedFile,
    FinishedRange,
    partition_directory,
)
from commitlogfs.pipeline.jobs.export_tasks import FilePlan, FileWritten, Layout, Partition, Reading
from commitlogfs.pipeline.log.errors import LocationError, OptionError, PipelineError
from commitlogfs.pipeline.log.identity import Fingerprint, fingerprints_of_range, first_difference, is_same
from commitlogfs.pipeline.log.losses import (
    DataLossError,
    Missing,
    missing_ranges,
    not_served,
    require_beginning,
    require_complete,
    require_log,
    require_places,
    sort_missing,
)
from commitlogfs.pipeline.log.scanner import Damage, DamageMode
from commitlogfs.pipeline.log.seek import first_place, narrow_by_time, survey
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, Split, plan_splits
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.source.columns import COLUMNS, Projection
from commitlogfs.pipeline.source.group_keys import KEYS
from commitlogfs.pipeline.source.options import Edge, ReadOptions, parse_options
from commitlogfs.pipeline.source.selection import RecordFilter
from commitlogfs.pipeline.source.tally import Tally, tally_splits
from commitlogfs.pipeline.source.worker_task import worker_task
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.gaps import uncovered

if TYPE_CHECKING:
    from commitlogfs.pipeline.jobs.progress import OnProgress
    from commitlogfs.pipeline.source.session import Spark

DEFAULT_FILE_BYTES: Final = 512 << 20
DEFAULT_RANGE_BYTES: Final = 8 << 30
_SPLITS_PER_CORE: Final = 4
"""Minimum number of splits for each core in one range."""
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
_COUNTING: Final = 0.2
"""Share of a range's time that counting takes, for the progress display."""

_TOPIC_AND_DAY: Final = (KEYS["topic"], KEYS["day(storeTimestamp)"])

_REMEDY: Final = "export into another output, or with --replace, which removes them"
_REMEDY_OF_TABLES: Final = "export into another output and another table"

Range = tuple[int, int]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Input and options of an export."""

    log: str
    output: str
    """A directory that all workers share, or a URI that pyarrow.fs understands."""
    columns: tuple[str, ...] = tuple(COLUMNS.names)
    partition_by: tuple[str, ...] = tasks.PARTITION_COLUMNS
    """`topic` and `date` (UTC day of the store time), or a part of these: the levels of directories."""
    compression: str = "zstd"
    range_size: int | None = None
    """Size of a range that is committed at once, in bytes of log; 8 GiB by default, more for many cores."""
    file_size: int = DEFAULT_FILE_BYTES
    """Target size of a file, in bytes of log (upper bound): a larger partition of a range gets several files."""
    replace: bool = False
    """Whether finished ranges are exported again; the new files replace the old ones. Ranges of another log, or of
    an end that was cut off since, are removed."""
    whole_files: bool = False
    """Whether the files have the columns of `partition_by`, too."""


@dataclass(frozen=True, slots=True)
class KeptRange:
    """A finished range that was not replaced, because the new export of it would have less rows."""

    start: int
    end: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"start_offset": self.start, "end_offset": self.end, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The ranges to export, planned without Spark."""

    request: ExportRequest
    options: ReadOptions
    layout: Layout
    settings: dict[str, Any]
    """Settings that must be the same for every run into one output."""
    listing: LogListing
    log_end: int
    end_offset: int
    """Where the part of the log ends that was requested: its end, unless an earlier one was given."""
    todo: tuple[Range, ...]
    """Ranges of log offsets."""
    before: tuple[FinishedRange, ...]
    """Finished ranges of this log."""
    removed: tuple[FinishedRange, ...]
    """Finished ranges of another log, which `replace` removes first."""
    lost: tuple[Range, ...]
    """Ranges that are neither exported nor in the log; empty with failOnDataLoss."""
    accepted: tuple[Range, ...]
    """Ranges that are neither, but accepted losses."""
    kept: tuple[KeptRange, ...]
    """Ranges that should be replaced, but are incomplete in the log."""
    not_served: tuple[str, ...] = ()
    """If the log's beginning is exported: one line for each disk and segment that a degraded mount leaves out."""

    @property
    def todo_bytes(self) -> int:
        return sum(end - start for start, end in self.todo)

    def as_json(self) -> dict[str, Any]:
        """Stable schema (docs/pipeline.md)."""
        return {
            "output": self.request.output,
            "end_offset": self.end_offset,
            "bytes": self.todo_bytes,
            "ranges": [{"start_offset": start, "end_offset": end} for start, end in self.todo],
            "ranges_finished_before": len(self.before),
            "removed": [_range_json(one) for one in self.removed],
            "lost": [{"start_offset": start, "end_offset": end} for start, end in self.lost],
            "accepted_losses": [{"start_offset": start, "end_offset": end} for start, end in self.accepted],
            "kept": [one.as_json() for one in self.kept],
            "not_served": list(self.not_served),
        }


@dataclass(frozen=True, slots=True)
class ExportResult:
    output: str
    ranges: tuple[FinishedRange, ...]
    """Ranges finished by this run."""
    finished_before: int
    """Ranges."""
    end_offset: int
    lost: tuple[Range, ...]
    kept: tuple[KeptRange, ...]
    accepted: tuple[Range, ...] = ()
    removed: tuple[FinishedRange, ...] = ()
    """Ranges of another log that were in the output."""
    not_served: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.ranges)

    @property
    def damages(self) -> tuple[Damage, ...]:
        return tuple(damage for one in self.ranges for damage in one.damages)

    @property
    def has_findings(self) -> bool:
        return any((self.damages, self.lost, self.kept, self.not_served))

    def as_json(self) -> dict[str, Any]:
        """Stable schema (docs/pipeline.md)."""
        return {
            "output": self.output,
            "end_offset": self.end_offset,
            "rows": self.rows,
            "files": sum(len(one.files) for one in self.ranges),
            "bytes": sum(file.size for one in self.ranges for file in one.files),
            "ranges": [
                {"start_offset": one.start, "end_offset": one.end, "rows": one.rows, "files": len(one.files)}
                for one in self.ranges
            ],
            "ranges_finished_before": self.finished_before,
            "removed": [_range_json(one) for one in self.removed],
            "damages": [asdict(damage) for damage in self.damages],
            "lost": [{"start_offset": start, "end_offset": end} for start, end in self.lost],
            "accepted_losses": [{"start_offset": start, "end_offset": end} for start, end in self.accepted],
            "kept": [one.as_json() for one in self.kept],
            "not_served": list(self.not_served),
        }


def _range_json(one: FinishedRange) -> dict[str, Any]:
    return {"start_offset": one.start, "end_offset": one.end, "rows": one.rows}


def _require_replaceable(request: ExportRequest, directory: ExportDirectory) -> None:
    if request.replace and directory.is_delta_table():
        raise ExportRefusedError(f"{directory.place}: is a Delta table, and would lose files; leave --replace out")


def plan_export(
    request: ExportRequest,
    options: Mapping[str, str] | None = None,
    *,
    cores: int = 1,
    directory: ExportDirectory | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ExportPlan:
    """The plan of an `export` with these arguments. Changes nothing, and needs no Spark.

    `options`: those of `format("commitlog")`: topic, startingOffsets, mode, splitSize, ... `directory`: that of the
    request's output, if it is at hand. Raises OptionError, LocationError, DataLossError, ExportRefusedError.
    """
    read = _read_options(request, options)
    layout = _layout(request)
    settings = _settings(layout, read)
    directory = directory or ExportDirectory(request.output)
    directory.check(settings)
    _require_replaceable(request, directory)
    listing, log_end = survey(read.path, read.segment_size, clock=clock)
    _require_outside(directory.place, listing)
    require_log(listing)
    require_places(listing, fail=read.fail_on_data_loss)
    before, removed = _same_log(request, read, listing, log_end, directory)
    start, end = _bounds(read, listing, log_end)
    requested = [*_deleted(read, start, before), *_unfinished(start, end, before)]
    _require_no_cut(request, read, before, log_end)
    from_beginning = read.start is Edge.EARLIEST and bool(requested) and requested[0][0] == listing.begin_offset
    require_beginning(listing, fail=read.fail_on_data_loss and from_beginning)
    missing = _missing(read, listing, [*requested, *_missing_end(read, listing, log_end)])
    todo = [piece for one in requested for piece in _cut(listing, *one, _range_size(request, read, cores))]
    kept: list[KeptRange] = []
    if request.replace:
        whole, kept = _replaceable(before, _requested(read, start), listing, log_end)
        todo += [(one.start, one.end) for one in whole if start <= one.start and one.end <= end]
    return ExportPlan(
        request=request,
        options=read,
        layout=layout,
        settings=settings,
        listing=listing,
        log_end=log_end,
        end_offset=end,
        todo=tuple(sorted(todo)),
        before=tuple(before),
        removed=tuple(removed),
        lost=missing.lost,
        accepted=missing.accepted,
        kept=tuple(kept),
        not_served=not_served(listing) if from_beginning else (),
    )


def export(
    spark: "Spark",
    request: ExportRequest,
    options: Mapping[str, str] | None = None,
    *,
    on_progress: "OnProgress | None" = None,
    on_finished: Callable[[FinishedRange], object] | None = None,
    directory: ExportDirectory | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ExportResult:
    """Export the log up to its end. `on_progress` gets bytes of the log: done, and total. `on_finished` gets every
    finished range, in any run: those that were finished before first. `directory`: that of the request's output,
    closed; who calls this repeatedly passes the same one.

    Raises the errors of `plan_export`, DamagedLogError (FAILFAST), ExportInterruptedError, OutputError; finished
    ranges stay finished.
    """
    directory = directory or ExportDirectory(request.output)
    cores = spark.sparkContext.defaultParallelism
    make_plan = partial(plan_export, request, options, cores=cores, directory=directory, clock=clock)
    plan = make_plan()
    with directory.open(plan.settings):
        # The plan was made before the lock was taken: another export may have finished ranges meanwhile.
        if directory.finished() != sorted([*plan.before, *plan.removed], key=lambda one: one.start):
            plan = make_plan()
        for one in plan.removed:
            directory.remove(one)
        run = _Run(spark, plan, directory, on_progress, clock)
        try:
            ranges = tuple(_each(plan, run, on_finished or (lambda _range: None)))
        except BaseException:
            with suppress(OSError, PipelineError):
                directory.clear_building()  # if this fails, the next run clears it
            raise
    return ExportResult(
        output=directory.place,
        ranges=ranges,
        finished_before=len(plan.before),
        end_offset=plan.end_offset,
        lost=(*plan.lost, *run.lost),
        kept=(*plan.kept, *run.kept),
        accepted=plan.accepted,
        removed=plan.removed,
        not_served=plan.not_served,
    )


def _each(plan: ExportPlan, run: "_Run", on_finished: Callable[[FinishedRange], object]) -> Iterator[FinishedRange]:
    """The ranges that this run finishes."""
    for before in plan.before:
        on_finished(before)
    for one in plan.todo:
        for finished in run.export_range(*one):
            on_finished(finished)
            yield finished


# --- planning --------------------------------------------------------------------------------------------


def _read_options(request: ExportRequest, options: Mapping[str, str] | None) -> ReadOptions:
    read = parse_options({"path": request.log, **(options or {})}, streaming=False)
    if read.bodies.unfold or read.aggregate:
        name = "unfold" if read.bodies.unfold else "aggregate"
        raise OptionError(f"option {name}: an export has a row for each message as stored; leave it out")
    return read


def _layout(request: ExportRequest) -> Layout:
    try:
        Projection(request.columns)
    except PipelineError as error:
        raise OptionError(str(error)) from None
    unknown = [name for name in request.partition_by if name not in tasks.PARTITION_COLUMNS]
    if unknown:
        names = ", ".join(tasks.PARTITION_COLUMNS)
        raise OptionError(f"partition by {', '.join(unknown)}: is not supported; the columns are {names}")
    if len({*request.columns}) < len(request.columns):
        raise OptionError("columns: a column occurs twice; name each column once")
    layout = Layout(request.columns, request.partition_by, request.compression, request.whole_files)
    if request.whole_files:
        sources = [tasks.PARTITION_SOURCES[name] for name in request.partition_by]
        missing = [name for name in sources if name not in request.columns]
        if missing:
            raise OptionError(
                f"columns: {', '.join(missing)}: is needed by the partitions {', '.join(request.partition_by)}; "
                "add it, or choose other partitions"
            )
    if not layout.file_schema.names:
        raise OptionError("columns: all of them are in the names of directories; name another column for the files")
    if request.compression not in COMPRESSIONS:
        raise OptionError(f"compression {request.compression}: is unknown; choose {', '.join(COMPRESSIONS)}")
    return layout


def _settings(layout: Layout, read: ReadOptions) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "columns": list(layout.columns),
        "partition_by": list(layout.partition_by),
        "topic": None if read.topics is None else sorted(read.topics),
        "topicPattern": read.topic_pattern,
        "queueId": None if read.queue_ids is None else sorted(read.queue_ids),
        "startingTimestamp": read.start_ms,
        "endingTimestamp": read.end_ms,
        "includeSystemTopics": read.include_system_topics,
        "includeHalfMessages": read.include_half_messages,
        # Outputs of former versions do not have these keys.
        **({"decompress": True} if read.bodies.decompress else {}),
        **({"whole_files": True} if layout.whole_files else {}),
    }


def _bounds(read: ReadOptions, listing: LogListing, log_end: int) -> Range:
    """The range to export. Both ends are where records begin, so that no range begins inside a record."""
    begin = listing.begin_offset
    if isinstance(read.start, int) and read.start > log_end:
        raise LocationError(f"{read.path}: the log ends at {log_end}, before startingOffsets = {read.start}")
    end = first_place(listing, read.end, log_end) if isinstance(read.end, int) and read.end < log_end else log_end
    match read.start:
        case Edge.EARLIEST:
            return begin, end
        case Edge.LATEST:
            return end, end
        case start:
            return min(first_place(listing, max(start, begin), log_end), end), end


def _deleted(read: ReadOptions, start: int, before: Sequence[FinishedRange]) -> list[Range]:
    """The part behind the finished ranges that was deleted from the log before it was exported."""
    finished_to = max((one.end for one in before), default=start)
    is_wanted = read.start is Edge.EARLIEST or (isinstance(read.start, int) and read.start <= finished_to)
    return [(finished_to, start)] if is_wanted and finished_to < start else []


def _same_log(
    request: ExportRequest, read: ReadOptions, listing: LogListing, log_end: int, directory: ExportDirectory
) -> tuple[Sequence[FinishedRange], Sequence[FinishedRange]]:
    """The finished ranges that belong to this log, and those that do not, which only `replace` allows. Raises
    ExportRefusedError."""
    finished = directory.finished()
    remembered = (fingerprint for one in finished for fingerprint in one.log)
    other = first_difference(listing, log_end, remembered)
    if other is None:
        return finished, ()
    same: Sequence[FinishedRange] = [one for one in finished if one.end <= other.offset]
    foreign: Sequence[FinishedRange] = [one for one in finished if one.end > other.offset]
    if not any(is_same(listing, fingerprint) for one in same for fingerprint in one.own):
        same, foreign = [], finished  # nothing shows that any of them is of this log
    elif not foreign:
        return finished, ()  # the log was cut off exactly where a range ends
    if not request.replace:
        has_table = request.whole_files or directory.is_delta_table()
        raise ExportRefusedError(
            f"{read.path}: is not the log that was exported: another message is at log offset {other.offset} now, "
            f"so the finished ranges from {foreign[0].start} to {foreign[-1].end} are of another log, or of an end "
            f"that was cut off; {_REMEDY_OF_TABLES if has_table else _REMEDY}"
        )
    return same, foreign


def _require_no_cut(
    request: ExportRequest, read: ReadOptions, before: Sequence[FinishedRange], log_end: int
) -> None:
    """Raises DataLossError, or warns, if the log ends before what was exported: a broker that recovers may cut it
    back, and other messages will then have the offsets of those that were exported."""
    finished_to = max((one.end for one in before), default=0)
    if request.replace or finished_to <= log_end:
        return
    problem = (
        f"{read.path}: the log ends at {log_end}, but was exported up to {finished_to}: it was cut back, or its "
        "end is missing"
    )
    if read.fail_on_data_loss:
        raise DataLossError(f"{problem}; export into another output, or with failOnDataLoss=false")
    _logger.warning("%s; nothing is exported before its end is after that log offset", problem)


def _missing_end(read: ReadOptions, listing: LogListing, log_end: int) -> list[Range]:
    """The requested part of the log that a truncated last segment lacks."""
    expected = expected_end(listing, log_end)
    end = min(expected, read.end) if isinstance(read.end, int) else expected
    return [(log_end, end)] if read.start is not Edge.LATEST and end > log_end else []


def _missing(read: ReadOptions, listing: LogListing, ranges: Iterable[Range]) -> Missing:
    """The parts of `ranges` that the log does not hold. With failOnDataLoss, any that is no accepted loss raises
    DataLossError."""
    found: list[Range] = []
    for one in ranges:
        require_complete(listing, *one, fail=read.fail_on_data_loss, warn=False)
        found += missing_ranges(listing, *one)
    return sort_missing(listing, found)


def _require_outside(output: str, listing: LogListing) -> None:
    """Raises ExportRefusedError for an output inside the log: a broker refuses a commitlog directory with other
    entries."""
    for place in {_absolute(segment.uri.rpartition("/")[0]) for segment in listing.segments}:
        if f"{output}/".startswith(f"{place}/"):
            raise ExportRefusedError(f"{output}: is inside the log; name a directory outside of {place}")


def _absolute(place: str) -> str:
    return place if "://" in place else str(Path(place).absolute())


def _unfinished(start: int, end: int, finished: Iterable[FinishedRange]) -> list[Range]:
    """The parts of [start, end) that are in none of the `finished` ranges, which are in order."""
    return uncovered(start, end, ((one.start, one.end) for one in finished))


def _requested(read: ReadOptions, start: int) -> tuple[int, float]:
    """The requested log offsets, whether they are in the log or not."""
    first = min(start, read.start) if isinstance(read.start, int) else start
    return first, read.end if isinstance(read.end, int) else inf


def _replaceable(
    finished: Iterable[FinishedRange], requested: tuple[int, float], listing: LogListing, log_end: int
) -> tuple[list[FinishedRange], list[KeptRange]]:
    """The ranges that are complete in the log, and the requested ones that are not."""
    whole, kept = [], []
    for one in finished:
        missing = missing_ranges(listing, one.start, one.end)
        if not missing and one.end <= log_end:
            whole.append(one)
        elif one.start < requested[1] and one.end > requested[0]:
            where = ", ".join(f"{start} to {end}" for start, end in missing)
            reason = f"log offsets {where} are not in the log" if missing else f"the log ends at {log_end}"
            kept.append(KeptRange(one.start, one.end, reason))
    return whole, kept


def _cut(listing: LogListing, start: int, end: int, size: int) -> list[Range]:
    """[start, end) without missing parts, in ranges of about `size` that end where segments end."""
    pieces: list[Range] = []
    for segment in listing.segments:
        first, last = max(start, segment.base_offset), min(end, segment.end_offset)
        if first >= last:
            continue
        if pieces and pieces[-1][1] == first and pieces[-1][1] - pieces[-1][0] < size:
            pieces[-1] = (pieces[-1][0], last)
        else:
            pieces.append((first, last))
    return pieces


def _range_size(request: ExportRequest, read: ReadOptions, cores: int) -> int:
    return request.range_size or max(DEFAULT_RANGE_BYTES, cores * _SPLITS_PER_CORE * _split_bytes(read))


def _split_bytes(read: ReadOptions) -> int:
    return read.split_size or DEFAULT_SPLIT_BYTES


# --- one range -------------------------------------------------------------------------------------------


class _Run:
    def __init__(
        self,
        spark: "Spark",
        plan: ExportPlan,
        directory: ExportDirectory,
        on_progress: "OnProgress | None",
        clock: Clock,
    ) -> None:
        read = plan.options
        self._spark, self._plan, self._directory, self._on_progress = spark, plan, directory, on_progress
        self._clock = clock
        self._before = {(one.start, one.end): one for one in plan.before}
        self._reading = Reading(
            plan.layout,
            RecordFilter.of(read),
            DamageMode.PERMISSIVE if read.permissive else DamageMode.FAILFAST,
            read.check_crc,
            read.bodies,
        )
        self._listing = plan.listing
        self._newest = _last_of(fingerprint for one in plan.before for fingerprint in one.own)
        """The last message that any run has exported."""
        self._done_bytes = 0
        self._range_bytes = 0
        """Size of the range in progress."""
        self.lost: list[Range] = []
        self.kept: list[KeptRange] = []

    def export_range(self, start: int, end: int) -> list[FinishedRange]:
        """The finished parts of this range: several if a part of it was deleted meanwhile, none if the existing
        export is better."""
        self._range_bytes = end - start
        before = self._before.get((start, end))
        try:
            finished, made = self._made(start, end)
        except PipelineError:
            missing = self._gone(start, end)
            if not missing:
                raise
            self._directory.clear_building()
            if before is None:
                return self._without(missing, start, end)
            where = ", ".join(f"{first} to {last}" for first, last in missing)
            return self._keep(before, f"log offsets {where} are not in the log")
        if before is not None and finished.rows < before.rows:
            self._directory.clear_building()
            return self._keep(
                before, f"the log has fewer messages now ({finished.rows}) than were exported ({before.rows})"
            )
        self._directory.commit(finished, made, before)
        self._directory.clear_building()
        self._done_bytes += end - start
        return [finished]

    def _made(self, start: int, end: int) -> tuple[FinishedRange, dict[str, str]]:
        from commitlogfs.pipeline.jobs.worker_errors import worker_errors

        # Before the range is read: if the log is replaced by another one meanwhile, the next range or the next run
        # finds that the messages differ.
        log = self._identity(start, end)
        with worker_errors():
            splits = self._splits(start, end)
            tally, plans = self._planned(splits)
            written = self._written(splits, plans)
        rows = self._checked(tally, written) if plans else 0
        return self._finished(start, end, rows, plans, written, tally, log)

    def _identity(self, start: int, end: int) -> tuple[Fingerprint, ...]:
        """Fingerprints of the range. Raises ExportInterruptedError if the log is not the one that the plan was made
        for."""
        if self._newest is not None and is_same(self._listing, self._newest) is False:
            raise ExportInterruptedError(
                f"{self._plan.request.log}: the log was replaced meanwhile (another message is at log offset "
                f"{self._newest.offset} now); run the same export again"
            )
        log = fingerprints_of_range(self._listing, start, end, self._plan.log_end)
        own = [one for one in log if one.offset < end]
        self._newest = _last_of([*own, *([] if self._newest is None else [self._newest])])
        return log

    def _gone(self, start: int, end: int) -> list[Range]:
        """The parts of a range that were deleted since the plan was made; empty with failOnDataLoss."""
        read = self._plan.options
        if read.fail_on_data_loss:
            return []
        self._listing = list_segments(read.path, read.segment_size)
        return missing_ranges(self._listing, start, end)

    def _without(self, missing: Sequence[Range], start: int, end: int) -> list[FinishedRange]:
        self.lost += missing
        self._done_bytes += sum(last - first for first, last in missing)
        rest = _cut(self._listing, start, end, end - start)
        return [finished for piece in rest for finished in self.export_range(*piece)]

    def _keep(self, before: FinishedRange, reason: str) -> list[FinishedRange]:
        self.kept.append(KeptRange(before.start, before.end, reason))
        self._done_bytes += before.end - before.start
        return []

    def _splits(self, start: int, end: int) -> Sequence[Split]:
        read = self._plan.options
        splits = plan_splits(
            self._listing, end, start_offset=start, exact_start=True, split_size=_split_bytes(read)
        )
        return narrow_by_time(splits, read.start_ms, read.end_ms)

    def _planned(self, splits: Sequence[Split]) -> tuple[Tally, list[FilePlan]]:
        """The total of the range, and its files."""
        layout = self._plan.layout
        whole = Tally()
        sizes: dict[Partition, dict[int, int]] = {}
        count = partial(_count, splits=splits, reading=self._reading)
        for number, tally in self._run_tasks(splits, count, 0.0, _COUNTING):
            whole.merge(tally)
            for values, figures in tally.figures.items():
                raw, day = cast("tuple[bytes, int]", values)
                of_split = sizes.setdefault(layout.partition_of(well_formed_text(raw), day), {})
                of_split[number] = of_split.get(number, 0) + figures.stored_bytes
        for partition in sizes:
            partition_directory(layout.directory_parts(partition))  # raises before anything is written
        cores = self._spark.sparkContext.defaultParallelism
        return whole, plan_files(sizes, self._plan.request.file_size, cores)

    def _written(self, splits: Sequence[Split], plans: Sequence[FilePlan]) -> list[tasks.Written]:
        if not plans:
            return []
        writers = 1 + max(plan.writer for plan in plans)
        pack = partial(tasks.pack_splits, splits=splits, reading=self._reading, plans=plans)
        write = partial(tasks.write_files, output=self._directory.place, layout=self._plan.layout)
        context = self._spark.sparkContext
        packed = context.parallelize(range(len(splits)), len(splits)).mapPartitions(pack)
        shuffled = packed.repartitionAndSortWithinPartitions(writers, tasks.writer_of)
        with self._progress(_COUNTING, 1.0, len(splits) + writers):
            return list(shuffled.mapPartitions(write).collect())

    def _run_tasks(
        self, splits: Sequence[Split], work: Any, progress_from: float, progress_to: float
    ) -> list[tuple[int, Tally]]:
        if not splits:
            return []
        numbers = self._spark.sparkContext.parallelize(range(len(splits)), len(splits))
        with self._progress(progress_from, progress_to, len(splits)):
            return list(numbers.mapPartitions(work).collect())

    def _progress(self, from_part: float, to_part: float, tasks_in_all: int) -> AbstractContextManager[None]:
        from commitlogfs.pipeline.jobs.progress import show_progress

        on_progress = self._on_progress
        if on_progress is None:
            return show_progress(self._spark, None)

        def report(tasks_done: int, _: int) -> None:
            part = from_part + (to_part - from_part) * min(1.0, tasks_done / tasks_in_all)
            on_progress(self._done_bytes + int(part * self._range_bytes), self._plan.todo_bytes)

        return show_progress(self._spark, report, clock=self._clock)

    def _checked(self, tally: Tally, written: Sequence[tasks.Written]) -> int:
        """The rows in all files. They must be as many as were counted, without rows whose bodies were damaged
        since."""
        rows = sum(one.rows for one in written if isinstance(one, FileWritten))
        skipped = sum(isinstance(one, Damage) for one in written)
        counted = sum(figures.messages for figures in tally.figures.values())
        if rows != counted - max(0, skipped - len(tally.damages)):
            raise ExportInterruptedError(
                f"{self._plan.request.log}: the log has changed meanwhile ({counted} messages were counted, but "
                f"{rows} exported); run the same export again"
            )
        return rows

    def _finished(
        self,
        start: int,
        end: int,
        rows: int,
        plans: Sequence[FilePlan],
        written: Sequence[tasks.Written],
        tally: Tally,
        log: tuple[Fingerprint, ...],
    ) -> tuple[FinishedRange, dict[str, str]]:
        by_number = {plan.number: plan for plan in plans}
        files, made, counts = [], {}, dict[str, int]()
        damages = [one for one in written if isinstance(one, Damage)] or tally.damages
        for one in sorted(one for one in written if isinstance(one, FileWritten)):
            directory = partition_directory(self._plan.layout.directory_parts(by_number[one.number].partition))
            # Counted by directory: two partitions may share one (a topic may have the name that Spark uses for "").
            number = counts[directory] = counts.get(directory, -1) + 1
            path = f"{directory}/{start:020d}-{end:020d}-{number:03d}.parquet".lstrip("/")
            files.append(FinishedFile(path, one.rows, one.size))
            made[path] = one.path
        ordered = tuple(sorted(damages, key=lambda damage: damage.offset))
        return FinishedRange(start, end, rows, tuple(files), ordered, log), made


def _last_of(fingerprints: Iterable[Fingerprint]) -> Fingerprint | None:
    return max(fingerprints, key=lambda one: one.offset, default=None)


@worker_task
def _count(numbers: Iterable[int], *, splits: Sequence[Split], reading: Reading) -> Iterator[tuple[int, Tally]]:
    for number in numbers:
        yield number, tally_splits([splits[number]], reading.mode, _TOPIC_AND_DAY, reading.filter)


def plan_files(sizes: Mapping[Partition, Mapping[int, int]], file_size: int, cores: int) -> list[FilePlan]:
    """The files for these bytes per partition and split, and their writers. Each partition's rows are in the order
    of the log; a new file begins after `file_size`. The largest file is assigned first, to the writer with the
    least bytes."""
    cuts: list[tuple[Partition, int, int]] = []  # partition, first split, bytes
    for partition in sorted(sizes, key=str):
        of_partition = sorted(sizes[partition].items())
        first, held = of_partition[0][0], 0
        for split, size in of_partition:
            if held >= file_size:
                cuts.append((partition, first, held))
                first, held = split, 0
            held += size
        cuts.append((partition, first, held))
    total = sum(size for _, _, size in cuts)
    loads = [(0, writer) for writer in range(min(len(cuts), max(cores, total // file_size)))]
    writers = {}
    for number in sorted(range(len(cuts)), key=lambda number: -cuts[number][2]):
        load, writer = heapq.heappop(loads)
        writers[number] = writer
        heapq.heappush(loads, (load + cuts[number][2], writer))
    return [FilePlan(partition, first, n, writers[n]) for n, (partition, first, _) in enumerate(cuts)]


__all__ = ["ExportPlan", "ExportRequest", "ExportResult", "KeptRange", "export", "plan_export"]
