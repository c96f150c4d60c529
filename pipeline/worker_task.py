"""What each of our tasks does in one of Spark's Python workers beside its work."""

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from commitlogfs.pipeline.errors import PipelineError, os_reason

P = ParamSpec("P")
Item = TypeVar("Item")


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
            yield from task(*args, **kwargs)
        except OSError as error:
            # Spark would tell of it in pages; a PipelineError is told in its one line.
            where = f"{error.filename}: " if error.filename is not None else ""
            raise PipelineError(f"{where}{os_reason(error)}") from error
        finally:
            if _is_in_worker():
                _spare_collector(len(sys.modules))

    return run


@functools.lru_cache(maxsize=1)
def _spare_collector(modules: int) -> None:
    gc.collect()
    gc.freeze()


def _is_in_worker() -> bool:
    spark = sys.modules.get("pyspark.taskcontext")
    return spark is not None and spark.TaskContext.get() is not None
