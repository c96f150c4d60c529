"""Whether commands write plain text: no colours, no bold."""

import os


def use_plain_text() -> None:
    """Write plain text from here on, also in help texts: for --no-color and $NO_COLOR."""
    os.environ["NO_COLOR"] = "1"
    # Typer's own setting for its help is in a module that takes 0.1 s to load. If Typer sees no terminal, it writes
    # no styles.
    os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"


def is_plain_text() -> bool:
    """Whether $NO_COLOR is set and not empty (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))
