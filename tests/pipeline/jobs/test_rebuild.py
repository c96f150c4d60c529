"""The rebuild job on a local Spark: the same bytes, all of the output or none, one line for what a worker finds."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.rebuilding import read_files
from support.records import make_record
from support.rocketmq_store import RocketmqStore
from support.settled_logs import apply_rebuilt, rebuild
from support.written_logs import Maker, WrittenLog, write_log

from commitlogfs.pipeline.broker.dispatch import DispatchRules
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs import rebuild as job
from commitlogfs.pipeline.jobs.rebuild import RebuildRefusedError
from commitlogfs.pipeline.jobs.rebuild_tasks import decode_splits
from commitlogfs.pipeline.log.errors import OutputError, PipelineError
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.store.record import decode

SEGMENT = 1 << 14
MS = 1_700_000_000_000
SETTINGS = BrokerSettings(queue_file_size=20 * 50, index_slots=31, index_capacity=100)


def message(number: int) -> Maker:
    properties = f"UNIQ_KEY\x01{number}\x02KEYS\x01k{number % 7} x\x02TAGS\x01T{number % 3}\x02".encode()
    return lambda offset: make_record(
        offset,
        topic=(b"A", b"B")[number % 2],
        queue_id=number // 2 % 3,
        queue_offset=number // 6,
        properties=properties,
        store_ms=MS + 10 * number,
    )


def plain(offset: int) -> bytes:
    return make_record(offset, properties=b"", queue_offset=0)


def oracle_files(log: WrittenLog, settings: BrokerSettings = SETTINGS) -> dict[str, bytes]:
    """Index files by number."""
    store = RocketmqStore(settings.queue_file_size, slots=settings.index_slots, capacity=settings.index_capacity)
    for offset in log.offsets:
        store.dispatch(decode(log.segment_at(offset).read_bytes()[offset % SEGMENT :], offset))
    return store.files()


def rebuilt_files(output: Path) -> dict[str, bytes]:
    found = read_files(output)
    del found["rebuild.json"]
    index = sorted(name for name in found if name.startswith("index/"))
    return {name: data for name, data in found.items() if name not in index} | {
        f"index/{number}": found[name] for number, name in enumerate(index)
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    return write_log(tmp_path_factory.mktemp("log"), SEGMENT, [message(number) for number in range(600)])


@pytest.mark.parametrize("split_size", [1000, SEGMENT])
def test_the_output_is_the_brokers(spark: SparkSession, log: WrittenLog, tmp_path: Path, split_size: int) -> None:
    told: list[tuple[int, int]] = []
    result = rebuild(
        spark,
        str(log.directory),
        tmp_path / "out",
        settings=SETTINGS,
        split_size=split_size,
        zone=UTC,
        on_progress=lambda done, known: told.append((done, known)),
    )
    assert rebuilt_files(tmp_path / "out") == oracle_files(log)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"], "nothing else is left"
    assert (result.records, result.queues, result.queue_entries, result.misplaced) == (600, 6, 600, 0)
    assert (result.end_offset, result.damages) == (log.end, ())
    assert result.index_entries == 600 * 4
    assert len(result.index_files) == -(-600 * 4 // 99)
    assert result.index_files[:2] == ("20231114221320000", "20231114221320240")
    assert told[-1][0] == told[-1][1] > 0


def test_either_part_alone(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    expected = oracle_files(log)
    parts: dict[str, dict[str, Any]] = {"consumequeue": {"index": False}, "index": {"consumequeue": False}}
    for part, options in parts.items():
        rebuild(job_spark, str(log.directory), tmp_path / part, settings=SETTINGS, **options)
        found = rebuilt_files(tmp_path / part)
        assert found == {name: data for name, data in expected.items() if name.startswith(part)}


@pytest.mark.parametrize(
    "makers",
    [
        [plain],  # no keys at all: the first record makes a file
        [message(number) for number in range(6)] + [plain],  # 24 keys fill files of 24 and of 8 and of 12
        [message(number) for number in range(6)],
    ],
)
@pytest.mark.parametrize("capacity", [25, 9, 13])
def test_a_record_behind_a_full_index_file_makes_the_next(
    job_spark: SparkSession, tmp_path: Path, makers: list[Maker], capacity: int
) -> None:
    log = write_log(tmp_path / "log", SEGMENT, makers)
    settings = replace(SETTINGS, index_capacity=capacity)
    rebuild(job_spark, str(log.directory), tmp_path / "out", settings=settings, consumequeue=False)
    expected = oracle_files(log, settings)
    assert rebuilt_files(tmp_path / "out") == {n: data for n, data in expected.items() if n.startswith("index/")}


def test_no_index_is_made_for_a_broker_without_index_files(
    job_spark: SparkSession, log: WrittenLog, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, index_refused="its index is in a RocksDB database")
    result = rebuild(job_spark, str(log.directory), tmp_path / "out", settings=settings)
    assert (result.queues, result.index_files) == (6, ())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["consumequeue", "rebuild.json"]
    with pytest.raises(RebuildRefusedError, match="its index is in a RocksDB database"):
        rebuild(job_spark, str(log.directory), tmp_path / "index", settings=settings, consumequeue=False)
    neither = replace(settings, queues_refused="its queues are, too")
    with pytest.raises(RebuildRefusedError, match=r"its queues are, too$"):
        rebuild(job_spark, str(log.directory), tmp_path / "index", settings=neither)
    assert not (tmp_path / "index").exists()


def test_an_empty_log_has_empty_directories(job_spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "log", SEGMENT, [])
    result = rebuild(job_spark, str(tmp_path / "log"), tmp_path / "out", settings=SETTINGS)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["consumequeue", "index", "rebuild.json"]
    assert (result.records, result.index_files) == (0, ())


def test_damage_is_one_line_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [message(number) for number in range(600)])
    log.write_at(log.offsets[200], b"\xff" * 20)
    with pytest.raises(PipelineError) as caught:
        rebuild(spark, str(log.directory), tmp_path / "out", settings=SETTINGS)
    assert f"log offset {log.offsets[200]}: no record begins here" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [log.directory]


def test_damage_that_is_passed_over_is_reported(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [message(number) for number in range(600)])
    for number in (200, 300):
        log.write_at(log.offsets[number], b"\xff" * 20)
    result = rebuild(job_spark, str(log.directory), tmp_path / "out", settings=SETTINGS, mode=DamageMode.PERMISSIVE)
    assert [damage.offset for damage in result.damages] == [log.offsets[200], log.offsets[300]]
    assert (result.records, result.queue_entries) == (598, 598)
    del log.offsets[300], log.offsets[200]
    assert rebuilt_files(tmp_path / "out") == oracle_files(log)


def test_a_topic_that_is_no_directory_name_never_leaves_the_output(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [lambda offset: make_record(offset, topic=b"../../../evil")])
    with pytest.raises(PipelineError, match=r"topic '../../../evil' cannot be the name of a directory"):
        rebuild(job_spark, str(log.directory), tmp_path / "out", settings=SETTINGS)
    rules = DispatchRules(topics=frozenset())
    rebuild(job_spark, str(log.directory), tmp_path / "out", settings=replace(SETTINGS, rules=rules))


def test_an_output_named_from_the_working_directory(
    spark: SparkSession, log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have another one, in which nothing may appear; so has the log's name."""
    (tmp_path / "log").symlink_to(log.directory)
    monkeypatch.chdir(tmp_path)
    result = rebuild(spark, "log", Path("out"), settings=SETTINGS)
    assert (result.queues, result.output) == (6, tmp_path / "out")
    assert rebuilt_files(tmp_path / "out") == oracle_files(log)


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("out/consumequeue/A", "has 3 queues, but 6 were written"),
        ("out/consumequeue/A/0/*", "files, but"),
        ("index/3", "index files, but"),
    ],
)
def test_an_output_that_lacks_what_workers_have_written_is_none(
    job_spark: SparkSession, log: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, told: str
) -> None:
    """As where they wrote it on disks of their own, under the same name."""

    @contextmanager
    def lose(*_: object, **__: object) -> Iterator[None]:
        yield
        for path in list(tmp_path.glob(f"out.building-*/{lost}")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    monkeypatch.setattr(job, "show_progress", lose)
    with pytest.raises(OutputError, match=f"{told}.*; name an output on a disk that all workers share"):
        rebuild(job_spark, str(log.directory), tmp_path / "out", settings=SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_makes_no_directory_of_its_own_for_an_output_it_does_not_see(
    log: WrittenLog, tmp_path: Path
) -> None:
    splits = plan_splits(list_segments(str(log.directory)), log.end)
    with pytest.raises(
        OutputError, match=r"out[^:]*: is not visible to the worker on .*; name an output on a disk that all"
    ):
        list(
            decode_splits(
                [0],
                splits=splits,
                rules=SETTINGS.rules,
                mode=DamageMode.FAILFAST,
                building=tmp_path / "out",
                queues=True,
                index=True,
            )
        )
    assert list(tmp_path.iterdir()) == []


def test_refusals(job_spark: SparkSession, log: WrittenLog, tmp_path: Path) -> None:
    def refused(match: str, place: Path = log.directory, **options: object) -> None:
        with pytest.raises(RebuildRefusedError, match=match):
            rebuild(job_spark, str(place), tmp_path / "out", **options)  # type: ignore[arg-type]

    refused("nothing to rebuild", consumequeue=False, index=False)
    refused("is a database", settings=BrokerSettings(queues_refused="this is a database"))
    (tmp_path / "empty").mkdir()
    refused("holds no segments", place=tmp_path / "empty")
    gap = write_log(tmp_path / "gap", SEGMENT, [message(number) for number in range(600)])
    gap.segment_at(SEGMENT).unlink()
    refused(f"no segment holds log offsets {SEGMENT} to {2 * SEGMENT}", place=gap.directory)
    (tmp_path / "out").mkdir()
    refused("exists; remove it")


def test_what_is_rebuilt_can_be_installed(job_spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "store/commitlog", SEGMENT, [message(number) for number in range(100)])
    rebuild(job_spark, str(log.directory), tmp_path / "out", settings=SETTINGS)
    apply_rebuilt(tmp_path / "out", tmp_path / "store")
    for part in ("consumequeue", "index"):
        assert (tmp_path / "store" / part).is_dir()
