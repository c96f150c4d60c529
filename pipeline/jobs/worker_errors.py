"""What a worker raised on purpose, raised again here: one line instead of Spark's pages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from commitlogfs.pipeline.errors import PipelineError

_OURS = re.compile(r"^(?:[\w.]+: )*commitlogfs\.pipeline\.[\w.]+Error: (.+)$", re.MULTILINE)


class WorkerError(PipelineError):
    """A PipelineError of a worker: its line."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raises WorkerError for what a task raised as a PipelineError; all else passes unchanged."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        raise WorkerError(found[1]) from error
