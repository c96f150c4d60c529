"""Exit statuses of every commitlogfs command (documented in docs/operating.md)."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell sees. 0 and 1 are results; the rest say whose turn it is."""

    OK = 0
    FINDINGS = 1
    """The command worked and has something to report (`check`, `doctor`, `ready`)."""
    USAGE = 2
    """Bad option, bad configuration, impossible value: nothing was done."""
    UNREACHABLE = 3
    """No daemon answers for this mount."""
    REFUSED = 4
    """Understood, but doing it could hurt data or is not possible now: nothing was done."""
    HANDED_OVER = 75
    """Of a daemon, to whoever keeps its descriptors: start another one at once, the mount goes on."""
