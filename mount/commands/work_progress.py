"""Progress of work that the daemon does while a command waits, and what an interrupt of the command means."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from commitlogfs.console import settings
from commitlogfs.console.formatting import approximate_duration, approximate_size
from commitlogfs.console.output import make_console

_BAR_WIDTH: Final = 10
"""Leaves room for the longest description and all figures in 80 columns."""
_PHASES: Final = ("copying", "verifying")

ShowWork = Callable[[int, int, str], None]
"""Gets the bytes that are done, those that are left, and the text beside the bar."""


@contextmanager
def work_bar(description: str) -> Iterator[ShowWork]:
    """A bar with a text, which is wrapped, on a terminal only."""
    console = make_console(stderr=True)
    is_shown = console.is_terminal and not settings.current().quiet
    text = TextColumn("{task.fields[text]}", markup=False, table_column=Column(ratio=1))
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=_BAR_WIDTH), text)
    with Progress(*columns, console=console, transient=True, disable=not is_shown, expand=True) as progress:
        task = progress.add_task(description, total=None, text="")

        def show(done: int, left: int, text: str) -> None:
            progress.update(task, total=done + left or 1, completed=done, text=text)

        yield show


def describe_bytes(done: int, left: int, per_second: float, eta_s: float | None) -> str:
    """Bytes done and left, rate and time left, as far as they are known."""
    parts = [f"{approximate_size(done)} done", f"{approximate_size(left)} left"]
    if per_second:
        parts.append(f"{approximate_size(per_second)}/s")
    if eta_s is not None:
        parts.append(f"{approximate_duration(eta_s)} to go")
    return ", ".join(parts)


def moved_bytes(move: dict[str, Any] | None) -> int:
    """How far the move of a segment is, in bytes of the segment. Each byte is copied, then verified."""
    if move is None:
        return 0
    phases: int = _PHASES.index(move["phase"]) * move["size"] + move["done_bytes"]
    return phases // len(_PHASES)


@contextmanager
def explained_interrupt(text: str) -> Iterator[None]:
    """After an interrupt, prints what becomes of the work; the interrupt continues."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(text, err=True)
        raise
