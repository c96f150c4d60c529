"""Whether a disk still lies at its path: it may be unmounted under its users, or back on another filesystem."""

import os
from dataclasses import dataclass
from enum import Enum

from commitlogfs.store.disks import identity


@dataclass(frozen=True, slots=True)
class Place:
    """A directory to which the path of a disk leads."""

    device: int
    inode: int
    pool_id: str
    """"" if no disk of a pool lies there, as in the bare directory under a mount."""
    disk_id: str
    number: int = 0
    """The disk's number in its pool."""


NOWHERE = Place(0, 0, "", "")
"""The path leads nowhere."""


class Whereabouts(Enum):
    """Where the disk of a pool is, by its path."""

    HERE = "here"
    """The path leads to the directory that is served."""
    AWAY = "away"
    """The path does not lead to the disk."""
    BACK = "back"
    """The path leads to the disk, but not to the directory that is served, or none is served."""


def look(path: str) -> Place:
    """Blocks. Raises OSError, PoolError for a damaged identity."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return NOWHERE
    try:
        status, known = os.fstat(fd), identity.read_identity(fd, path)
        if known is None:
            return Place(status.st_dev, status.st_ino, "", "")
        return Place(status.st_dev, status.st_ino, known.pool_id, known.disk_id, known.number)
    finally:
        os.close(fd)


def judge(place: Place, pool_id: str, disk_id: str, served: tuple[int, int] | None) -> Whereabouts:
    """`served` are device and inode of the directory that is served as this disk; None if there is none. Pure."""
    if served == (place.device, place.inode):
        return Whereabouts.HERE
    is_it = (place.pool_id, place.disk_id) == (pool_id, disk_id)
    return Whereabouts.BACK if is_it else Whereabouts.AWAY
