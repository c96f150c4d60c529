"""Errors for operators: each is printed as one line, without a traceback, and has an exit status."""

from commitlogfs.console.exit_status import ExitCode


class UserError(Exception):
    """A condition the operator can act on.

    The message is one line: `<object>: <fact>; <what to do>`.
    """

    exit_code: ExitCode = ExitCode.USAGE


class UsageError(UserError):
    """A bad argument, option or configuration value."""

    exit_code = ExitCode.USAGE


class UnreachableError(UserError):
    """No daemon answers."""

    exit_code = ExitCode.UNREACHABLE


class RefusedError(UserError):
    """A request that could lose data, or that the system does not allow."""

    exit_code = ExitCode.REFUSED


class AbsentError(UserError):
    """The requested object does not exist. Scripts tell this result from a success by the exit status."""

    exit_code = ExitCode.FINDINGS
