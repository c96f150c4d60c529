"""The status document in the mount, which every user who can enter the mount may read."""

import json
import os
from pathlib import Path
from typing import Any, Final

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.linux.probe import probe_mount

HIDDEN: Final = ".commitlogfs"
_PROBE_TIMEOUT_S: Final = 5.0


def read_status_file(mountpoint: str) -> dict[str, Any]:
    """The status document. Raises UnreachableError if the mount does not answer, RefusedError if this user cannot
    enter it."""
    probed = probe_mount(mountpoint, _PROBE_TIMEOUT_S)
    if not probed.ok:
        if os.strerror(13) in probed.reason:
            raise RefusedError(
                f"{mountpoint}: {probed.reason}; run the command as root or as the user who mounted it"
            )
        raise UnreachableError(f"{mountpoint}: {probed.reason}")
    path = Path(mountpoint) / HIDDEN / "status.json"
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except PermissionError:
        raise RefusedError(f"{path}: permission denied; run the command as root") from None
    except OSError as error:
        raise UnreachableError(f"{path}: {os.strerror(error.errno or 0)}") from error
    return document
