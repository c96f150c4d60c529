"""The command `commitlogfs`: it registers the verbs and the options before them."""

import logging
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from commitlogfs.console import interrupts, settings
from commitlogfs.console import main as console
from commitlogfs.mount.commands import (
    adopt,
    check,
    config,
    disk,
    doctor,
    init,
    locate,
    mount,
    read,
    ready,
    rebalance,
    reopen_logs,
    restart,
    restore,
    retention,
    scrub,
    status,
    umount,
)
from commitlogfs.mount.commands import map as map_command
from commitlogfs.mount.linux import logs

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
for module in (*_SERVICE, restore, status, map_command, locate, read, check, doctor):
    module.register(app)
app.add_typer(config.app)
app.add_typer(disk.app)
app.add_typer(rebalance.app)
app.add_typer(retention.app)
app.add_typer(scrub.app)
for plugin in entry_points(group="commitlogfs.verbs"):
    plugin.load()(app)


@app.callback()
def options(
    context: typer.Context,
    config_file: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="The NAME or FILE of a command that is given none."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to standard error.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for every command that has --json.")] = False,
    no_color: console.NoColor = False,
    version: Annotated[bool, console.version_option("commitlogfs")] = False,
) -> None:
    settings.use(settings.Settings(verbose=verbose, quiet=quiet, json=as_json, config=config_file))
    if verbose:
        context.with_resource(logs.logging_to(level=logging.DEBUG))


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (docs/reference/cli.md)."""
    return console.run(app, arguments)


if __name__ == "__main__":
    sys.exit(interrupts.run(lambda: main))
