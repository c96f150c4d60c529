"""Exit statuses of `commitlogfs-pipeline`, the numbers of `commitlogfs` (docs/pipeline.md)."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FINDINGS = 1
    """It worked and has something to report; or the log turned out to be damaged."""
    USAGE = 2
    """Bad option or impossible value: nothing was done."""
    UNREACHABLE = 3
    """There is no log where one was named, or no Spark master answers."""
    REFUSED = 4
    """Understood, but it could hurt data or is not possible now: nothing was done."""
    INTERRUPTED = 130
