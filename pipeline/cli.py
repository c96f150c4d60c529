"""The `commitlogfs-pipeline` command with its verbs."""

import re
from typing import Annotated, Final

import typer

from commitlogfs.console import main as console
from commitlogfs.console import settings
from commitlogfs.console.errors import UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.commands import audit, export, rebuild, replay, stats
from commitlogfs.pipeline.commands.common import spark_reason
from commitlogfs.pipeline.log.locations import without_credentials
from commitlogfs.pipeline.source.options import OPTION_NAMES
from commitlogfs.store.printable import printable

_NAME: Final = "commitlogfs-pipeline"
_OPTION: Final = re.compile(rf"\b(?:{'|'.join(OPTION_NAMES)})(?= ?=)|\b(?:segmentSize|splitSize)\b")
"""A name of an option of the data source, as messages use it."""
_EXTRA: Final = {"pyspark", "py4j", "numba", "llvmlite", "numpy", "pyarrow", "jinja2", "markupsafe"}

app = typer.Typer(
    name=_NAME,
    help="Spark jobs for a RocketMQ commitlog: rebuild a store, audit it, export, replay and count its messages.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="EXIT STATUS: 0 ok, 1 findings, 2 usage, 3 no log, or Spark does not start, 4 refused.",
)
for module in (rebuild, audit, export, replay, stats):
    module.register(app)


@app.callback()
def options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print Spark's own messages and complete errors.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for every verb.")] = False,
    no_color: console.NoColor = False,
    show_version: Annotated[bool, console.version_option(_NAME)] = False,
) -> None:
    settings.use(settings.Settings(verbose=verbose, quiet=quiet, json=as_json))


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status (docs/pipeline.md)."""
    return console.run(app, arguments, _translate)


def _translate(error: Exception) -> UserError | None:
    if isinstance(error, UserError):
        return _failed(str(error), error.exit_code)
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
        if missing in _EXTRA:
            return _failed(f"{missing} is not installed; pip install 'commitlogfs[spark]'", ExitCode.REFUSED)
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j") and not settings.current().verbose:
        return _failed(f"Spark: {spark_reason(error)} (-v shows the complete error)", ExitCode.FINDINGS)
    return None


def _failed(message: str, status: ExitCode) -> UserError:
    error = UserError(printable(_with_command_line_options(without_credentials(message))))
    error.exit_code = status
    return error


def _with_command_line_options(message: str) -> str:
    """The message with the options of the data source under the names that they have on the command line."""
    message = message.replace(" or a smaller minPartitions", "")  # the command line has no such option
    message = message.replace("failOnDataLoss=false", "--no-fail-on-data-loss")
    message = message.replace("mode=PERMISSIVE", "--mode PERMISSIVE")
    return _OPTION.sub(lambda found: "--" + re.sub("([A-Z])", r"-\1", found[0]).lower(), message)
