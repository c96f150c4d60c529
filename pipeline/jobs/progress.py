"""How far a Spark job is, told to a callback from a thread of its own."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

OnProgress = Callable[[int, int], None]
"""Called with the tasks done and the tasks known so far; the latter grows as stages begin. The last call after jobs
that succeeded says that all are done."""

_GROUP = "spark.jobGroup.id"
_RUNNING = "RUNNING"
_EVERY_S = 0.5
_LAG_S = 1.0
"""What Spark tells of a job comes through a queue, behind the job itself: how long its last word is waited for."""
_LOOK_AGAIN_S = 0.01


@contextmanager
def show_progress(spark: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell of the jobs that this thread runs inside; the thread's own job group is restored after."""
    if on_progress is None:
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_GROUP)
    group = f"commitlogfs-{uuid.uuid4()}"
    context.setLocalProperty(_GROUP, group)
    jobs = _Jobs(spark, group, on_progress)
    over = threading.Event()
    teller = threading.Thread(target=jobs.tell_until, args=(over,), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        context._jsc.setLocalProperty(_GROUP, before)
    jobs.tell_success()


class _Jobs:
    """The jobs of one group; used by one thread at a time."""

    def __init__(self, spark: SparkSession, group: str, on_progress: OnProgress) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._on_progress = on_progress
        self._stages: dict[int, tuple[int, int]] = {}
        """Tasks done and in all; Spark forgets old stages."""
        self._told: tuple[int, int] | None = None

    def tell_until(self, over: threading.Event) -> None:
        while not over.wait(_EVERY_S):
            self._look()
            self._say(sum(done for done, _ in self._stages.values()))

    def tell_success(self) -> None:
        """Spark may not have heard of its last tasks, or of the whole of a short job."""
        deadline = time.monotonic() + _LAG_S
        while self._look() and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        self._say(self._tasks)

    @property
    def _tasks(self) -> int:
        return sum(tasks for _, tasks in self._stages.values())

    def _look(self) -> bool:
        """Whether more is to be expected."""
        jobs = [self._tracker.getJobInfo(job) for job in self._tracker.getJobIdsForGroup(self._group)]
        for info in jobs:
            for stage_id in info.stageIds if info is not None else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    self._stages[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        return not jobs or any(info is not None and info.status == _RUNNING for info in jobs)

    def _say(self, done: int) -> None:
        now = (done, self._tasks)
        if now != self._told:
            self._on_progress(*now)
            self._told = now
