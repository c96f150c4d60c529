"""The reported progress of a job reaches its total, although Spark's own count comes after the job."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from commitlogfs.pipeline.jobs.progress import show_progress

TASKS = 8


def run_tasks(spark: SparkSession) -> None:
    spark.sparkContext.parallelize(range(TASKS), TASKS).count()


def test_the_last_word_is_the_whole(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with show_progress(spark, lambda *now: told.append(now)):
        run_tasks(spark)
        run_tasks(spark)
    assert told[-1] == (2 * TASKS, 2 * TASKS)
    assert told == sorted(set(told))


def test_nothing_is_told_as_done_of_a_job_that_failed(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []

    def in_the_midst() -> None:
        run_tasks(spark)
        raise LookupError("the caller's")

    with pytest.raises(LookupError, match="the caller's"), show_progress(spark, lambda *now: told.append(now)):
        in_the_midst()
    assert all(done <= tasks for done, tasks in told)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


class LaggingTracker:
    """Spark's tracker as it is on a busy machine: it hears of the job late, and of its tasks later still."""

    def __init__(self, steps: list[tuple[str | None, int]]) -> None:
        self._steps = steps
        self._now: tuple[str | None, int] = (None, 0)

    def getJobIdsForGroup(self, _group: str) -> list[int]:  # noqa: N802 - PySpark's name
        if len(self._steps) > 1:
            self._now = self._steps.pop(0)
        else:
            self._now = self._steps[0]
        return [] if self._now[0] is None else [1]

    def getJobInfo(self, _job: int) -> Any:  # noqa: N802
        return SimpleNamespace(stageIds=[5], status=self._now[0])

    def getStageInfo(self, _stage: int) -> Any:  # noqa: N802
        return SimpleNamespace(numCompletedTasks=self._now[1], numTasks=TASKS)


class LaggingContext:
    """As much of a SparkContext as telling takes."""

    def __init__(self, steps: list[tuple[str | None, int]]) -> None:
        self._tracker = LaggingTracker(steps)
        self._jsc = self
        self.properties: dict[str, str | None] = {}

    def statusTracker(self) -> LaggingTracker:  # noqa: N802
        return self._tracker

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:  # noqa: N802
        self.properties[key] = value


@pytest.mark.parametrize(
    "steps",
    [
        [(None, 0), (None, 0), ("RUNNING", 0), ("RUNNING", 3), ("SUCCEEDED", TASKS)],
        [("RUNNING", 0), ("SUCCEEDED", 0)],
    ],
    ids=["all of it late", "its tasks never"],
)
def test_spark_that_lags_behind(steps: list[tuple[str | None, int]]) -> None:
    told: list[tuple[int, int]] = []
    context: Any = LaggingContext(steps)
    with show_progress(SimpleNamespace(sparkContext=context), lambda *now: told.append(now)):  # type: ignore[arg-type]
        pass
    assert told == [(TASKS, TASKS)]
