"""What each of our tasks does in one of Spark's Python workers beside its work."""

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from commitlogfs.pipeline.log.errors import PipelineError, os_reason

P = ParamSpec("P")
Item = TypeVar("Item")

_WORKER_MODULE: Final = "pyspark.worker_util"
"""Loaded in Spark's Python processes alone: those of tasks, of the planner and of streams."""
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Read by pyspark.util.handle_worker_exception."""


def worker_task(task: Callable[P, Iterable[Item]]) -> Callable[P, Iterator[Item]]:
    """`task`, after which a worker is soon ready for the next one.

    Spark's worker daemon collects garbage after each task (pyspark/daemon.py), and with numba and pyarrow loaded
    looks through their objects for 40 ms each time, as long as a fifth of a split takes. So at the end of a task
    that has loaded modules a worker takes what there is out of the collector's sight: mostly code, but also what a
    query's own functions have in it at that moment. In any other process nothing of that is done. An OSError of
    the task is raised as a PipelineError.
    """

    @functools.wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        try:
            with short_errors():
                yield from task(*args, **kwargs)
        except OSError as error:
            # Spark would tell of it in pages; a PipelineError is told in its one line.
            where = f"{error.filename}: " if error.filename is not None else ""
            with short_errors():
                raise PipelineError(f"{where}{os_reason(error)}") from error
        finally:
            if _is_in_worker():
                _spare_collector(len(sys.modules))

    return run


@contextmanager
def short_errors() -> Iterator[None]:
    """A PipelineError that passes here reaches the user as its one line, without the frames of a worker's code.

    It is what spark.sql.execution.pyspark.udf.hideTraceback.enabled does, but only for errors that are raised on
    purpose, and in every session. The worker ends with the error, so nothing else is hidden.
    """
    try:
        yield
    except PipelineError:
        if _WORKER_MODULE in sys.modules:
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


@functools.lru_cache(maxsize=1)
def _spare_collector(modules: int) -> None:
    gc.collect()
    gc.freeze()


def _is_in_worker() -> bool:
    spark = sys.modules.get("pyspark.taskcontext")
    return spark is not None and spark.TaskContext.get() is not None
