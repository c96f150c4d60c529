"""Exit statuses of every commitlogfs command and `commitlogfs-pipeline` (documented in docs/reference/cli.md)."""

from enum import IntEnum

from commitlogfs.console import interrupts


class ExitCode(IntEnum):
    """Exit status of a command. 0 and 1 are results; the others mean that nothing was done."""

    OK = 0
    FINDINGS = 1
    """The command worked and found something (`check`, `doctor`, `ready`); or the log is damaged."""
    USAGE = 2
    """Bad option, bad configuration, impossible value."""
    UNREACHABLE = 3
    """No daemon answers for this mount; no log at this location; Spark does not start."""
    REFUSED = 4
    """The request could lose data, or is not possible at the moment."""
    HANDED_OVER = 75
    """A daemon has handed over its mount: its keeper starts the next daemon at once."""
    INTERRUPTED = interrupts.INTERRUPTED
