"""Whether the command lines write text only: neither colours nor bold."""

import os


def use_plain_text() -> None:
    """From now on text only, in help texts, too: what --no-color and $NO_COLOR ask for."""
    os.environ["NO_COLOR"] = "1"
    # Typer has a setting for its help only in a module that takes 0.1 s to load; where it sees no terminal, it
    # writes no styles.
    os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"


def is_plain_text() -> bool:
    """https://no-color.org: set, and not empty."""
    return bool(os.environ.get("NO_COLOR"))
