"""After its first task a Spark worker's garbage collector has little to look through; nobody else's is touched."""

import gc
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

from commitlogfs.pipeline.worker_task import worker_task


def test_a_worker_has_its_objects_out_of_the_collectors_sight(spark: SparkSession) -> None:
    def count(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        gc.unfreeze()  # some other test's task may have been here
        task = worker_task(lambda: numbers)
        yield sum(task()), gc.get_freeze_count()

    ((total, frozen),) = spark.sparkContext.parallelize(range(10), 1).mapPartitions(count).collect()
    assert total == 45
    assert frozen > 1000


def test_it_is_done_even_where_a_task_fails_and_once_only(spark: SparkSession) -> None:
    def fail(_: Iterable[int]) -> Iterator[list[int]]:
        gc.unfreeze()
        counts = []
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                list(worker_task(lambda: map(divmod, [1], [0]))())
            counts.append(gc.get_freeze_count())
        yield counts

    ((first, second),) = spark.sparkContext.parallelize([0], 1).mapPartitions(fail).collect()
    assert first == second > 1000


def test_another_process_is_left_alone(spark: SparkSession) -> None:
    before = gc.get_freeze_count()
    assert list(worker_task(lambda: range(3))()) == [0, 1, 2]
    assert gc.get_freeze_count() == before
