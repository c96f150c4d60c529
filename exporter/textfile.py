"""The metrics as a file for node_exporter's textfile collector."""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from commitlogfs.console.errors import RefusedError
from commitlogfs.exporter.exposition import expose
from commitlogfs.exporter.figures import ANSWER_TIMEOUT_S, MAX_AGE_S, Figures
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock

FILE_NAME: Final = "commitlogfs.prom"
_LEFT_S: Final = 60.0
"""Writing takes far less, so an older temporary file has no writer."""


def write(directory: Path, text: bytes, clock: Clock = SYSTEM_CLOCK) -> None:
    """Replace the file; a reader never sees a part of it. Raises RefusedError."""
    try:
        _sweep(directory, clock)
        fd, temporary = tempfile.mkstemp(dir=directory, prefix=f".{FILE_NAME}.")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(directory / FILE_NAME)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RefusedError(
            f"{directory}: cannot write {FILE_NAME} ({error.strerror}); make the directory writable for this user"
        ) from error


def _sweep(directory: Path, clock: Clock) -> None:
    """Remove what an exporter that was killed has left half-written."""
    for left in directory.glob(f".{FILE_NAME}.*"):
        with contextlib.suppress(FileNotFoundError):
            if clock.wall() - left.stat().st_mtime > _LEFT_S:
                left.unlink()


async def compose(figures: Figures) -> bytes:
    """The text with figures that every daemon had time to give."""
    mounts = await figures.recent(ANSWER_TIMEOUT_S, MAX_AGE_S)
    text, _ = expose(mounts, figures.clock.monotonic())
    return text


async def keep_writing(directory: Path, figures: Figures, interval_s: float) -> None:
    """Write the file until cancelled, and remove it then, as nothing keeps it true. Raises RefusedError."""
    writing: asyncio.Future[None] | None = None
    try:
        while True:
            text = await compose(figures)
            writing = asyncio.ensure_future(asyncio.to_thread(write, directory, text, figures.clock))
            await asyncio.shield(writing)
            await asyncio.sleep(interval_s)
    finally:
        if writing is not None:
            await asyncio.wait([writing])  # it would make the file anew
        with contextlib.suppress(OSError):
            (directory / FILE_NAME).unlink(missing_ok=True)
