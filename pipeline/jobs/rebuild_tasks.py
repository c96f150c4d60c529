"""Tasks of Spark workers in a rebuild: decode splits into runs and key blocks, write queues, write index files.

The packed entries and keys of each split go into one file in the directory where the output is built. Only their
locations pass through Spark: one item per queue, split and piece, never one per message. The items of a split are
numbered, so that their order in the log is known after any shuffle.
"""

import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.broker.consume_queue import BatchConsumeQueueFiles, ConsumeQueueFiles, QueueSummary
from commitlogfs.pipeline.broker.dispatch import Dispatched, Dispatcher, DispatchRules, Entries, Keys, QueueKey
from commitlogfs.pipeline.broker.index_file import KEY, IndexFileWriter, IndexSummary, KeyBlock, Share, pack_keys
from commitlogfs.pipeline.broker.queue_entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from commitlogfs.pipeline.broker.queue_runs import Run, collect_runs
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.log.errors import OutputError, output_errors
from commitlogfs.pipeline.log.scanner import Chunk, Damage, DamageMode, scan_split
from commitlogfs.pipeline.log.splits import Split
from commitlogfs.pipeline.source.worker_task import worker_task
from commitlogfs.store.broker_store import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, INDEX

_HELD_AT_MOST = 1_000_000
"""Number of entries and keys that are gathered before they are sorted and sent on; some 40 bytes each."""
_PIECE_BYTES = 4 << 20
"""Number of bytes that a writer reads at a time."""
_SPILL = "spill"


class Place(NamedTuple):
    """Location of an item in the log; items are sorted by it."""

    split: int
    piece: int


class Span(NamedTuple):
    """Location of bytes in the file of a split."""

    position: int
    length: int


class RunItem(NamedTuple):
    """Entries of one queue."""

    place: Place
    queue: QueueKey
    first: int
    """Queue offset of the first entry, if the entries are consecutive."""
    queue_offsets: Span | None
    """Location of the queue offsets (int64) of all entries, if the entries are not consecutive."""
    entries: Span


class KeysItem(NamedTuple):
    """Keys for the index."""

    place: Place
    base_offset: int
    base_ms: int
    keys: Span

    @property
    def size(self) -> int:
        return self.keys.length // KEY.itemsize

    def part(self, share: Share) -> "KeysItem":
        position = self.keys.position + share.start * KEY.itemsize
        return self._replace(keys=Span(position, (share.stop - share.start) * KEY.itemsize))


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Figures of one split."""

    records: int
    last_offset: int
    """Log offset of the last record; -1 without records."""
    last_ms: int
    last_key: int
    """Log offset of the last record with a key; -1 without such a record."""
    key_pieces: tuple[tuple[Place, int], ...]
    """Location and number of its keys."""
    damages: tuple[Damage, ...]


Item = RunItem | KeysItem | SplitSummary


# --- decoding --------------------------------------------------------------------------------------------


@worker_task
def decode_splits(
    numbers: Iterable[int],
    *,
    splits: Sequence[Split],
    rules: DispatchRules,
    mode: DamageMode,
    building: Path,
    queues: bool,
    index: bool,
) -> Iterator[Item]:
    """The items of these splits; each split ends with its summary, and its file is complete by then. Raises
    OutputError."""
    with output_errors(building), _Attempt(building) as attempt:
        for number in numbers:
            with attempt.path.open("wb", buffering=0) as spill:
                decoder = _SplitDecoder(number, splits[number], rules, mode, spill, queues=queues, index=index)
                items = list(decoder.items())
            attempt.publish(Path(_SPILL, str(number)))
            yield from items


class _SplitDecoder:
    def __init__(
        self,
        number: int,
        split: Split,
        rules: DispatchRules,
        mode: DamageMode,
        spill: FileIO,
        *,
        queues: bool,
        index: bool,
    ) -> None:
        self._number, self._split, self._mode, self._spill = number, split, mode, spill
        self._with_queues, self._with_index = queues, index
        self._dispatcher = Dispatcher(rules, queues=queues)
        self._entries: list[Entries] = []
        self._keys: list[Keys] = []
        self._held = 0
        self._pieces = 0
        self._position = 0
        self._key_pieces: list[tuple[Place, int]] = []

    def items(self) -> Iterator[Item]:
        records, last_offset, last_ms, last_key = 0, -1, 0, -1
        damages = []
        for chunk in scan_split(self._split, self._mode):
            if isinstance(chunk, Damage):
                damages.append(chunk)
                continue
            records += len(chunk.positions)
            for dispatched in self._dispatch(chunk):
                if isinstance(dispatched, Damage):
                    damages.append(dispatched)
                    records -= 1
                    continue
                last_offset, last_ms = dispatched.last_offset, dispatched.last_ms
                if dispatched.keys.offsets.size:
                    last_key = int(dispatched.keys.offsets[-1])
                self._hold(dispatched.entries, dispatched.keys)
            if self._held >= _HELD_AT_MOST:
                yield from self._flush()
        yield from self._flush()
        yield SplitSummary(records, last_offset, last_ms, last_key, tuple(self._key_pieces), tuple(damages))

    def _dispatch(self, chunk: Chunk) -> Iterator[Dispatched | Damage]:
        """The chunk's parts in the order of the log; a record that cannot be dispatched is damage. Raises
        UndispatchableRecordError in FAILFAST."""
        if self._mode is DamageMode.FAILFAST:
            yield self._dispatcher.dispatch(chunk.data, chunk.positions)
            return
        for part in self._dispatcher.dispatch_around(chunk.data, chunk.positions):
            if isinstance(part, Dispatched):
                yield part
            else:
                at, reason = part
                length = int.from_bytes(chunk.data[at : at + 4].tobytes(), "big")
                yield Damage(chunk.offset + at, length, reason, chunk.segment.name)

    def _hold(self, entries: Entries, keys: Keys) -> None:
        if self._with_queues:
            self._entries.append(entries)
            self._held += entries.queues.size
        if self._with_index:
            self._keys.append(keys)
            self._held += keys.offsets.size

    def _flush(self) -> Iterator[Item]:
        queues = self._dispatcher.queue_keys
        for run in collect_runs(self._entries, np.array([queue.batch for queue in queues], np.bool_)):
            yield from self._run_items(queues[run.queue], run)
        for block in pack_keys(*_join(self._keys)) if self._keys else ():
            size = _PIECE_BYTES // KEY.itemsize
            for start in range(0, block.keys.size, size):
                span = self._append(block.keys[start : start + size])
                item = KeysItem(self._next_place(), block.base_offset, block.base_ms, span)
                self._key_pieces.append((item.place, item.size))
                yield item
        self._entries, self._keys, self._held = [], [], 0

    def _run_items(self, queue: QueueKey, run: Run) -> Iterator[RunItem]:
        width = BATCH_ENTRY_BYTES if queue.batch else ENTRY_BYTES
        size = _PIECE_BYTES // width
        for start in range(0, run.entries.size // width, size):
            entries = self._append(run.entries[start * width : (start + size) * width])
            if isinstance(run.queue_offsets, int):
                yield RunItem(self._next_place(), queue, run.queue_offsets + start, None, entries)
            else:
                queue_offsets = self._append(run.queue_offsets[start : start + size])
                yield RunItem(self._next_place(), queue, -1, queue_offsets, entries)

    def _append(self, values: npt.NDArray[Any]) -> Span:
        span = Span(self._position, values.nbytes)
        view = values.view(np.uint8).data
        while view:
            view = view[self._spill.write(view) :]
        self._position += span.length
        return span

    def _next_place(self) -> Place:
        self._pieces += 1
        return Place(self._number, self._pieces)


def _join(keys: Sequence[Keys]) -> Keys:
    return Keys(*(np.concatenate(column) for column in zip(*keys, strict=True)))


# --- routing ---------------------------------------------------------------------------------------------


def only_summaries(items: Iterable[Item]) -> Iterator[SplitSummary]:
    return (item for item in items if isinstance(item, SplitSummary))


class IndexKey(NamedTuple):
    """Sort key for the items of one index file."""

    writer: int
    place: Place
    start: int
    before: bool
    """As in Share."""


class RunKey(NamedTuple):
    """Sort key for the items of one writer of queues."""

    writer: int
    queue: QueueKey
    place: Place


Pair = tuple[IndexKey | RunKey, Item]


def route(
    items: Iterable[Item], *, shares: Mapping[Place, Sequence[Share]], index_files: int, queue_writers: int
) -> Iterator[Pair]:
    """Each item with the number of its writer: first those of the index files, then those of queues."""
    for item in items:
        if isinstance(item, RunItem):
            writer = index_files + _spread(item.queue) % queue_writers
            yield RunKey(writer, item.queue, item.place), item
        elif isinstance(item, KeysItem):
            for share in shares[item.place]:
                yield IndexKey(share.file, item.place, share.start, share.before), item.part(share)


def _spread(queue: QueueKey) -> int:
    """A number that is the same in every process, and differs between neighbouring queues of a topic."""
    return sum(queue.topic.encode()) + queue.queue_id


# --- writing ---------------------------------------------------------------------------------------------


class IndexFileWritten(NamedTuple):
    file: int
    summary: IndexSummary


Written = IndexFileWritten | Counter[str]
"""Result of a writer: an index file, or queues (sums of QueueSummary, with the number of queues under "queues", and
the size of their files under "bytes")."""


@worker_task
def write(
    number: int, pairs: Iterable[Pair], *, index_files: int, building: Path, settings: BrokerSettings
) -> Iterator[Written]:
    """Writes the files of writer `number` from its sorted items; the directory of a queue is complete when it
    appears. Raises OutputError."""
    with output_errors(building), _Attempt(building) as attempt, _Spills(building) as spills:
        if number < index_files:
            keys = cast("Iterable[tuple[IndexKey, KeysItem]]", pairs)
            yield _write_index_file(number, keys, attempt, spills, settings)
        else:
            runs = (item for _, item in cast("Iterable[tuple[RunKey, RunItem]]", pairs))
            yield _write_queues(runs, attempt, spills, settings)


def _write_queues(
    items: Iterable[RunItem], attempt: "_Attempt", spills: "_Spills", settings: BrokerSettings
) -> Counter[str]:
    totals: Counter[str] = Counter()
    for queue, of_queue in groupby(items, lambda item: item.queue):
        totals.update(asdict(_write_queue(queue, of_queue, attempt.path, spills, settings)), queues=1)
        totals["bytes"] += sum(path.stat().st_size for path in attempt.path.iterdir())
        kind = BATCH_CONSUME_QUEUE if queue.batch else CONSUME_QUEUE
        attempt.publish(Path("out", kind, queue.topic, str(queue.queue_id)))
    return totals


def _write_queue(
    queue: QueueKey, items: Iterable[RunItem], directory: Path, spills: "_Spills", settings: BrokerSettings
) -> QueueSummary:
    if queue.batch:
        with BatchConsumeQueueFiles(directory, settings.batch_queue_file_size) as batch_files:
            for item in items:
                batch_files.feed(spills.read(item.place, item.entries))
            return batch_files.close()
    with ConsumeQueueFiles(directory, settings.queue_file_size) as files:
        for item in items:
            entries = spills.read(item.place, item.entries)
            if item.queue_offsets is None:
                files.feed(entries, item.first)
            else:
                files.feed(entries, spills.read(item.place, item.queue_offsets).view(np.int64))
        return files.close()


def _write_index_file(
    number: int,
    pairs: Iterable[tuple[IndexKey, KeysItem]],
    attempt: "_Attempt",
    spills: "_Spills",
    settings: BrokerSettings,
) -> IndexFileWritten:
    before = None
    writer: IndexFileWriter | None = None
    try:
        for key, item in pairs:
            block = KeyBlock(spills.read(item.place, item.keys).view(KEY), item.base_offset, item.base_ms)
            if key.before:
                before = block.last
                continue
            if writer is None:
                writer = IndexFileWriter(attempt.path, settings.index_slots, settings.index_capacity, before)
            writer.feed(block)
        if writer is None:
            raise ValueError(f"no keys for index file {number}")
        summary = writer.close()
    finally:
        if writer is not None:
            writer.release()
    attempt.publish(Path(INDEX, str(number)))
    return IndexFileWritten(number, summary)


class _Spills:
    """The files of the splits, one open at a time: items arrive split by split."""

    def __init__(self, building: Path) -> None:
        self._directory = building / _SPILL
        self._split = -1
        self._file: FileIO | None = None

    def read(self, place: Place, span: Span) -> npt.NDArray[np.uint8]:
        if self._file is None or place.split != self._split:
            self.close()
            self._file = FileIO(self._directory / str(place.split))
            self._split = place.split
        values = np.empty(span.length, np.uint8)
        done = 0
        while done < span.length:
            got = os.preadv(self._file.fileno(), [values[done:].data], span.position + done)
            if not got:
                raise EOFError(f"{self._file.name} ends at {span.position + done}")
            done += got
        return values

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Attempt:
    """Temporary directory of one attempt of a task; complete files are moved to their final place.

    Two attempts of a task, one after the other or in parallel, write the same bytes, so the first one wins.
    """

    def __init__(self, building: Path) -> None:
        self._building = building
        # Unique among all attempts on all machines that share the directory.
        self._directory = building / "attempts" / os.urandom(8).hex()
        self._count = 0

    @property
    def path(self) -> Path:
        """The next path to write to; it does not exist yet."""
        return self._directory / str(self._count)

    def publish(self, to: Path) -> None:
        target = self._building / to
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            try:
                self.path.rename(target)
            except OSError:
                if not target.exists():
                    raise
        self._count += 1

    def __enter__(self) -> Self:
        """Raises OutputError if the worker does not see the driver's directory: files written elsewhere would be
        lost."""
        if not self._building.is_dir():
            raise OutputError(
                f"{self._building}: is not visible to the worker on {platform.node()}; name an output on a disk "
                "that all workers share"
            )
        self._directory.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
