"""What can be wrong with a log that is read as a table. Each message is one line: what, where, what to do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.store.errors import StoreError


class PipelineError(StoreError):
    """Base of all errors the pipeline raises on purpose."""

    exit_status: ClassVar[ExitCode] = ExitCode.FINDINGS
    """Exit status of a command that ends with this error."""


class OptionError(PipelineError):
    """An option that is unknown, that excludes another, or whose value makes no sense."""

    exit_status = ExitCode.USAGE


class LocationError(PipelineError):
    """The place named as the log cannot be read as one."""

    exit_status = ExitCode.UNREACHABLE


class DuplicateSegmentError(PipelineError):
    """Two folders hold a segment of the same base offset: which of them is the log is not ours to guess."""

    exit_status = ExitCode.REFUSED


class SegmentGoneError(PipelineError):
    """A segment that was listed is not there any more: the log was cleaned in between."""


class OutputError(PipelineError):
    """An output cannot be written, or what workers have written into it is not there."""

    exit_status = ExitCode.REFUSED


class AmbiguousSplitError(PipelineError):
    """Inside one record lies what a reader that begins at a split's border must take for a record."""


class DamagedLogError(PipelineError):
    """The log holds something else where a record must begin."""

    def __init__(self, segment: str, offset: int, reason: str) -> None:
        super().__init__(
            f"segment {segment}, log offset {offset}: {reason}: read with mode=PERMISSIVE to skip and report it"
        )
        self.segment, self.offset, self.reason = segment, offset, reason

    def __reduce__(self) -> tuple[type["DamagedLogError"], tuple[str, int, str]]:
        """Spark pickles what a worker raises."""
        return type(self), (self.segment, self.offset, self.reason)


def os_reason(error: OSError) -> str:
    """What happened, without Arrow's or Python's detail."""
    with suppress(TypeError, ValueError):
        if error.errno:
            return os.strerror(error.errno)
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def output_errors(place: Path | str) -> Iterator[None]:
    """An OSError inside is raised as an OutputError: what is done there is writing into `place`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{place} cannot be written: {os_reason(error)}") from error
