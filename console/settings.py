"""The options before the verb, for the duration of one command."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    verbose: bool = False
    """Log the steps on standard error."""
    quiet: bool = False
    """Print only results, warnings and errors."""
    json: bool = False
    config: str | None = None
    """NAME or FILE for commands that are given none."""


_current = Settings()


def use(settings: Settings) -> None:
    global _current
    _current = settings


def current() -> Settings:
    return _current


def or_default(which: str | None) -> str | None:
    """A command's NAME, FILE or MOUNTPOINT argument, or else the value of --config."""
    return _current.config if which is None else which


def wants_json(option: bool) -> bool:
    """Whether --json is given after or before the verb."""
    return option or _current.json


def say(text: str) -> None:
    """Print information on standard output, unless --quiet is given. For results, use `typer.echo`."""
    if not _current.quiet:
        print(text, flush=True)
