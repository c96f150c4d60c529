"""Everything the system can tell about a directory tree, to prove that nothing was changed."""

import os
from pathlib import Path

_Entry = tuple[object, ...]


def snapshot(*directories: Path) -> dict[str, _Entry]:
    """lstat (but for the access time), extended attributes and link targets of everything, contents of small files.

    Mounts are not entered.
    """
    found: dict[str, _Entry] = {}
    for directory in directories:
        device = os.lstat(directory).st_dev
        _look(os.fspath(directory), device, found)
    return found


def _look(path: str, device: int, found: dict[str, _Entry]) -> None:
    state = os.lstat(path)
    kind = state.st_mode & 0o170000
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in _names(path)}
    content: object = None
    if kind == 0o120000:
        content = os.readlink(path)
    elif kind == 0o100000 and state.st_size <= 1 << 20:
        content = Path(path).read_bytes()
    found[path] = (
        state.st_mode,
        state.st_ino,
        state.st_nlink,
        state.st_uid,
        state.st_gid,
        state.st_size,
        state.st_blocks,
        state.st_mtime_ns,
        state.st_ctime_ns,
        attributes,
        content,
    )
    if kind == 0o040000 and state.st_dev == device:
        for name in sorted(os.listdir(path)):
            _look(os.path.join(path, name), device, found)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listxattr(path, follow_symlinks=False))
    except OSError:
        return []
