"""How far a Spark job is, told to a callback from a thread of its own."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

OnProgress = Callable[[int, int], None]
"""Called with the tasks done and the tasks known so far; the latter grows as stages begin."""

_GROUP = "spark.jobGroup.id"
_EVERY_S = 0.5


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
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(spark, group, on_progress, over), daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        context._jsc.setLocalProperty(_GROUP, before)


def _tell(spark: SparkSession, group: str, on_progress: OnProgress, over: threading.Event) -> None:
    stages: dict[int, tuple[int, int]] = {}
    told = None
    ended = False
    while not ended:
        ended = over.wait(_EVERY_S)
        tracker = spark.sparkContext.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage_id in info.stageIds if info is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    stages[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        now = (sum(done for done, _ in stages.values()), sum(tasks for _, tasks in stages.values()))
        if now != told:
            on_progress(*now)
            told = now
