"""Stores without a mount, and mounts that must not come about."""

import re
from pathlib import Path

from support.pools import MIB, PoolMount, segment_bytes, segment_name

from commitlogfs.mount.linux import mountinfo


def write_segment(directory: Path, index: int, size: int = MIB) -> Path:
    """A segment as a broker leaves it, without a mount."""
    path = directory / segment_name(index, MIB)
    with path.open("wb") as file:
        file.write(segment_bytes(index, min(4096, size)))
        file.truncate(size)
    return path


def refused_mount(pool: PoolMount, *options: str) -> str:
    """Check that a mount is refused: exit 4, a readable report (returned), nothing mounted, no guard raised."""
    there = pool.mountpoint.exists()
    pool.write_config()
    ran = pool.cli("mount", pool.config, *options)
    assert ran.status == 4, ran.err
    assert "Traceback" not in ran.err
    # What comes before is the log of a foreground mount.
    report = ran.err[re.search(r"^commitlogfs: ", ran.err, re.MULTILINE).end() :]
    assert report.startswith(f"{pool.name}: not mounted")
    assert mountinfo.find_mount(pool.mountpoint) is None
    assert pool.mountpoint.exists() == there
    return report


def degrade(pool: PoolMount) -> None:
    pool.settings["on_missing"] = '"degraded"'
