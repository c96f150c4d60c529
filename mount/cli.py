"""The `commitlogfs` command: puts the verbs together and turns every error into one line and an exit status."""

import io
import logging
import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from commitlogfs.mount import logs, settings
from commitlogfs.mount.commands import (
    adopt,
    bench,
    check,
    config,
    doctor,
    init,
    locate,
    mount,
    read,
    ready,
    reopen_logs,
    restart,
    retention,
    status,
    umount,
)
from commitlogfs.mount.commands import map as map_command
from commitlogfs.mount.errors import UserError
from commitlogfs.mount.exit_codes import ExitCode
from commitlogfs.mount.version import VERSION
from commitlogfs.store import interrupts
from commitlogfs.store.plain_text import is_plain_text, use_plain_text
from commitlogfs.store.printable import printable

app = typer.Typer(
    name="commitlogfs",
    help="One RocketMQ commitlog directory, striped as plain files over many disks.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="EXIT STATUS: 0 ok, 1 findings, 2 usage, 3 daemon unreachable, 4 refused.",
)
_SERVICE = (init, adopt, mount, umount, restart, ready, reopen_logs)
for module in (*_SERVICE, status, map_command, locate, read, check, doctor, bench):
    module.register(app)
app.add_typer(config.app)
app.add_typer(retention.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"commitlogfs {VERSION}")
        raise typer.Exit


def _take_no_color(wanted: bool) -> None:
    if wanted:
        use_plain_text()


@app.callback()
def options(
    context: typer.Context,
    config_file: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="What NAME or FILE means where a command is given none."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done on standard error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for every command that has --json.")] = False,
    no_color: Annotated[
        bool,
        typer.Option("--no-color", callback=_take_no_color, is_eager=True, help="No colours, no bold: $NO_COLOR."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    settings.use(settings.Settings(verbose=verbose, quiet=quiet, json=as_json, config=config_file))
    if verbose:
        context.with_resource(logs.logging_to(level=logging.DEBUG))


def _report_error(text: str) -> None:
    shown = printable(text, keep="\n")
    print(f"commitlogfs: {shown}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status (docs/operating.md)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have bytes or letters that the locale has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    if is_plain_text():
        use_plain_text()
    try:
        result = app(arguments, standalone_mode=False)
    except UserError as error:
        _report_error(str(error))
        return int(error.exit_code)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return interrupts.INTERRUPTED
    except TyperException as error:
        if message := error.format_message():  # without arguments the help was the message
            _report_error(message)
        return int(ExitCode.USAGE)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except OSError as error:
        # What no command has foreseen: a full disk under a log file, a folder that fails. Told, not dumped.
        where = f"{error.filename}: " if error.filename is not None else ""
        _report_error(f"{where}{error.strerror or error}")
        return int(ExitCode.FINDINGS)
    return result if isinstance(result, int) else int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(interrupts.run(lambda: main))
