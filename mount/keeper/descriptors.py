"""The descriptors that a keeper keeps: what FDSTORE=1 of sd_notify(3) does at systemd."""

import fcntl
import os
from collections.abc import Sequence

MAX_DESCRIPTORS = 16
_FLOOR = 64
"""Kept descriptors are numbered from here on, out of the way of those a new process is started with."""


class KeptDescriptors:
    """Named descriptors, in the order of their coming. Several may have one name."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, name: str, fds: Sequence[int]) -> bool:
        """Take over `fds`. False, and all of them closed, if the name cannot be one or there are too many."""
        wanted = is_name(name) and len(self._kept) + len(fds) <= MAX_DESCRIPTORS
        for fd in fds:
            if wanted:
                self._kept.append((name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FLOOR)))
            os.close(fd)
        return wanted

    def drop(self, name: str) -> int:
        """Close all of this name; how many there were."""
        gone = [fd for kept, fd in self._kept if kept == name]
        self._kept = [item for item in self._kept if item[0] != name]
        for fd in gone:
            os.close(fd)
        return len(gone)

    def items(self) -> tuple[tuple[str, int], ...]:
        """Still ours: whoever wants them longer makes copies."""
        return tuple(self._kept)

    def close(self) -> None:
        """Close all of them."""
        for name in {name for name, _ in self._kept}:
            self.drop(name)


def is_name(name: str) -> bool:
    """Whether $LISTEN_FDNAMES can carry it: printable ASCII without a colon, as at systemd."""
    return 0 < len(name) <= 255 and name.isascii() and name.isprintable() and ":" not in name
