"""The descriptors that a keeper keeps: what FDSTORE=1 of sd_notify(3) does at systemd."""

import fcntl
import os
from collections.abc import Sequence

MAX_DESCRIPTORS = 16
_FLOOR = 64
"""Kept descriptors have numbers from here on; a new process is started with lower ones."""


class KeptDescriptors:
    """Named descriptors, in the order in which they came. Several may have one name."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, name: str, fds: Sequence[int]) -> bool:
        """Take over `fds`. False, and all of them are closed, if the name is impossible or there are too many."""
        accepted = is_name(name) and len(self._kept) + len(fds) <= MAX_DESCRIPTORS
        for fd in fds:
            if accepted:
                self._kept.append((name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FLOOR)))
            os.close(fd)
        return accepted

    def drop(self, name: str) -> int:
        """Close all of this name; returns their number."""
        gone = [fd for kept, fd in self._kept if kept == name]
        self._kept = [item for item in self._kept if item[0] != name]
        for fd in gone:
            os.close(fd)
        return len(gone)

    def items(self) -> tuple[tuple[str, int], ...]:
        """They remain this object's: make copies to keep them longer."""
        return tuple(self._kept)

    def close(self) -> None:
        """Close all of them."""
        for name in {name for name, _ in self._kept}:
            self.drop(name)


def is_name(name: str) -> bool:
    """Whether $LISTEN_FDNAMES can carry it: printable ASCII without a colon, as at systemd."""
    return 0 < len(name) <= 255 and name.isascii() and name.isprintable() and ":" not in name
