"""One thing broken at a time in a whole store: found, named with its place, and nothing else with it."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.rebuilding import rebuild_in_process
from support.records import make_record
from support.settled_logs import audit
from support.waiting import PATIENCE_S
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.broker.dispatch import DispatchRules, QueueKey
from commitlogfs.pipeline.broker.index_file import HEADER_BYTES, SLOT_BYTES, file_size
from commitlogfs.pipeline.broker.index_reader import IndexFileError
from commitlogfs.pipeline.broker.settings import BrokerSettings, load_broker_settings
from commitlogfs.pipeline.jobs import audit as job
from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.audit_page import write_page
from commitlogfs.pipeline.jobs.audit_tasks import AuditPlan, QueueTally, UnseenError, audit_queues
from commitlogfs.pipeline.jobs.findings import Kind
from commitlogfs.pipeline.log.errors import LocationError, SegmentGoneError
from commitlogfs.pipeline.log.segments import list_segments

SEGMENT = 1 << 16
SPLIT = 20_000
MESSAGES = 1000
SETTINGS = BrokerSettings(queue_file_size=20 * 50, index_slots=100, index_capacity=400, segment_size=SEGMENT)
QUEUES = 3
INDEX_FILE_BYTES = file_size(SETTINGS.index_slots, SETTINGS.index_capacity)


@dataclass(frozen=True)
class Store:
    root: Path
    log: WrittenLog

    def queue_entry(self, number: int) -> tuple[Path, int]:
        """File and position of the entry of message `number`."""
        at = number // QUEUES * 20
        base = at - at % SETTINGS.queue_file_size
        return self.root / f"consumequeue/T/{number % QUEUES}/{base:020d}", at - base

    def index_files(self) -> list[Path]:
        return sorted((self.root / "index").iterdir())


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def message(number: int, *, crc: bool = False) -> Callable[[int], bytes]:
    return lambda offset: make_record(
        offset,
        topic=b"T",
        queue_id=number % QUEUES,
        queue_offset=number // QUEUES,
        body=b"body %d" % number,
        properties=b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02TAGS\x01t%d\x02" % (number, number, number % 5),
        property_crc=crc,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Not to be changed."""
    directory = tmp_path_factory.mktemp("whole")
    root = directory / "store"
    log = write_log(root / "commitlog", SEGMENT, [message(n, crc=n % 2 == 0) for n in range(MESSAGES)])
    building = directory / "building"
    rebuild_in_process(log.directory, building, SETTINGS, SPLIT)
    (building / "out/consumequeue").rename(root / "consumequeue")
    (building / "index").rename(root / "index")
    for file in list((root / "index").iterdir()):
        file.rename(file.with_name(f"{int(file.name):017d}"))
    return Store(root, log)


@pytest.fixture
def store(whole: Store, tmp_path: Path) -> Store:
    root = shutil.copytree(whole.root, tmp_path / "store")
    log = copy(whole.log)
    log.directory, log.offsets = root / "commitlog", list(whole.log.offsets)
    return Store(root, log)


def audited(spark: SparkSession, store: Store, log: str | None = None) -> AuditReport:
    return audit(spark, log or str(store.log.directory), store_root=store.root, settings=SETTINGS, split_size=SPLIT)


def kinds(report: AuditReport) -> dict[str, int]:
    return {str(kind): count for kind, count in report.findings.counts.items()}


def test_a_whole_store_has_no_findings(spark: SparkSession, store: Store) -> None:
    report = audited(spark, store)
    assert kinds(report) == {}
    assert report.is_whole
    assert (report.found.records, report.queue_entries, report.queues) == (MESSAGES, MESSAGES, QUEUES)
    assert report.found.keys == 3 * MESSAGES
    assert report.compared == ("log", "queues", "index")


def test_a_flipped_byte_of_a_body(job_spark: SparkSession, store: Store) -> None:
    offset = store.log.offsets[201]
    store.log.write_at(offset + 90, b"X")
    report = audited(job_spark, store)
    assert kinds(report) == {"body-crc": 1}
    (finding,) = report.findings.all_shown()
    assert (finding.kind, finding.offset) == (Kind.BODY_CRC, offset)
    assert finding.detail == "a body of 8 bytes, queue T/0"


def test_a_flipped_byte_of_a_record_with_a_crc_of_its_own(job_spark: SparkSession, store: Store) -> None:
    offset = store.log.offsets[200]
    store.log.write_at(offset + 41, b"\x01")  # the birth time: neither queue nor index know it
    report = audited(job_spark, store)
    assert kinds(report) == {"property-crc": 1}
    assert report.findings.all_shown()[0].offset == offset


def test_a_wrong_physical_offset(job_spark: SparkSession, store: Store) -> None:
    offset = store.log.offsets[333]
    store.log.write_at(offset + 28, struct.pack(">q", offset + 1))
    report = audited(job_spark, store)
    assert kinds(report) == {"damage": 1, "queue-jump": 1, "queue-entry-stray": 1, "index-entry-stray": 3}
    assert report.findings.shown[Kind.DAMAGE][0].offset == offset
    assert "another log offset" in report.findings.shown[Kind.DAMAGE][0].detail


def test_a_truncated_record(job_spark: SparkSession, store: Store) -> None:
    offset = store.log.offsets[100]
    store.log.write_at(offset + 60, bytes(len(message(100)(offset)) - 60))
    report = audited(job_spark, store)
    assert report.findings.shown[Kind.DAMAGE][0].offset == offset
    assert kinds(report)["queue-entry-stray"] == 1


def test_a_topic_for_which_there_can_be_no_directory(job_spark: SparkSession, store: Store) -> None:
    offset = store.log.offsets[41]
    store.log.write_at(offset + 88 + len(b"body 41") + 1, b"/")
    report = audited(job_spark, store)
    assert [one.offset for one in report.findings.shown[Kind.DAMAGE]] == [offset]


def test_an_entry_that_points_elsewhere(job_spark: SparkSession, store: Store) -> None:
    path, at = store.queue_entry(50)
    patch(path, at, struct.pack(">q", store.log.offsets[51]))
    report = audited(job_spark, store)
    assert kinds(report) == {"queue-entry-wrong": 1}
    (finding,) = report.findings.all_shown()
    assert (finding.offset, finding.where) == (store.log.offsets[50], f"T/{50 % QUEUES}")


@pytest.mark.parametrize(("at", "what"), [(8, "size"), (12, "tags code")])
def test_an_entry_that_says_something_else(job_spark: SparkSession, store: Store, at: int, what: str) -> None:
    path, place = store.queue_entry(70)
    patch(path, place + at, b"\x01")
    assert kinds(audited(job_spark, store)) == {"queue-entry-wrong": 1}


def test_an_entry_that_is_missing(job_spark: SparkSession, store: Store) -> None:
    path, at = store.queue_entry(MESSAGES - 1)
    patch(path, at, bytes(20))
    report = audited(job_spark, store)
    assert kinds(report) == {"queue-entry-missing": 1}
    assert report.findings.all_shown()[0].offset == store.log.offsets[-1]


def test_the_last_record_is_truncated(job_spark: SparkSession, store: Store) -> None:
    """Where the log ends then, the queue and the index know better, and what is left of the record is found."""
    offset = store.log.offsets[-1]
    store.log.write_at(offset + 40, bytes(store.log.end - offset - 40))
    assert kinds(audited(job_spark, store)) == {"unread-end": 1, "queue-entry-stray": 1, "index-entry-stray": 3}


@pytest.mark.parametrize("bit", [41, 61])
def test_a_queue_offset_beyond_all_files(job_spark: SparkSession, store: Store, bit: int) -> None:
    offset = store.log.offsets[30]
    store.log.write_at(offset + 20, struct.pack(">q", 30 // QUEUES + (1 << bit)))
    assert kinds(audited(job_spark, store))["queue-jump"] >= 1


@contextmanager
def running_broker(root: Path) -> Iterator[None]:
    """Another process holds the lock of this store."""
    lock = root / "lock"
    lock.touch()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl; f = open({str(lock)!r}, 'r+b'); fcntl.lockf(f, 2, 1, 0); print(); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
    finally:
        holder.communicate(b"\n", timeout=PATIENCE_S)


def test_beside_a_running_broker_only_what_is_new_may_be_missing(job_spark: SparkSession, store: Store) -> None:
    with running_broker(store.root):
        path, at = store.queue_entry(MESSAGES - 1)
        patch(path, at, bytes(20))
        report = audited(job_spark, store)
        assert report.is_whole
        assert report.queue_entries_behind == 1
        path, at = store.queue_entry(9)
        patch(path, at, bytes(20))
        assert kinds(audited(job_spark, store)) == {"queue-entry-missing": 1}


# --- store times ------------------------------------------------------------------------------------------

CUT_MS = 1_700_000_000_000


@pytest.mark.parametrize("split_size", [SEGMENT, 300])
def test_older_messages_after_a_cut_are_read_and_noted(
    job_spark: SparkSession, tmp_path: Path, split_size: int
) -> None:
    """Fifty messages, cut off, and ten later ones of the same sizes: the other forty follow at a record's border.
    The recovery of RocketMQ 5.5.0 reads them, too."""

    def stored(number: int, store_ms: int) -> Callable[[int], bytes]:
        return lambda offset: make_record(offset, queue_offset=number, store_ms=store_ms, body=b"b%02d" % number)

    old = [stored(number, CUT_MS + number) for number in range(50)]
    new = [stored(number, CUT_MS + 60_000 + number) for number in range(10)]
    whole = write_log(tmp_path / "whole", SEGMENT, old)
    log = write_log(tmp_path / "log", SEGMENT, [*new, *old[10:]])

    def notes(of: WrittenLog) -> list[str]:
        report = audit(
            job_spark, str(of.directory), settings=BrokerSettings(segment_size=SEGMENT), split_size=split_size
        )
        assert (report.found.records, kinds(report)) == (50, {})
        return report.notes

    assert notes(whole) == []
    (note,) = notes(log)
    assert note.startswith(
        f"store times fall at 1 place, log offset {log.offsets[10]} (from 2023-11-14 22:14:20 to 2023-"
    )


# --- delayed messages -----------------------------------------------------------------------------------------

DELAYED = 400


def delayed(number: int) -> Callable[[int], bytes]:
    """Each level has a queue."""
    level = number % 4 + 1
    return lambda offset: make_record(
        offset,
        topic=b"SCHEDULE_TOPIC_XXXX",
        queue_id=level - 1,
        queue_offset=number // 4,
        properties=b"DELAY\x01%d\x02" % level,
        store_ms=1_700_000_000_000 + 7 * number,
    )


def with_delays(*seconds: int) -> BrokerSettings:
    rules = DispatchRules(delays_ms=tuple(1000 * delay for delay in seconds))
    return BrokerSettings(
        rules, segment_size=SEGMENT, queue_file_size=SETTINGS.queue_file_size, index_refused="none"
    )


@pytest.fixture
def delays(tmp_path: Path) -> Store:
    """The queues are those of the levels 1s 5s 10s 30s."""
    root = tmp_path / "store"
    log = write_log(root / "commitlog", SEGMENT, [delayed(n) for n in range(DELAYED)])
    rebuild_in_process(log.directory, tmp_path / "building", with_delays(1, 5, 10, 30), SPLIT)
    (tmp_path / "building/out/consumequeue").rename(root / "consumequeue")
    return Store(root, log)


def test_delays_that_were_changed_later_are_a_note_for_each_level(job_spark: SparkSession, delays: Store) -> None:
    def audited_with(*seconds: int) -> AuditReport:
        log, settings = str(delays.log.directory), with_delays(*seconds)
        return audit(job_spark, log, store_root=delays.root, settings=settings, split_size=SPLIT)

    def notes(report: AuditReport) -> list[str]:
        return [note for note in report.notes if "delay level" in note]

    assert (kinds(audited_with(1, 5, 10, 30)), notes(audited_with(1, 5, 10, 30))) == ({}, [])
    report = audited_with(1, 5, 20, 30)
    assert (kinds(report), report.queue_entries) == ({}, DELAYED)
    (note,) = notes(report)
    assert note.startswith("delay level 3: 100 messages are due 10 s after they were stored, not 20 s: ")
    fewer = notes(audited_with(1, 5))
    assert [note.partition(":")[0] for note in fewer] == ["delay level 3", "delay level 4"]

    # One of another change, one that is damaged.
    queue = delays.root / "consumequeue/SCHEDULE_TOPIC_XXXX/2" / ("0" * 20)
    patch(queue, 12, struct.pack(">q", 1_700_000_000_000 + 7 * 2 + 60_000))
    patch(queue, 32, struct.pack(">q", 1_700_000_000_000 + 7 * 6 + 10_001))
    report = audited_with(1, 5, 20, 30)
    assert kinds(report) == {"queue-entry-wrong": 1}
    assert report.findings.all_shown()[0].offset == delays.log.offsets[6]
    assert "98 messages are due 10 s and 1 message is due 60 s after they were stored" in notes(report)[0]


# --- queues of batches --------------------------------------------------------------------------------------

BATCHES = 60
BATCH_SETTINGS = replace(SETTINGS, rules=DispatchRules(batch_topics=frozenset({"B"})), index_refused="none")


def batch(number: int) -> Callable[[int], bytes]:
    """A single message, then one with a batch of three, and so on."""
    base, single = number // 2 * 4 + number % 2, number % 2 == 0
    properties = b"" if single else b"INNER_BASE\x01%d\x02INNER_NUM\x013\x02" % base
    return lambda offset: make_record(
        offset,
        topic=b"B",
        queue_id=0,
        queue_offset=base,
        properties=properties,
        sys_flag=0 if single else 1 << 7,
        body=b"body",
    )


@pytest.fixture
def batches(tmp_path: Path) -> Store:
    root = tmp_path / "store"
    log = write_log(root / "commitlog", SEGMENT, [batch(n) for n in range(BATCHES)])
    building = tmp_path / "building"
    rebuild_in_process(log.directory, building, BATCH_SETTINGS, SPLIT)
    (building / "out/batchconsumequeue").rename(root / "batchconsumequeue")
    return Store(root, log)


def batches_audited(spark: SparkSession, batches: Store) -> AuditReport:
    return audit(spark, str(batches.log.directory), store_root=batches.root, settings=BATCH_SETTINGS)


def test_any_wrong_part_of_a_batch_entry_is_found(job_spark: SparkSession, batches: Store) -> None:
    """The last byte of each field, of a single message's entry and of a batch's."""
    places = [(20 + number, at) for number, at in enumerate((11, 19, 27, 35, 37, 41, 11, 19, 27, 35, 37, 45, 41))]
    for number, at in places:
        patch(batches.root / "batchconsumequeue/B/0" / ("0" * 20), number * 46 + at, b"\x05")
    report = batches_audited(job_spark, batches)
    assert kinds(report) == {"queue-entry-wrong": len(places)}
    assert [f.offset for f in report.findings.all_shown()] == [batches.log.offsets[number] for number, _ in places]
    assert "size, tags code, store time, queue offset, count and rest" in report.findings.all_shown()[0].detail


def test_a_batch_queue_is_compared_with_its_log(spark: SparkSession, batches: Store) -> None:
    report = batches_audited(spark, batches)
    assert (report.is_whole, report.queue_entries) == (True, BATCHES)
    with running_broker(batches.root):
        patch(batches.root / "batchconsumequeue/B/0" / ("0" * 20), (BATCHES - 1) * 46, bytes(46))
        report = batches_audited(spark, batches)
        assert (kinds(report), report.queue_entries_behind) == ({}, 1)
        patch(batches.root / "batchconsumequeue/B/0" / ("0" * 20), 9 * 46, bytes(46))
        assert kinds(batches_audited(spark, batches)) == {"queue-entry-missing": 1}


def test_batches_in_a_log_without_its_store_are_no_jumps(job_spark: SparkSession, batches: Store) -> None:
    assert audit(job_spark, str(batches.log.directory), settings=BrokerSettings(segment_size=SEGMENT)).is_whole


@contextmanager
def hidden_from_workers(path: Path) -> Iterator[None]:
    """On the driver under its name, while workers look for it: as on machines that do not share the disk."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


def test_queues_that_only_the_driver_sees_are_not_compared_by_nobody(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = job._Run._audit_log

    def unseen(run: job._Run, split_size: int) -> dict[QueueKey, QueueTally]:
        with hidden_from_workers(store.root / "consumequeue"):
            return real(run, split_size)

    monkeypatch.setattr(job._Run, "_audit_log", unseen)
    with pytest.raises(UnseenError, match="consumequeue/T/0: is not visible to every worker"):
        audited(spark, store)
    plan = AuditPlan(
        list_segments(str(store.log.directory)), store.log.end, SETTINGS.rules, store.root / "elsewhere", None, True
    )
    with pytest.raises(UnseenError, match="elsewhere/consumequeue/T/0: is not visible to every worker"):
        list(audit_queues([QueueKey("T", 0, False)], plan=plan, tallies={}))


def test_what_is_gone_beside_a_running_broker_must_have_been_deleted(
    job_spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = job._Run._audit_log
    hidden = store.log.segment_at(SEGMENT)

    def unseen(run: job._Run, split_size: int) -> dict[QueueKey, QueueTally]:
        with hidden_from_workers(hidden):
            return real(run, split_size)

    def deleted(run: job._Run, split_size: int) -> dict[QueueKey, QueueTally]:
        store.log.segment_at(0).unlink()
        return real(run, split_size)

    monkeypatch.setattr(job, "broker_pid", lambda _: 1)
    monkeypatch.setattr(job._Run, "_audit_log", unseen)
    with pytest.raises(SegmentGoneError, match=f"segment {SEGMENT:020d}: does not exist .* still begins at 0"):
        audited(job_spark, store)
    hidden = store.index_files()[1]
    with pytest.raises(UnseenError, match=f"{hidden.name}: is not visible to every worker"):
        audited(job_spark, store)
    monkeypatch.setattr(job._Run, "_audit_log", deleted)
    assert any("parts were deleted by the broker" in note for note in audited(job_spark, store).notes)


def test_a_store_named_from_the_working_directory(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have another one."""
    monkeypatch.chdir(store.root.parent)
    report = audit(spark, "store/commitlog", store_root=Path("store"), settings=SETTINGS, split_size=SPLIT)
    assert report.is_whole
    assert (report.queue_entries, report.found.keys) == (MESSAGES, 3 * MESSAGES)


def test_an_entry_too_many(job_spark: SparkSession, store: Store) -> None:
    path, at = store.queue_entry(MESSAGES - 1)
    patch(path, at + 20, struct.pack(">qiq", store.log.offsets[5] + 3, 99, 0))
    assert kinds(audited(job_spark, store)) == {"queue-entry-stray": 1}


def test_a_queue_that_is_missing(job_spark: SparkSession, store: Store) -> None:
    (store.root / "consumequeue/T/1").rename(store.root / "elsewhere")
    report = audited(job_spark, store)
    assert set(kinds(report)) == {"queue-missing"}
    deleted = audit(
        job_spark,
        str(store.log.directory),
        store_root=store.root,
        settings=SETTINGS,
        split_size=SPLIT,
        known_topics=frozenset({"Other"}),
    )
    assert deleted.is_whole
    assert any("deleted" in note for note in deleted.notes)


def test_a_missing_index_entry(job_spark: SparkSession, store: Store) -> None:
    """The key of another record stands where one ought to be."""
    entry = HEADER_BYTES + SETTINGS.index_slots * SLOT_BYTES + 20 * 7
    patch(store.index_files()[0], entry, struct.pack(">i", 12345))
    report = audited(job_spark, store)
    found = kinds(report)
    assert found.pop("index-broken") == 1
    assert found == {"index-entry-missing": 1, "index-entry-stray": 1}


def test_an_index_file_that_is_missing(job_spark: SparkSession, store: Store) -> None:
    store.index_files()[1].unlink()
    report = audited(job_spark, store)
    assert kinds(report) == {"index-entry-missing": SETTINGS.index_capacity - 1}


def test_a_chain_that_leads_nowhere(job_spark: SparkSession, store: Store) -> None:
    patch(store.index_files()[0], HEADER_BYTES + 4 * 17, struct.pack(">i", 1))
    assert set(kinds(audited(job_spark, store))) == {"index-broken"}


@pytest.mark.parametrize("size", [0, 5, INDEX_FILE_BYTES - 20, INDEX_FILE_BYTES + 20])
@pytest.mark.parametrize("number", [0, 3, -1])
def test_an_index_file_of_a_wrong_size_is_one_finding(
    job_spark: SparkSession, store: Store, number: int, size: int
) -> None:
    files = store.index_files()
    os.truncate(files[number], size)
    report = audited(job_spark, store)
    assert kinds(report) == {"index-broken": 1}
    (finding,) = report.findings.all_shown()
    assert finding.where == files[number].name
    assert f"is {size:,} bytes long, not {INDEX_FILE_BYTES:,}" in finding.detail
    assert report.compared == ("log", "queues", "index")

    entry = HEADER_BYTES + SETTINGS.index_slots * SLOT_BYTES + 20 * 7
    patch(files[5], entry, struct.pack(">i", 12345))
    expected = {"index-entry-missing": 1, "index-entry-stray": 1, "index-broken": 2}
    assert kinds(audited(job_spark, store)) == expected, "other files are compared"


@pytest.mark.parametrize("size", [0, 5])
def test_the_only_index_file_may_have_a_wrong_size(job_spark: SparkSession, store: Store, size: int) -> None:
    first, *others = store.index_files()
    for file in others:
        file.unlink()
    os.truncate(first, size)
    report = audited(job_spark, store)
    assert kinds(report) == {"index-broken": 1}
    assert report.findings.all_shown()[0].detail.endswith("none of its keys is compared")


def test_an_index_file_that_a_broker_is_making_is_no_finding(job_spark: SparkSession, store: Store) -> None:
    last = store.index_files()[-1]
    last.with_name(f"{int(last.name) + 1:017d}").touch()
    with running_broker(store.root):
        assert kinds(audited(job_spark, store)) == {}
    assert kinds(audited(job_spark, store)) == {"index-broken": 1}


def test_an_index_of_another_size_is_refused(job_spark: SparkSession, store: Store) -> None:
    """Where all files have the size of another configuration, the settings are another broker's."""
    first, second, *others = store.index_files()
    for file in (second, *others):
        os.truncate(file, 1000)
    os.truncate(first, 0)
    with pytest.raises(
        IndexFileError, match=rf"{second.name}: is not .* maxHashSlotNum=100 .*this broker's broker.conf"
    ):
        audited(job_spark, store)


def test_an_index_in_rocksdb_is_not_compared(job_spark: SparkSession, store: Store) -> None:
    shutil.rmtree(store.root / "index")
    conf = store.root / "broker.conf"
    conf.write_text("mappedFileSizeConsumeQueue=1000\nindexFileWriteEnable=false\nindexRocksDBEnable=true\n")
    settings = replace(load_broker_settings(conf), segment_size=SEGMENT)
    log = str(store.log.directory)
    report = audit(job_spark, log, store_root=store.root, settings=settings, split_size=SPLIT)
    assert (kinds(report), report.compared) == ({}, ("log", "queues"))
    (note,) = report.notes
    assert note.startswith("the index was not compared: indexFileWriteEnable = false: the index")


def test_a_segment_in_two_places(job_spark: SparkSession, store: Store, tmp_path: Path) -> None:
    twin = tmp_path / "disk2"
    twin.mkdir()
    name = store.log.segment_at(SEGMENT).name
    (twin / name).write_bytes((store.log.directory / name).read_bytes())
    report = audited(job_spark, store, f"{store.log.directory},{twin}")
    assert kinds(report) == {"duplicate-segment": 1}
    assert report.findings.all_shown()[0].where == name


def test_a_hole_in_the_log(job_spark: SparkSession, store: Store) -> None:
    gone = store.log.segment_at(SEGMENT)
    lost = sum(1 for offset in store.log.offsets if SEGMENT <= offset < 2 * SEGMENT)
    gone.unlink()
    report = audited(job_spark, store)
    found = kinds(report)
    assert found["gap"] == 1
    assert report.findings.shown[Kind.GAP][0].offset == SEGMENT
    assert found["queue-entry-stray"] == lost
    assert found["queue-jump"] == QUEUES


def test_damage_at_every_border_of_splits_is_told_once(spark: SparkSession, store: Store) -> None:
    broken = [next(offset for offset in store.log.offsets if offset >= at) for at in range(SPLIT, 3 * SPLIT, SPLIT)]
    for offset in broken:
        store.log.write_at(offset + 4, b"\0\0\0\0")
    assert [finding.offset for finding in audited(spark, store).findings.shown[Kind.DAMAGE]] == broken


@pytest.mark.parametrize(("old", "new"), [(60, 90), (900, 60)])
def test_a_topic_that_was_deleted_and_made_again_is_no_finding(
    job_spark: SparkSession, tmp_path: Path, old: int, new: int
) -> None:
    """The old records are in the log still; the queue has the new ones, by the broker's rules in their places."""
    root = tmp_path / "store"
    log = write_log(root / "commitlog", SEGMENT, [message(n) for n in [*range(old), *range(new)]])
    fresh = write_log(tmp_path / "fresh", SEGMENT, [message(n) for n in range(old)])
    building = tmp_path / "building"
    settings = BrokerSettings(
        rules=SETTINGS.rules.__class__(topic_starts={"T": log.offsets[old]}),
        queue_file_size=SETTINGS.queue_file_size,
        index_refused="none",
    )
    assert fresh.end == log.offsets[old]
    rebuild_in_process(log.directory, building, settings, SPLIT)
    (building / "out/consumequeue").rename(root / "consumequeue")
    report = audit(
        job_spark,
        str(log.directory),
        store_root=root,
        settings=BrokerSettings(queue_file_size=SETTINGS.queue_file_size, index_refused="none"),
        split_size=SPLIT,
    )
    assert kinds(report) == {}
    assert any("begins again at queue offset 0" in note for note in report.notes)


def test_the_report_as_json_and_as_a_page(job_spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.log.write_at(store.log.offsets[7] + 90, b"X")
    report = audited(job_spark, store)
    shown = json.loads(json.dumps(report.to_json()))
    assert shown["findings"]["counts"] == {"body-crc": 1}
    assert shown["whole"] is False
    page = tmp_path / "audit.html"
    write_page(report, page)
    text = page.read_text()
    assert "body-crc" in text
    assert f"{store.log.offsets[7]:,}" in text
    assert text.count("<svg") >= 2
    assert "<script" not in text
    assert set(re.findall(r"https?://[^/\"]+", text)) <= {"http://www.w3.org"}, "names of namespaces only"


def test_nothing_to_audit_is_refused(job_spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="holds no segments"):
        audit(job_spark, str(tmp_path))
    with pytest.raises(LocationError, match="No such file"):
        audit(job_spark, str(tmp_path / "absent"))
