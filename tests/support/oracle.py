"""Expected value of every byte of the exercised segments, and the history of a wrong byte."""

import random
from collections import deque
from dataclasses import dataclass, field

from support.openers import Opener

_POOL_BYTES = 1 << 21
_REMEMBERED = 20_000
_SHOWN = 40
_SAMPLE = 16


class DifferenceError(Exception):
    """The mount is not as the oracle says."""


@dataclass(eq=False)
class File:
    """One file of the mount, named or removed."""

    number: int
    index: int
    path: str
    content: bytearray
    linked: bool = True
    opens: "list[Open]" = field(default_factory=list)

    def __str__(self) -> str:
        return f"file {self.number} (segment {self.index}{'' if self.linked else ', removed'})"


@dataclass(eq=False)
class Open:
    """One open of a file, and perhaps a mapping of it."""

    number: int
    opener: Opener
    where: str
    """The opener, and how the file was opened."""
    file: File
    reads: bool
    writes: bool
    appends: bool
    direct: bool
    mapped: range | None = None

    def __str__(self) -> str:
        return f"open {self.number} ({self.where}) of {self.file}"


@dataclass(slots=True)
class _Step:
    number: int
    what: str
    file: int
    offset: int
    length: int
    source: int | None
    """Where in the pool its data come from; None if it changes nothing."""


class Oracle:
    """Expectations, and the last steps. Every write takes its bytes from another place of a random pool, so that
    the bytes tell which write they are of."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._pool = self._random.randbytes(_POOL_BYTES)
        self._source = 0
        """Where in the pool the last data were taken from."""
        self._steps: deque[_Step] = deque(maxlen=_REMEMBERED)
        self.step = 0

    def data(self, length: int) -> bytes:
        """Bytes to write: the step that is noted next has written them."""
        self._source = self._random.randrange(_POOL_BYTES - length)
        return self._pool[self._source : self._source + length]

    def note(
        self, what: str, opened: Open | File, offset: int = 0, length: int = 0, *, wrote: bool = False
    ) -> None:
        """Before a step is taken: a failing one is the last in the story."""
        file = opened if isinstance(opened, File) else opened.file
        source = self._source if wrote else None
        self._steps.append(_Step(self.step, f"{what} {opened}", file.number, offset, length, source))

    def check(self, file: File, found: bytes, offset: int, length: int) -> None:
        """Raises DifferenceError unless `found` are these bytes of the file."""
        expected = file.content[offset : offset + length]
        if found == expected:
            return
        if len(found) != len(expected):
            raise DifferenceError(f"{len(found)} bytes instead of {len(expected)}")
        wrong = [at for at in range(len(found)) if found[at] != expected[at]]
        first = wrong[0]
        lines = [f"{file}: {len(wrong)} wrong bytes, positions {offset + first} to {offset + wrong[-1]}"]
        for word, content in (("expected", bytes(expected)), ("found", found)):
            sample = content[first : first + _SAMPLE]
            lines.append(f"{word:8} {sample.hex(' ')}{self._writer(file, offset + first, sample[:4])}")
        raise DifferenceError("\n".join(lines))

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise DifferenceError(f"{what} is {found!r} instead of {expected!r}")

    def story(self) -> str:
        """The last steps, oldest first."""
        shown = list(self._steps)[-_SHOWN:]
        return "\n".join(
            f"  {step.number:>8} {step.what}" + (f" [{step.offset}, +{step.length}]" if step.length else "")
            for step in shown
        )

    def _writer(self, file: File, position: int, sample: bytes) -> str:
        """Which step wrote these bytes there."""
        for step in reversed(self._steps):
            if step.source is None or not step.offset <= position < step.offset + step.length:
                continue
            start = step.source + position - step.offset
            if step.file == file.number and self._pool[start : start + len(sample)] == sample:
                return f"  of step {step.number}"
        return "  (never written)" if not any(sample) else ""
