"""Raises the errors of Spark's workers again on the driver, with their class and their line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from pyspark.errors import PySparkException

from commitlogfs.pipeline.log.errors import PipelineError

_OURS = re.compile(r"^(?:.*: )?(commitlogfs\.pipeline(?:\.\w+)+)\.(\w+Error): (.+)$", re.MULTILINE)
"""Module, class and line of an error, as Python formats it."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raises a PipelineError of a task or of the data source as such; all other errors pass unchanged.

    Spark passes on an error of a Python worker as text only: PySpark (4.3.0) sends Python's formatted traceback to
    the JVM, whose exception has no error condition and no parameters (pyspark.util.handle_worker_exception). So the
    text is parsed, and the class is looked up by its full name.
    """
    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        raise _class_of(found[1], found[2])(found[3]) from error


def _class_of(module: str, name: str) -> type[PipelineError]:
    """The class of this name; PipelineError if this version does not have it."""
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        kind = None
    return kind if isinstance(kind, type) and issubclass(kind, PipelineError) else PipelineError
