"""Pieces of the archive: each is collected in a thread of its own, within a deadline, and may fail alone."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from commitlogfs.console.errors import UserError

MAX_BYTES: Final = 8 << 20
"""Most bytes of one piece. Of a longer one, the beginning is kept."""


class NotCollectedError(Exception):
    """Why a piece is not in the archive."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`file` is the member's name, `holds` says what it is."""

    file: str
    holds: str
    collect: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of one piece: `content`, or None and the `problem`."""

    piece: Piece
    content: bytes | None
    problem: str
    seconds: float
    is_cut: bool = False


def collect_all(pieces: Iterable[Piece], deadline_s: float) -> list[Collected]:
    """All pieces, collected at the same time. A piece without a result after `deadline_s` is given up."""
    end = time.monotonic() + deadline_s
    tasks = [_Task(piece) for piece in pieces]
    for task in tasks:
        task.start()
    results = []
    for task in tasks:
        task.join(max(0.0, end - time.monotonic()))
        late = Collected(task.piece, None, f"no result within {deadline_s:g} s", deadline_s)
        results.append(task.result or late)
    return results


class _Task(threading.Thread):
    def __init__(self, piece: Piece) -> None:
        super().__init__(name=piece.file, daemon=True)
        self.piece = piece
        self.result: Collected | None = None

    def run(self) -> None:
        begun = time.monotonic()
        content, problem = None, ""
        try:
            content = self.piece.collect()
        except (NotCollectedError, UserError) as error:
            problem = str(error)
        except Exception as error:  # a piece that fails must not cost the others
            problem = f"{type(error).__name__}: {error}"
        is_cut = content is not None and len(content) > MAX_BYTES
        if content is not None:
            content = content[:MAX_BYTES]
        self.result = Collected(self.piece, content, problem, round(time.monotonic() - begun, 3), is_cut)
