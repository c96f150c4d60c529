"""After its first task a Spark worker's garbage collector has little to look through; nobody else's is touched.
What a task raises on purpose is one line on the driver."""

import errno
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.broker.index_reader import IndexFileError
from commitlogfs.pipeline.jobs.worker_errors import worker_errors
from commitlogfs.pipeline.log.errors import OutputError, PipelineError
from commitlogfs.pipeline.source import worker_task as module
from commitlogfs.pipeline.source.worker_task import worker_task


def begin_anew() -> None:
    """Some other test's task may have been in this worker."""
    gc.unfreeze()
    module._spare_collector.cache_clear()


def test_a_worker_has_its_objects_out_of_the_collectors_sight(spark: SparkSession) -> None:
    def count(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        begin_anew()
        task = worker_task(lambda: numbers)
        yield sum(task()), gc.get_freeze_count()

    ((total, frozen),) = spark.sparkContext.parallelize(range(10), 1).mapPartitions(count).collect()
    assert total == 45
    assert frozen > 1000


def test_it_is_done_even_where_a_task_fails_and_again_only_when_code_was_loaded(spark: SparkSession) -> None:
    def fail(_: Iterable[int]) -> Iterator[list[bool]]:
        begin_anew()
        done = []
        for round_ in range(3):
            if round_ == 2:
                sys.modules["loaded_meanwhile"] = ModuleType("loaded_meanwhile")
            with pytest.raises(ZeroDivisionError):
                list(worker_task(lambda: map(divmod, [1], [0]))())
            done.append(gc.get_freeze_count() > 1000)
            gc.unfreeze()
        del sys.modules["loaded_meanwhile"]
        yield done

    (done,) = spark.sparkContext.parallelize([0], 1).mapPartitions(fail).collect()
    assert done == [True, False, True]


def test_another_process_is_left_alone(spark: SparkSession) -> None:
    before = gc.get_freeze_count()
    assert list(worker_task(lambda: range(3))()) == [0, 1, 2]
    assert gc.get_freeze_count() == before


def test_an_error_of_the_system_is_one_line_of_ours() -> None:
    @worker_task
    def full() -> Iterator[int]:
        yield 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/out")

    with pytest.raises(PipelineError) as caught:
        list(full())
    assert str(caught.value) == "/data/out: No space left on device"


@pytest.mark.parametrize(
    ("raised", "kind", "line"),
    [
        (
            "commitlogfs.pipeline.log.errors.OutputError: /out: cannot be written (full)",
            OutputError,
            "/out: cannot be",
        ),
        ("commitlogfs.pipeline.log.errors.PipelineError: /file: gone", PipelineError, "/file: gone"),
        ("commitlogfs.pipeline.broker.index_reader.IndexFileError: odd", IndexFileError, "odd"),
        ("commitlogfs.pipeline.log.errors.LostError: of another version", PipelineError, "of another version"),
        ("commitlogfs.pipeline.log.lost.LostError: of another version", PipelineError, "of another version"),
    ],
)
def test_an_error_of_a_worker_keeps_its_class_and_its_line(
    raised: str, kind: type[PipelineError], line: str
) -> None:
    with pytest.raises(PipelineError) as caught, worker_errors():
        raise PySparkException(f"Traceback:\n  File x\n{raised}\n\n\tat org.apache.spark")
    assert type(caught.value) is kind
    assert str(caught.value).startswith(line)


def test_every_error_can_be_made_from_its_line() -> None:
    """`worker_errors` has nothing else."""
    kinds = {PipelineError}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    assert len(kinds) > 10
    assert [kind for kind in kinds if str(kind("line")) != "line"] == []


def test_an_error_of_a_worker_keeps_its_exit_status(spark: SparkSession) -> None:
    @worker_task
    def fail(_: Iterable[int]) -> Iterator[int]:
        raise OutputError("/out: cannot be written (full)")

    with pytest.raises(OutputError, match=r"^/out: cannot be written \(full\)$") as caught, worker_errors():
        spark.sparkContext.parallelize([0], 1).mapPartitions(fail).collect()
    assert caught.value.exit_code is ExitCode.REFUSED
