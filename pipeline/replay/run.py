"""One run of a replay: from its position to the end of the range."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.pipeline.bodies.body_options import BodyOptions
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS, SYSTEM_PREFIX, SYSTEM_TOPICS
from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.log.locations import absolute_places, without_credentials
from commitlogfs.pipeline.log.scanner import Damage
from commitlogfs.pipeline.replay.exported import Export, ExportSource
from commitlogfs.pipeline.replay.frames import FRAME_BYTES, RETRY_PREFIX, Frame, Queue, frames
from commitlogfs.pipeline.replay.logged import LogSource
from commitlogfs.pipeline.replay.position import Position, PositionFile
from commitlogfs.pipeline.replay.source import Source, bytes_from
from commitlogfs.pipeline.source.options import Edge, ReadOptions, parse_options
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from commitlogfs.pipeline.replay.client import Client

_LIGHT_QUEUES: Final = b"INNER_MULTI_DISPATCH\x01"
"""A property: the broker dispatches such a message to light queues only if it was not sent in a batch."""
_THREADS: Final = 8
"""Queues that are sent to at once."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """`options` are those of the table; `names` has the target topics that differ from their sources."""

    options: ReadOptions
    name_server: str
    names: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None
    """Messages per second, at most."""

    @classmethod
    def of(
        cls, options: Mapping[str, str], name_server: str, names: Mapping[str, str], rate: float | None
    ) -> "ReplayRequest":
        """Raises OptionError, UsageError."""
        parsed = parse_options(options, streaming=False)
        if parsed.aggregate:
            raise UsageError("replay: sends messages, and no counts")
        for topic in sorted(parsed.topics or ()):
            if _is_reserved(topic):
                raise UsageError(f"replay: {topic}: a client may not send to it; leave it out")
        for target in names.values():
            if _is_reserved(target):
                raise UsageError(f"--map-topic: {target}: a client may not send to it; choose another one")
        if parsed.start is Edge.LATEST:
            raise OptionError("option startingOffsets = 'latest': must be earliest or a log offset")
        bodies = BodyOptions(decompress=True, unfold=True, limit=parsed.bodies.limit)
        parsed = replace(parsed, path=absolute_places(parsed.path), bodies=bodies)
        return cls(parsed, name_server, dict(names), rate)

    def identity(self) -> dict[str, Any]:
        """The source, the target and the selection: a position is valid for these only."""
        options = self.options
        return {
            "log": without_credentials(options.path),
            "target": self.name_server,
            "mapping of topics": dict(self.names),
            "topics": None if options.topics is None else sorted(options.topics),
            "pattern of topics": options.topic_pattern,
            "first store time": options.start_ms,
            "last store time": options.end_ms,
        }


def _is_reserved(topic: str) -> bool:
    name = topic.encode()
    return name in HALF_TOPICS | SYSTEM_TOPICS or name.startswith((SYSTEM_PREFIX, RETRY_PREFIX.encode()))


@dataclass(slots=True)
class ReplayResult:
    """Figures of one run, or of what one would do."""

    begin_offset: int | None = None
    next_offset: int | None = None
    """Log offset after the last message that is known to be in the target cluster."""
    messages: int = 0
    bytes: int = 0
    """Size of the records that were sent."""
    topics: Counter[str] = field(default_factory=Counter)
    """Messages by topic of the target."""
    left_out: int = 0
    repeated: int = 0
    weak: int = 0
    damages: list[Damage] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "topics": dict(sorted(self.topics.items()))}


def plan(request: ReplayRequest, position: Position, export: Export | None = None) -> Source:
    """The part of the log, or of its export, that is left to send. Raises RefusedError, and the errors of reading
    the log."""
    if export is not None:
        return ExportSource.plan(export, request.options, position.offset, position.last)
    return LogSource.plan(request.options, position.offset, position.last)


def count(request: ReplayRequest, source: Source) -> ReplayResult:
    """Figures of a run over this source; nothing is sent."""
    result = ReplayResult(damages=source.damages)
    for frame in _frames(request, source):
        _add(result, frame)
    return result


def replay(
    request: ReplayRequest,
    source: Source,
    position: PositionFile,
    client: "Client",
    on_progress: Callable[[int, int], None] | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> ReplayResult:
    """Send the messages of `source`, frame by frame, each recorded before the next one begins. Messages of one
    queue are sent in their order.

    Raises the errors of reading the log, TargetError, RefusedError, OutputError. Whatever is raised, the position
    is after the last whole frame: at most one frame is sent again by the next run.
    """
    ranges = source.ranges
    result = ReplayResult(begin_offset=ranges[0][0] if ranges else None, damages=source.damages)
    result.next_offset = position.position.offset
    before, begun = position.position.messages, clock.monotonic()
    queues = dict(position.position.queues)
    total = bytes_from(ranges)
    try:
        with ThreadPoolExecutor(_THREADS, "replay") as threads:
            for frame in _frames(request, source):
                _require_same_queues(client, frame, queues, position.position.offset)
                _send_frame(client, threads, frame)
                _add(result, frame)
                last = source.fingerprint(frame.end_offset)
                position.record(Position(frame.end_offset, before + result.messages, queues, last))
                result.next_offset = frame.end_offset
                if on_progress is not None:
                    on_progress(total - bytes_from(ranges, frame.end_offset), total)
                if request.rate is not None:
                    clock.sleep(max(0.0, begun + result.messages / request.rate - clock.monotonic()))
        if ranges:
            result.next_offset = max(ranges[-1][1], result.next_offset or 0)
            last = source.fingerprint(result.next_offset)
            position.record(Position(result.next_offset, before + result.messages, queues, last))
    finally:
        result.repeated, result.weak = client.repeated, client.weak
    return result


def _require_same_queues(
    client: "Client", frame: Frame, queues: dict[str, Sequence[str]], offset: int | None
) -> None:
    """Adds the queues of topics that are new. Raises RefusedError if a topic has others than before: a source queue
    would continue in another queue, and consumers could get its messages in another order."""
    for target in sorted({queue.target for queue in frame.records}):
        names = client.queue_names(target)
        if list(queues.setdefault(target, names)) != names:
            raise RefusedError(
                f"topic {target}: has {len(names)} queues in the target cluster, and had others, "
                f"{len(queues[target])}, when the replay began; wait for the brokers that are missing, or begin "
                f"another replay with another --position and --starting-offsets {offset}"
            )


def _send_frame(client: "Client", threads: ThreadPoolExecutor, frame: Frame) -> None:
    """To all queues at once. Raises what one of them raises, after all have ended."""
    sends = [threads.submit(_send, client, *item) for item in frame.records.items()]
    try:
        for send in sends:
            send.result()
    except BaseException:
        client.give_up()
        raise


def _send(client: "Client", queue: Queue, records: Sequence[bytes]) -> None:
    """In batches that a broker takes; large messages, and those with light queues, on their own."""
    batch: list[bytes] = []
    size = 0
    for record in records:
        is_single = _LIGHT_QUEUES in record
        if batch and (is_single or size + len(record) > FRAME_BYTES):
            client.send(queue.target, queue.queue_id, batch)
            batch, size = [], 0
        batch.append(record)
        size = FRAME_BYTES if is_single else size + len(record)
    if batch:
        client.send(queue.target, queue.queue_id, batch)


def _add(result: ReplayResult, frame: Frame) -> None:
    result.messages += frame.messages
    result.bytes += frame.size
    result.left_out += frame.left_out
    for queue, records in frame.records.items():
        result.topics[queue.target] += len(records)


def _frames(request: ReplayRequest, source: Source) -> Iterator[Frame]:
    return frames(source.rows(), request.names, request.options.topics or frozenset())
