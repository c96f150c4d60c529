"""/etc/fstab: which directories are mountpoints, also of what is not mounted at the moment."""

import os
import re
from pathlib import Path

from commitlogfs.mount.linux import mountinfo

_ESCAPE = re.compile(r"\\([0-7]{3})")
FSTAB = Path("/etc/fstab")


def unmounted_above(path: str, text: str | None = None) -> str | None:
    """A mountpoint of fstab, `path` or above it, at which nothing is mounted now; None if there is none.

    `text` is that of fstab. A file that cannot be read has no entries.
    """
    if text is None:
        try:
            text = FSTAB.read_text(errors="surrogateescape")
        except OSError:
            return None
    resolved = mountinfo.resolve_path(path)
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 3 or fields[0].startswith("#") or not fields[1].startswith("/"):
            continue
        mountpoint = os.path.normpath(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[1]))
        is_above = mountpoint in (path, resolved) or any(p.startswith(f"{mountpoint}/") for p in (path, resolved))
        if mountpoint != "/" and is_above and mountinfo.find_mount(mountpoint) is None:
            return mountpoint
    return None
