"""Rebuilds consume queues and index from the log in parallel, with exactly the bytes that the broker writes.

    decode     read every split once; write a run of ready entries for each queue, and the index keys, into its file
    plan       count the keys, which determines the index file of each
    write      shuffle the locations of entries and keys, in the order of the log, to one writer per queue and per
               index file

The output appears under its name when it is complete; an unfinished run leaves only a directory
`OUTPUT.building-...`. The output must be on a disk that all workers share, with twice the room that it needs.
"""

import os
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from operator import itemgetter
from pathlib import Path

from pyspark import RDD, StorageLevel

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.broker.index_file import IndexFileWriter, Share, file_names, file_size, plan_files
from commitlogfs.pipeline.broker.queue_entry import ENTRY_BYTES
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs import rebuild_tasks as tasks
from commitlogfs.pipeline.jobs.apply import make_manifest, write_manifest
from commitlogfs.pipeline.jobs.progress import OnProgress, show_progress
from commitlogfs.pipeline.jobs.rebuild_tasks import IndexFileWritten, Item, Place, SplitSummary
from commitlogfs.pipeline.jobs.worker_errors import worker_errors
from commitlogfs.pipeline.log.errors import OutputError, PipelineError, output_errors
from commitlogfs.pipeline.log.losses import missing_log, missing_ranges, not_served, require_places, sort_missing
from commitlogfs.pipeline.log.scanner import Damage, DamageMode
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES, Split, plan_splits
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.pipeline.log.truncation import expected_end
from commitlogfs.pipeline.log.unread_end import require_messages, warn_of_unread_end
from commitlogfs.pipeline.source.session import Spark
from commitlogfs.store.broker_store import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, INDEX
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

_TASKS_AT_MOST = 20_000
_QUEUE_BYTES_PER_TASK = 512 << 20


class RebuildRefusedError(PipelineError):
    """The rebuild was refused; nothing was done."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """Result of a rebuild."""

    output: Path
    segments: int
    end_offset: int
    """Log offset where the log ended."""
    records: int
    queues: int
    queue_files: int
    queue_entries: int
    left_out: int
    """Entries that were left out of the queues, as by the broker."""
    misplaced: int
    """Entries in wrong positions, as by the broker; more than 0 only after a gap or a deleted topic."""
    index_files: tuple[str, ...]
    index_entries: int
    damages: tuple[Damage, ...]
    """Skipped ranges in the order of the log; always empty with FAILFAST."""
    not_served: tuple[str, ...] = ()
    """One line for each disk and segment that a degraded mount leaves out."""


def rebuild(
    spark: Spark,
    log: str,
    output: Path,
    *,
    consumequeue: bool = True,
    index: bool = True,
    settings: BrokerSettings | None = None,
    mode: DamageMode = DamageMode.FAILFAST,
    split_size: int = DEFAULT_SPLIT_BYTES,
    zone: tzinfo | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RebuildResult:
    """Make `output`, which must not exist, with directories consumequeue, batchconsumequeue (if any) and index
    (unless the broker has no index files).

    `log`: as in `list_segments`. `zone`: time zone for the names of index files, by default this machine's; the
    broker must use the same. Raises RebuildRefusedError, LocationError, DamagedLogError, OutputError and other
    PipelineErrors.
    """
    settings = settings or BrokerSettings()
    output = output.absolute()  # workers have another working directory
    listing = list_segments(log, settings.segment_size)
    _require_possible(listing, log, output, settings, mode, consumequeue=consumequeue, index=index)
    require_messages(listing, clock=clock)
    end_offset = find_end(listing, clock=clock)
    truncated = _truncated(listing, end_offset)
    if truncated is not None and mode is DamageMode.FAILFAST:
        raise RebuildRefusedError(
            f"{log}: segment {truncated.segment}, log offset {truncated.offset}: {truncated.reason}"
        )
    warn_of_unread_end(listing, end_offset, clock=clock)
    splits = plan_splits(listing, end_offset, split_size=split_size)
    manifest = make_manifest(log, listing, end_offset)  # first, in case that the log is replaced while it is read
    building = output.with_name(f"{output.name}.building-{os.urandom(4).hex()}")
    with output_errors(building):
        building.mkdir(parents=True)
    try:
        run = _Run(spark, building, settings, index=index and not settings.index_refused, queues=consumequeue)
        with show_progress(spark, on_progress, clock=clock), worker_errors():
            run.run(splits, mode)
        manifest = replace(manifest, misplaced=run.queue_figures["misplaced"])
        with output_errors(building):
            names = run.finish(zone)
            write_manifest(building / "out", manifest)
            (building / "out").rename(output)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return RebuildResult(
        output=output,
        segments=len({split.segment.base_offset for split in splits}),
        end_offset=end_offset,
        records=run.records,
        queues=run.queue_figures["queues"],
        queue_files=run.queue_figures["files"],
        queue_entries=run.queue_figures["written"],
        left_out=run.queue_figures["left_out"],
        misplaced=run.queue_figures["misplaced"],
        index_files=tuple(names),
        index_entries=sum(written.summary.entries for written in run.index_files),
        damages=tuple(run.damages) if truncated is None else (*run.damages, truncated),
        not_served=not_served(listing),
    )


def _truncated(listing: LogListing, end_offset: int) -> Damage | None:
    """The missing end of a truncated last segment. In an earlier segment it would be a gap."""
    for lost_from, lost_to in missing_ranges(listing, end_offset, expected_end(listing, end_offset)):
        segment = next(one for one in listing.segments if one.end_offset == lost_from)
        reason = f"the file has only {segment.size} of {listing.segment_size} bytes: it is truncated"
        return Damage(lost_from, lost_to - lost_from, reason, segment.name)
    return None


def _require_possible(
    listing: LogListing,
    log: str,
    output: Path,
    settings: BrokerSettings,
    mode: DamageMode,
    *,
    consumequeue: bool,
    index: bool,
) -> None:
    if not (consumequeue or index):
        raise RebuildRefusedError("nothing to rebuild; choose the consume queues, the index, or both")
    if output.exists():
        raise RebuildRefusedError(f"{output}: exists; remove it, or name another output")
    if consumequeue and settings.queues_refused:
        instead = "" if settings.index_refused else "; rebuild the index only"
        raise RebuildRefusedError(f"{settings.queues_refused}{instead}")
    if settings.index_refused and not consumequeue:
        raise RebuildRefusedError(settings.index_refused)
    problem = missing_log(listing)
    if problem is not None:
        raise RebuildRefusedError(problem)
    require_places(listing, fail=mode is DamageMode.FAILFAST, tolerant="mode=PERMISSIVE")
    if listing.gaps and mode is DamageMode.FAILFAST:
        end, begin = listing.gaps[0]
        is_lost = bool(sort_missing(listing, [(end, begin)]).lost)
        remedy = "mount the missing disk, or rebuild" if is_lost else "its disk was given up: rebuild"
        raise RebuildRefusedError(
            f"{log}: no segment holds log offsets {end} to {begin}, and entries after a gap get wrong positions; "
            f"{remedy} the rest with mode=PERMISSIVE"
        )
    if listing.may_lack_beginning and mode is DamageMode.FAILFAST:
        raise RebuildRefusedError(
            f"{not_served(listing)[0]}; correct that, or rebuild the rest with mode=PERMISSIVE"
        )


class _Run:
    """A rebuild in progress, with its intermediate results."""

    def __init__(
        self, spark: Spark, building: Path, settings: BrokerSettings, *, queues: bool, index: bool
    ) -> None:
        self._context, self._building, self._settings = spark.sparkContext, building, settings
        self._queues, self._index = queues, index
        self._key_pieces: list[tuple[Place, int]] = []
        """Location and number of the keys, in the order of the log."""
        self._last_record = (-1, 0)
        """Log offset and store time."""
        self._last_key = -1
        self.records = 0
        self.damages: list[Damage] = []
        self.queue_figures: Counter[str] = Counter()
        self.index_files: list[IndexFileWritten] = []

    def run(self, splits: list[Split], mode: DamageMode) -> None:
        if not splits:
            return
        decode = partial(
            tasks.decode_splits,
            splits=splits,
            rules=self._settings.rules,
            mode=mode,
            building=self._building,
            queues=self._queues,
            index=self._index,
        )
        numbers = self._context.parallelize(range(len(splits)), min(len(splits), _TASKS_AT_MOST))
        # Cached, because it is used twice and the log should be read only once.
        decoded = numbers.mapPartitions(decode).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for summary in decoded.mapPartitions(tasks.only_summaries).collect():
                self._note(summary)
            self._key_pieces.sort()
            self.damages.sort(key=lambda damage: damage.offset)
            self._write(decoded)
        finally:
            decoded.unpersist()

    def _note(self, summary: SplitSummary) -> None:
        self.records += summary.records
        self._last_record = max(self._last_record, (summary.last_offset, summary.last_ms))
        self._last_key = max(self._last_key, summary.last_key)
        self._key_pieces += summary.key_pieces
        self.damages += summary.damages

    def _write(self, decoded: "RDD[Item]") -> None:
        plan = plan_files((count for _, count in self._key_pieces), self._settings.index_capacity)
        shares: dict[Place, list[Share]] = {}
        for share in plan:
            shares.setdefault(self._key_pieces[share.block][0], []).append(share)
        index_files = plan[-1].file + 1 if plan else 0
        queue_writers = self._queue_writers()
        route = partial(tasks.route, shares=shares, index_files=index_files, queue_writers=queue_writers)
        write = partial(tasks.write, index_files=index_files, building=self._building, settings=self._settings)
        sorted_items = decoded.mapPartitions(route).repartitionAndSortWithinPartitions(
            index_files + queue_writers, itemgetter(0)
        )
        for written in sorted_items.mapPartitionsWithIndex(write).collect():
            if isinstance(written, Counter):
                self.queue_figures += written
            else:
                self.index_files.append(written)
        self.index_files.sort()

    def _queue_writers(self) -> int:
        if not self._queues:
            return 1  # Spark requires at least one partition
        by_size = min(_TASKS_AT_MOST, self.records * ENTRY_BYTES // _QUEUE_BYTES_PER_TASK)
        return max(2 * self._context.defaultParallelism, by_size)

    # --- finish -----------------------------------------------------------------------------------------

    def finish(self, zone: tzinfo | None) -> list[str]:
        """Move everything into place under `out`; the names of the index files. Raises OutputError, OSError."""
        self._require_written()
        out = self._building / "out"
        out.mkdir(exist_ok=True)
        if self._queues:
            (out / CONSUME_QUEUE).mkdir(exist_ok=True)
            if self._settings.rules.batch_topics:
                (out / BATCH_CONSUME_QUEUE).mkdir(exist_ok=True)
        if not self._index:
            return []
        (out / INDEX).mkdir()
        numbers = [str(written.file) for written in self.index_files]
        times = [written.summary.begin_ms for written in self.index_files]
        if self._has_empty_file():
            numbers.append("empty")
            times.append(self._last_record[1])
            self._write_empty_file()
        names = file_names(times, zone)
        for number, name in zip(numbers, names, strict=True):
            (self._building / INDEX / number).rename(out / INDEX / name)
        return names

    def _require_written(self) -> None:
        """Checks that the files which workers have written exist here: they do not on a disk that is not shared."""
        out, figures = self._building / "out", self.queue_figures
        sizes = [path.stat().st_size for path in out.glob("*/*/*/*")]
        index = [self._building / INDEX / str(written.file) for written in self.index_files]
        whole = file_size(self._settings.index_slots, self._settings.index_capacity)
        pairs = (
            ("queues", sum(1 for _ in out.glob("*/*/*")), figures["queues"]),
            ("queue files", len(sizes), figures["files"]),
            ("bytes of queue files", sum(sizes), figures["bytes"]),
            ("index files", sum(path.exists() and path.stat().st_size == whole for path in index), len(index)),
        )
        for what, there, written in pairs:
            if there != written:
                raise OutputError(
                    f"{self._building}: has {there:,} {what}, but {written:,} were written; name an output on a "
                    "disk that all workers share"
                )

    def _has_empty_file(self) -> bool:
        """Whether the last index file must be an empty one: a broker makes the next file at a record, even if that
        record has no key."""
        room = self._settings.index_capacity - 1
        full = not self.index_files or self.index_files[-1].summary.entries == room
        return full and self._last_record[0] > self._last_key

    def _write_empty_file(self) -> None:
        last = self.index_files[-1].summary if self.index_files else None
        before = None if last is None else (last.end_offset, last.end_ms)
        directory = self._building / INDEX
        directory.mkdir(exist_ok=True)
        slots, capacity = self._settings.index_slots, self._settings.index_capacity
        with IndexFileWriter(directory / "empty", slots, capacity, before) as writer:
            writer.close()
