"""Wrapper for the tasks that run in Spark's Python workers."""

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
"""Only Spark's Python processes import it: workers of tasks, of the planner and of streams."""
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Read by pyspark.util.handle_worker_exception."""


def worker_task(task: Callable[P, Iterable[Item]]) -> Callable[P, Iterator[Item]]:
    """`task`, with one-line errors, and such that the worker is soon ready for the next task.

    Spark's worker daemon collects garbage after each task (pyspark/daemon.py). With numba and pyarrow loaded, this
    takes 40 ms each time, a fifth of the time of a split. So at the end of a task that has loaded modules, the
    worker exempts all existing objects from collection: mostly code, but also the objects of a query's own
    functions at that moment. No other process does this. An OSError of the task is raised as a PipelineError.
    """

    @functools.wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[Item]:
        try:
            with short_errors():
                yield from task(*args, **kwargs)
        except OSError as error:
            # Spark would report an OSError with pages of traces; a PipelineError is reported as one line.
            where = f"{error.filename}: " if error.filename is not None else ""
            with short_errors():
                raise PipelineError(f"{where}{os_reason(error)}") from error
        finally:
            if _is_in_worker():
                _spare_collector(len(sys.modules))

    return run


@contextmanager
def short_errors() -> Iterator[None]:
    """Reports a PipelineError raised inside as one line, without the frames of a worker's code.

    spark.sql.execution.pyspark.udf.hideTraceback.enabled does the same, but for all errors; this is for errors that
    are raised on purpose, in every session. The worker ends with the error, so nothing else is hidden.
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
