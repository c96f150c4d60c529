"""The `commitlogfs-pipeline` command: puts the verbs together and turns every error into one line and a status."""

import io
import os
import sys
from importlib.metadata import version
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from commitlogfs.pipeline.commands import audit, export, rebuild, stats
from commitlogfs.pipeline.commands.common import Settings, UserError, spark_reason, use
from commitlogfs.pipeline.errors import PipelineError
from commitlogfs.pipeline.exit_codes import ExitCode
from commitlogfs.pipeline.words import plain
from commitlogfs.store.plain_text import is_plain_text, use_plain_text

_NAME: Final = "commitlogfs-pipeline"
_EXTRA: Final = {"pyspark", "py4j", "numba", "llvmlite", "numpy", "pyarrow", "matplotlib"}
_STATUS: Final = {
    "OptionError": ExitCode.USAGE,
    "BrokerSettingsError": ExitCode.USAGE,
    "LocationError": ExitCode.UNREACHABLE,
    "ExportRefusedError": ExitCode.REFUSED,
    "RebuildRefusedError": ExitCode.REFUSED,
    "ApplyRefusedError": ExitCode.REFUSED,
    "OutputError": ExitCode.REFUSED,
    "ExportInterruptedError": ExitCode.REFUSED,
    "DuplicateSegmentError": ExitCode.REFUSED,
    "DataLossError": ExitCode.REFUSED,
}
"""By the names of classes, most of whose modules would load what may not be installed. All others: FINDINGS."""

app = typer.Typer(
    name=_NAME,
    help="A RocketMQ commitlog with Spark: rebuild a store from it, audit, export and count it.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="EXIT STATUS: 0 ok, 1 findings, 2 usage, 3 no log or no Spark there, 4 refused.",
)
for module in (rebuild, audit, export, stats):
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{_NAME} {version('commitlogfs')}")
        raise typer.Exit


def _take_no_color(wanted: bool) -> None:
    if wanted:
        use_plain_text()


@app.callback()
def options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="What Spark says, too; all of an error.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for every verb.")] = False,
    no_color: Annotated[
        bool,
        typer.Option("--no-color", callback=_take_no_color, is_eager=True, help="No colours, no bold: $NO_COLOR."),
    ] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="The version, and no more.")
    ] = False,
) -> None:
    use(Settings(verbose=verbose, quiet=quiet, json=as_json))


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status (docs/pipeline.md)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A topic or a path may have letters that the locale has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    if is_plain_text():
        use_plain_text()
    try:
        result = app(arguments, standalone_mode=False)
    except UserError as error:
        return _failed(str(error), error.exit_code)
    except PipelineError as error:
        names = (kind.__name__ for kind in type(error).__mro__)
        return _failed(str(error), next((_STATUS[name] for name in names if name in _STATUS), ExitCode.FINDINGS))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        return _failed(f"{missing} is not installed: pip install 'commitlogfs[spark]'", ExitCode.REFUSED)
    except typer.Exit as error:
        return error.exit_code
    except TyperException as error:
        message = error.format_message()  # without arguments the help was the message
        return _failed(message, ExitCode.USAGE) if message else int(ExitCode.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _failed(f"{where}{error.strerror or error}", ExitCode.FINDINGS)
    except Exception as error:
        if "-v" in (arguments or sys.argv) or "--verbose" in (arguments or sys.argv):
            raise
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        return _failed(f"Spark: {spark_reason(error)} (-v shows all of it)", ExitCode.FINDINGS)
    return result if isinstance(result, int) else int(ExitCode.OK)


def _failed(message: str, status: ExitCode) -> int:
    print(f"{_NAME}: {plain(message)}", file=sys.stderr)
    return int(status)
