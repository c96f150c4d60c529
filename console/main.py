"""The frame of every command: one line for each error, and an exit status."""

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.exceptions import TyperException

from commitlogfs.console.errors import UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.plain_text import is_plain_text, use_plain_text
from commitlogfs.store.printable import printable

_LINE_END: Final = "\n"
Translate = Callable[[Exception], UserError | None]
"""The user error to print instead of this exception; None: the general rules apply."""


def _no_translation(_error: Exception) -> None:
    return None


def run(app: typer.Typer, arguments: list[str] | None = None, translate: Translate = _no_translation) -> int:
    """Run one command and return its exit status (docs/reference/cli.md).

    Prints UserError, wrong arguments and OSError as one line on standard error. Any other exception is a bug and
    passes, because its traceback is needed.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path or a topic may contain characters that the locale cannot encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    if is_plain_text():
        use_plain_text()
    try:
        result = app(arguments, standalone_mode=False)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    except TyperException as error:
        if message := error.format_message():  # empty if there were no arguments: the help was printed
            _report(app, message)
        return int(ExitCode.USAGE)
    except BrokenPipeError:
        return _end_without_reader()
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # typer's own end after one
            raise
        return _end_without_reader()
    except Exception as error:
        return _report_error(app, error, translate)
    return result if isinstance(result, int) else int(ExitCode.OK)


def _end_without_reader() -> int:
    """The reader of the output (head, less) has exited, which is not an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = sys.__stdout__  # typer has wrapped it
    return int(ExitCode.OK)


def _open_closed_streams() -> None:
    """Give a process that was started without standard output or error (`>&-`) one that discards.

    Python has None for them, and the next file that is opened would get the descriptor.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, "w", closefd=False))


def _report_error(app: typer.Typer, error: Exception, translate: Translate) -> int:
    shown = translate(error) or (error if isinstance(error, UserError) else None)
    if shown is not None:
        _report(app, str(shown))
        return int(shown.exit_code)
    if not isinstance(error, OSError):
        raise error
    # An error that the command does not expect: a full disk under a log file, a failing directory.
    where = f"{error.filename}: " if error.filename is not None else ""
    _report(app, f"{where}{error.strerror or error}")
    return int(ExitCode.FINDINGS)


def version_option(name: str) -> Any:
    """The option --version of the command `name`."""

    def show_version(given: bool) -> None:
        if given:
            from commitlogfs.console.version import VERSION  # reads the installed package, which takes time

            typer.echo(f"{name} {VERSION}")
            raise typer.Exit

    return typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=show_version)


def _take_no_color(given: bool) -> None:
    if given:
        use_plain_text()


NoColor = Annotated[
    bool,
    typer.Option("--no-color", callback=_take_no_color, is_eager=True, help="Print plain text, as with $NO_COLOR."),
]


def _report(app: typer.Typer, text: str) -> None:
    print(f"{app.info.name}: {printable(text, keep=_LINE_END)}", file=sys.stderr)
