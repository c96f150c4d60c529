"""Reports the progress of Spark jobs to a callback, from its own thread."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from commitlogfs.pipeline.source.session import Spark
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

OnProgress = Callable[[int, int], None]
"""Called with the number of finished tasks and of known tasks; the latter grows when stages begin. After successful
jobs the last call reports all tasks as finished."""

_GROUP = "spark.jobGroup.id"
_RUNNING = "RUNNING"
_EVERY_S = 0.5
_LAG_S = 1.0
"""Spark reports job states with a delay: maximum time to wait for the last state."""
_POLL_AGAIN_S = 0.01


@contextmanager
def show_progress(spark: Spark, on_progress: OnProgress | None, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Report the jobs that this thread runs inside; the thread's previous job group is restored afterwards."""
    if on_progress is None:
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_GROUP)
    group = f"commitlogfs-{uuid.uuid4()}"
    context.setLocalProperty(_GROUP, group)
    jobs = _Jobs(spark, group, on_progress, clock)
    over = threading.Event()
    reporter = threading.Thread(target=jobs.report_until, args=(over,), daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()
        context._jsc.setLocalProperty(_GROUP, before)
    jobs.report_success()


class _Jobs:
    """The jobs of one group; used by one thread at a time."""

    def __init__(self, spark: Spark, group: str, on_progress: OnProgress, clock: Clock) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._on_progress = on_progress
        self._clock = clock
        self._stages: dict[int, tuple[int, int]] = {}
        """Finished tasks and all tasks by stage; Spark discards old stages."""
        self._reported: tuple[int, int] | None = None

    def report_until(self, over: threading.Event) -> None:
        while not over.wait(_EVERY_S):
            self._poll()
            self._report(sum(done for done, _ in self._stages.values()))

    def report_success(self) -> None:
        """Report all tasks as finished. Spark may not know yet of its last tasks, or of a short job."""
        deadline = self._clock.monotonic() + _LAG_S
        while self._poll() and self._clock.monotonic() < deadline:
            self._clock.sleep(_POLL_AGAIN_S)
        self._report(self._tasks)

    @property
    def _tasks(self) -> int:
        return sum(tasks for _, tasks in self._stages.values())

    def _poll(self) -> bool:
        """Read the state of all stages; whether more is expected."""
        jobs = [self._tracker.getJobInfo(job) for job in self._tracker.getJobIdsForGroup(self._group)]
        for info in jobs:
            for stage_id in info.stageIds if info is not None else ():
                stage = self._tracker.getStageInfo(stage_id)
                if stage is not None:
                    self._stages[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        return not jobs or any(info is not None and info.status == _RUNNING for info in jobs)

    def _report(self, done: int) -> None:
        now = (done, self._tasks)
        if now != self._reported:
            self._on_progress(*now)
            self._reported = now
