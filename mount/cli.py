"""The command `commitlogfs`: it registers the verbs and the options before them."""

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import interrupts, settings
from commitlogfs.console import main as console
from commitlogfs.mount.linux import logs

VERBS: Final = (
    *("init", "adopt", "destroy", "mount", "umount", "restart", "ready", "reopen-logs", "restore", "status"),
    *("top", "map", "locate", "explain", "read", "check", "doctor", "debug", "config", "disk", "rebalance"),
    *("retention", "scrub"),
)
"""As the help lists them. Each is registered by its module of mount.commands."""
_OPTIONS: Final[dict[str, Any]] = {
    "name": "commitlogfs",
    "help": "One RocketMQ commitlog directory, striped as plain files over many disks.",
    "no_args_is_help": True,
    "add_completion": True,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "epilog": "EXIT STATUS: 0 ok, 1 findings, 2 usage, 3 daemon unreachable, 4 refused.",
}
"""Arguments of typer.Typer."""


def application(verb: str | None = None) -> typer.Typer:
    """The command with all verbs and plug-ins; or with this one of VERBS, which loads in a fraction of the time."""
    app = typer.Typer(**_OPTIONS)
    app.callback()(options)
    for name in VERBS if verb is None else (verb,):
        importlib.import_module(f"commitlogfs.mount.commands.{name.replace('-', '_')}").register(app)
    if verb is None:
        from importlib.metadata import entry_points

        for plugin in entry_points(group="commitlogfs.verbs"):
            plugin.load()(app)
    return app


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
    return load(arguments)()


def load(arguments: list[str] | None = None) -> interrupts.Main:
    """The command of these arguments, with all that its modules import."""
    app = application(verb_of(sys.argv[1:] if arguments is None else arguments))
    return lambda: console.run(app, arguments)


def verb_of(arguments: Sequence[str]) -> str | None:
    """The verb if it is one of VERBS; None: a plug-in's, an unknown one, or none."""
    values = {"--config"}  # options before the verb that take the next argument
    words = (word for before, word in zip(("", *arguments), arguments, strict=False) if before not in values)
    verb = next((word for word in words if not word.startswith("-")), None)
    return verb if verb in VERBS else None


if __name__ == "__main__":
    sys.exit(interrupts.run(load))
