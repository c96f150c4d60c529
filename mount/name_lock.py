"""The lock that makes a daemon the only one of its name."""

import os

from commitlogfs.mount import runtime
from commitlogfs.mount.errors import RefusedError
from commitlogfs.store.locks import take_lock


def hold_name(name: str, patience_s: float = 0.0) -> int:
    """The name's open lock file, held until it is closed. Raises RefusedError if another daemon has it
    for longer than `patience_s`."""
    runtime.ensure_runtime_folder()
    path = runtime.lock_path(name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be made ({error.strerror})") from error
    if not take_lock(fd, patience_s):
        os.close(fd)
        raise RefusedError(f"{name}: its daemon is running already: see `commitlogfs status {name}`")
    return fd
