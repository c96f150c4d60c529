"""What a worker raised on purpose, raised again here: one line instead of Spark's pages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from commitlogfs.pipeline.log.errors import OutputError, PipelineError

_OURS = re.compile(r"^(?:.*: )?commitlogfs\.pipeline\.(?:\w+\.)*(\w+Error): (.+)$", re.MULTILINE)


class WorkerError(PipelineError):
    """A PipelineError of a worker: its line."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raises WorkerError for what a task raised as a PipelineError, OutputError for just that; all else passes
    unchanged."""
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        kind = OutputError if found[1] == OutputError.__name__ else WorkerError
        raise kind(found[2]) from error
