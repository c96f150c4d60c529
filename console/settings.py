"""The options that stand before the verb, for the length of one command."""

from dataclasses import dataclass

import typer


@dataclass(frozen=True, slots=True)
class Settings:
    verbose: bool = False
    """Log what is done on standard error."""
    quiet: bool = False
    """Nothing but results and complaints."""
    json: bool = False
    config: str | None = None
    """What NAME or FILE means where a command is given none."""


_current = Settings()


def use(settings: Settings) -> None:
    global _current
    _current = settings


def current() -> Settings:
    return _current


def or_default(which: str | None) -> str | None:
    """A command's NAME, FILE or MOUNTPOINT argument, else what --config says."""
    return _current.config if which is None else which


def wants_json(option: bool) -> bool:
    """Whether --json stands behind or before the verb."""
    return option or _current.json


def say(text: str) -> None:
    """What is pleasant to know and no result: on standard output, unless --quiet is given."""
    if not _current.quiet:
        typer.echo(text)
