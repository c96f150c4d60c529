"""Errors an operator sees: one line, one exit status, never a traceback."""

from commitlogfs.console.exit_status import ExitCode


class UserError(Exception):
    """A condition the operator can act on.

    The message is one line: what is wrong, which disk, file or key, and what to do.
    """

    exit_code: ExitCode = ExitCode.USAGE


class UsageError(UserError):
    """A bad argument, option or configuration value."""

    exit_code = ExitCode.USAGE


class UnreachableError(UserError):
    """No daemon answers."""

    exit_code = ExitCode.UNREACHABLE


class RefusedError(UserError):
    """Refused because going on could lose data, or because the system does not allow it."""

    exit_code = ExitCode.REFUSED


class AbsentError(UserError):
    """What was asked for is not there: a result, and one that a script wants to tell from a success."""

    exit_code = ExitCode.FINDINGS
