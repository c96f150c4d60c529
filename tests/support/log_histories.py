"""A log with a random life: it grows, is cleaned, is wiped, is cut back and written anew. All messages differ."""

import random
import shutil
from pathlib import Path

from support.messages import message
from support.written_logs import Maker, WrittenLog

SEGMENT = 1 << 13


class LivingLog:
    """`rows` are log offset and body of all messages of the present log, deleted ones included."""

    def __init__(self, directory: Path, random_: random.Random) -> None:
        self._random, self._directory, self._number = random_, directory, 0
        self.rows: list[tuple[int, bytes]] = []
        self.log = WrittenLog(directory, SEGMENT)
        self.grow()

    @property
    def begin(self) -> int:
        """Log offset of the first segment that is there."""
        return min(int(path.name) for path in self._directory.iterdir())

    @property
    def present(self) -> set[tuple[int, bytes]]:
        """The messages that are not deleted."""
        begin = self.begin
        return {row for row in self.rows if row[0] >= begin}

    def live(self) -> None:
        """One change."""
        kinds = [self.grow, self.grow, self.clean, self.wipe, self.cut]
        self._random.choice(kinds)()

    def grow(self) -> None:
        for _ in range(self._random.randint(1, 120)):
            make, body = self._new_message()
            self.rows.append((self.log.append(make), body))

    def clean(self) -> None:
        """The broker deletes the oldest segments, never the last one."""
        bases = sorted(int(path.name) for path in self._directory.iterdir())
        for base in bases[: self._random.randint(0, len(bases) - 1)]:
            self.log.segment_at(base).unlink()

    def wipe(self) -> None:
        shutil.rmtree(self._directory)
        self.log, self.rows = WrittenLog(self._directory, SEGMENT), []
        self.grow()

    def cut(self) -> None:
        """A broker that recovers cuts off the end, and stores other messages there."""
        begin = self.begin
        candidates = [index for index, row in enumerate(self.rows) if row[0] >= begin][-60:]
        if not candidates:
            return
        index = self._random.choice(candidates)
        end = self.rows[index][0]
        for path in self._directory.iterdir():
            if int(path.name) > end:
                path.unlink()
        self.rows = self.rows[:index]
        self.log.offsets, self.log.end = [row[0] for row in self.rows], end
        make, body = self._new_message()
        # An old message that begins where a new one ends would belong to the log (RocketMQ reads it, too).
        self.log.write_at(end, bytes(SEGMENT - end % SEGMENT))
        self.rows.append((self.log.append(make), body))
        if self._random.random() < 0.5:
            self.grow()

    def _new_message(self) -> tuple[Maker, bytes]:
        self._number += 1
        body = b"%d " % self._number + b"x" * self._random.randint(0, 200)
        return message(self._number, body=body), body
