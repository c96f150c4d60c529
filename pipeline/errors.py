"""What can be wrong with a log that is read as a table. Each message is one line: what, where, what to do."""

from commitlogfs.store.errors import StoreError


class PipelineError(StoreError):
    """Base of all errors the pipeline raises on purpose."""


class LocationError(PipelineError):
    """The place named as the log cannot be read as one."""


class DuplicateSegmentError(PipelineError):
    """Two folders hold a segment of the same base offset: which of them is the log is not ours to guess."""


class SegmentGoneError(PipelineError):
    """A segment that was listed is not there any more: the log was cleaned in between."""


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
