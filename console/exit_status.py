"""Exit statuses of every commitlogfs command and `commitlogfs-pipeline` (documented in docs/reference/cli.md)."""

from enum import IntEnum

from commitlogfs.console import interrupts


class ExitCode(IntEnum):
    """What the shell sees. 0 and 1 are results; the rest say whose turn it is."""

    OK = 0
    FINDINGS = 1
    """The command worked and has something to report (`check`, `doctor`, `ready`); or the log is damaged."""
    USAGE = 2
    """Bad option, bad configuration, impossible value: nothing was done."""
    UNREACHABLE = 3
    """No daemon answers for this mount; no log is at this place; no Spark master answers."""
    REFUSED = 4
    """Understood, but doing it could hurt data or is not possible now: nothing was done."""
    HANDED_OVER = 75
    """A daemon has handed its mount over: whatever keeps its descriptors starts the next one at once."""
    INTERRUPTED = interrupts.INTERRUPTED
