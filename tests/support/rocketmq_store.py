"""The derived files of a RocketMQ store, made message by message as its code does it: an oracle in plain Python.

Written from ConsumeQueue, BatchConsumeQueue, MappedFileQueue, IndexFile, IndexService, MultiDispatchUtils and
CommitLog#checkMessageAndReturnSize of RocketMQ 5.5.0; of ours only the decoder of one record is used.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from commitlogfs.store.record import Record

Files = dict[str, bytes]
"""Path below the store's root -> content."""

DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def java_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


class MappedFiles:
    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.files: dict[int, bytearray] = {}
        self.wrote = 0

    @property
    def last(self) -> int | None:
        return max(self.files, default=None)

    def last_mapped_file(self, start_offset: int) -> int:
        """MappedFileQueue#getLastMappedFile(startOffset): the last one, or a new one."""
        last = self.last
        create = None
        if last is None:
            create = start_offset - start_offset % self.file_size
        elif self.wrote == self.file_size:
            create = last + self.file_size
        if create is not None:
            self.files[create] = bytearray(self.file_size)
            self.wrote = 0
            return create
        assert last is not None
        return last

    def append(self, data: bytes) -> None:
        last = self.last
        assert last is not None
        self.files[last][self.wrote : self.wrote + len(data)] = data
        self.wrote += len(data)


class ConsumeQueue:
    def __init__(self, file_size: int) -> None:
        self.mapped = MappedFiles(-(-file_size // 20) * 20)
        self.max_physic_offset = -1

    def put(self, offset: int, size: int, tags_code: int, cq_offset: int) -> None:
        if offset + size <= self.max_physic_offset:
            return
        expected = cq_offset * 20
        first_create = not self.mapped.files
        base = self.mapped.last_mapped_file(expected)
        if first_create and cq_offset != 0 and self.mapped.wrote == 0:
            for _ in range(0, expected % self.mapped.file_size, 20):
                self.mapped.append(struct.pack(">qiq", 0, 0x7FFFFFFF, 0))
        if cq_offset != 0 and expected < self.mapped.wrote + base:
            return
        self.max_physic_offset = offset + size
        self.mapped.append(struct.pack(">qiq", offset, size, tags_code))


class BatchConsumeQueue:
    def __init__(self, file_size: int) -> None:
        self.mapped = MappedFiles(file_size)
        self.max_offset = -1

    def put(self, record: Record, tags_code: int, base: int, count: int) -> None:
        if base < 0 or count < 0 or record.physical_offset <= self.max_offset:
            return
        entry = struct.pack(
            ">qiqqqhii",
            record.physical_offset,
            record.total_size,
            tags_code,
            record.store_timestamp_ms,
            base,
            count,
            -1,
            0,
        )
        self.mapped.last_mapped_file(0)
        self.mapped.append(entry)
        self.max_offset = record.physical_offset


class IndexFile:
    def __init__(self, slots: int, capacity: int, end_offset: int, end_ms: int) -> None:
        self.slots, self.capacity = [0] * slots, capacity
        self.entries: list[tuple[int, int, int, int]] = []
        self.begin_offset = self.end_offset = max(0, end_offset)
        self.begin_ms = self.end_ms = max(0, end_ms)
        self.used = 0
        self.count = 1

    @property
    def full(self) -> bool:
        return self.count >= self.capacity

    def put(self, key: str, offset: int, store_ms: int) -> None:
        code = abs(java_hash(key))
        code = 0 if code == 1 << 31 else code
        slot = code % len(self.slots)
        former = self.slots[slot]
        seconds = int((store_ms - self.begin_ms) / 1000)
        seconds = 0 if self.begin_ms <= 0 else max(0, min(seconds, 0x7FFFFFFF))
        self.entries.append((code, offset, seconds, former))
        self.slots[slot] = self.count
        if self.count <= 1:
            self.begin_offset, self.begin_ms = offset, store_ms
        self.used += former == 0
        self.count += 1
        self.end_offset, self.end_ms = offset, store_ms

    def content(self) -> bytes:
        header = struct.pack(
            ">qqqqii", self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used, self.count
        )
        slots = struct.pack(f">{len(self.slots)}i", *self.slots)
        entries = bytes(20) + b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return header + slots + entries.ljust(20 * self.capacity, b"\0")


@dataclass
class RocketmqStore:
    """Dispatches records one after the other; `files()` is what a broker would have after a clean stop."""

    queue_file_size: int = 6_000_000
    batch_file_size: int = 46 * 300_000
    slots: int = 100
    capacity: int = 1000
    index_tags: bool = True
    multi_dispatch: bool = False
    lmq: bool = False
    batch_topics: frozenset[str] = frozenset()
    queues: dict[tuple[str, int], ConsumeQueue] = field(default_factory=dict)
    batch_queues: dict[tuple[str, int], BatchConsumeQueue] = field(default_factory=dict)
    index: list[IndexFile] = field(default_factory=list)

    def dispatch_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.dispatch(record)

    def dispatch(self, record: Record) -> None:
        properties = record.properties
        transaction = record.sys_flag & 12
        tags_code = java_hash(properties.get("TAGS", ""))
        if record.topic == "SCHEDULE_TOPIC_XXXX" and "DELAY" in properties:
            level = min(int(properties["DELAY"]), len(DELAYS_S))
            if level > 0:
                tags_code = 1000 * DELAYS_S[level - 1] + record.store_timestamp_ms
        if transaction in (0, 8):
            self._put_queues(record, properties, tags_code)
        self._build_index(record, properties, rollback=transaction == 12)

    def files(self) -> Files:
        """Index files by number, as their names are the wall clock's."""
        found = {
            f"{kind}/{topic}/{queue_id}/{base:020d}": bytes(content)
            for kind, queues in (("consumequeue", self.queues), ("batchconsumequeue", self.batch_queues))
            for (topic, queue_id), queue in queues.items()
            for base, content in queue.mapped.files.items()
        }
        return found | {f"index/{number}": file.content() for number, file in enumerate(self.index)}

    def _put_queues(self, record: Record, properties: dict[str, str], tags_code: int) -> None:
        topic, queue_id = record.topic, record.queue_id
        if topic in self.batch_topics:
            batch_queue = self.batch_queues.get((topic, queue_id)) or BatchConsumeQueue(self.batch_file_size)
            base, count = record.queue_offset, 1
            if "INNER_BASE" in properties and "INNER_NUM" in properties:
                base, count = int(properties["INNER_BASE"]), int(properties["INNER_NUM"])
            batch_queue.put(record, tags_code, base, count)
            if batch_queue.mapped.files:
                self.batch_queues[topic, queue_id] = batch_queue
            return
        self._put(topic, queue_id, record, tags_code, record.queue_offset)
        if not self._spreads(topic):
            return
        names, offsets = properties.get("INNER_MULTI_DISPATCH", ""), properties.get("INNER_MULTI_QUEUE_OFFSET", "")
        if not names.strip() or not offsets.strip():
            return
        name_list, offset_list = names.rstrip(",").split(","), offsets.rstrip(",").split(",")
        if len(name_list) != len(offset_list):
            return
        for name, offset in zip(name_list, offset_list, strict=True):
            if "/" not in name:
                lmq = self.lmq and name.startswith("%LMQ%")
                self._put(name, 0 if lmq else queue_id, record, tags_code, int(offset))

    def _spreads(self, topic: str) -> bool:
        system = topic.startswith(("%RETRY%", "rmq_sys_")) or topic == "SCHEDULE_TOPIC_XXXX"
        return self.multi_dispatch and not system

    def _put(self, topic: str, queue_id: int, record: Record, tags_code: int, cq_offset: int) -> None:
        queue = self.queues.setdefault((topic, queue_id), ConsumeQueue(self.queue_file_size))
        queue.put(record.physical_offset, record.total_size, tags_code, cq_offset)

    def _build_index(self, record: Record, properties: dict[str, str], *, rollback: bool) -> None:
        file = self._file_with_room()
        if record.physical_offset < file.end_offset or rollback:
            return
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [key for key in properties.get("KEYS", "").split(" ") if key]
        if self.index_tags and "TAGS" in properties:
            keys.append(f"T#{properties['TAGS']}")
        for key in keys:
            file = self._file_with_room()
            file.put(f"{record.topic}#{key}", record.physical_offset, record.store_timestamp_ms)

    def _file_with_room(self) -> IndexFile:
        if not self.index or self.index[-1].full:
            ends = (self.index[-1].end_offset, self.index[-1].end_ms) if self.index else (0, 0)
            self.index.append(IndexFile(self.slots, self.capacity, *ends))
        return self.index[-1]
