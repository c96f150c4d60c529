"""Errors of reading a log as a table. Each message is one line: `<object>: <fact>; <what to do>`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from commitlogfs.console.errors import UserError
from commitlogfs.console.exit_status import ExitCode


class PipelineError(UserError):
    """Base class of all errors that the pipeline raises on purpose.

    The constructor takes the line and nothing else: `jobs.worker_errors` makes an error of a worker again from its
    class and its line, which is all that Spark passes on.
    """

    exit_code = ExitCode.FINDINGS


class OptionError(PipelineError):
    """An option that is unknown, that excludes another one, or whose value is invalid."""

    exit_code = ExitCode.USAGE


class LocationError(PipelineError):
    """A location that cannot be read as a log."""

    exit_code = ExitCode.UNREACHABLE


class StartPastEndError(LocationError):
    """The log ends before the offset at which reading begins."""


class DuplicateSegmentError(PipelineError):
    """Two directories hold a segment with the same base offset, and an operator must decide which one belongs to
    the log."""

    exit_code = ExitCode.REFUSED


class SegmentGoneError(PipelineError):
    """A listed segment no longer exists: a broker has deleted it since."""


class OutputError(PipelineError):
    """An output cannot be written, or the files that workers have written into it are not there."""

    exit_code = ExitCode.REFUSED


class AmbiguousSplitError(PipelineError):
    """A reader that begins at a split's border would take bytes inside a record for a record."""


class DamagedLogError(PipelineError):
    """Bytes that are not a record, where a record must begin."""

    @classmethod
    def at(cls, segment: str, offset: int, reason: str) -> Self:
        """The error for this log offset."""
        return cls(f"segment {segment}, log offset {offset}: {reason}; mode=PERMISSIVE skips and reports it")


def os_reason(error: OSError) -> str:
    """The error's meaning in one line, without the details that Arrow and Python add."""
    with suppress(TypeError, ValueError):
        if error.errno:
            return os.strerror(error.errno)
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def output_errors(place: Path | str) -> Iterator[None]:
    """Raises an OSError inside as an OutputError about `place`, which the code inside writes."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{place}: cannot be written ({os_reason(error)})") from error
