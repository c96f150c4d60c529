"""The mounts of this machine: those of the mount table, and those that a configuration names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import list_configs, load_config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory


@dataclass(frozen=True, slots=True)
class FoundMount:
    name: str
    mountpoint: str
    """Empty if it is not known."""
    is_mounted: bool
    sockets: tuple[Path, ...]
    """Paths where its status socket may be, the likeliest first."""


class Discovery:
    """Finds the mounts anew at each call. A configuration is read again only after a change."""

    def __init__(self, wanted: tuple[str, ...] = ()) -> None:
        """`wanted`: names of the mounts that count; all without a name."""
        self._wanted = frozenset(wanted)
        self._configured: dict[Path, tuple[int, str]] = {}
        """Time of change (ns) and mountpoint, by configuration file."""

    def find(self) -> list[FoundMount]:
        """By name. Raises OSError if the mount table cannot be read."""
        configured = self._read_configurations()
        mounted = {
            entry.source: entry.mountpoint for entry in mountinfo.read_mounts() if _is_served(entry, configured)
        }
        names = {**dict.fromkeys(self._wanted, ""), **configured, **mounted}
        return [
            FoundMount(name, mountpoint, name in mounted, _sockets(name))
            for name, mountpoint in sorted(names.items())
            if not self._wanted or name in self._wanted
        ]

    def _read_configurations(self) -> dict[str, str]:
        try:
            files = [file for file in list_configs() if runtime_directory.is_name(file.stem)]
        except ConfigError:
            files = []
        self._configured = {file: self._configured.get(file, (0, "")) for file in files}
        for file, (known_ns, _) in self._configured.items():
            try:
                changed_ns = file.stat().st_mtime_ns
            except OSError:
                continue
            if changed_ns != known_ns:
                self._configured[file] = changed_ns, _mountpoint_in(file)
        return {file.stem: mountpoint for file, (_, mountpoint) in self._configured.items()}


def _is_served(entry: mountinfo.MountEntry, configured: Mapping[str, str]) -> bool:
    """Whether the mount counts. The mount table shows what the maker of a mount wrote, so any user can make one
    that looks like ours: only those of root and of this user count, whose sockets can be read, and configured ones.
    `configured`: mountpoints by name."""
    if not (mountinfo.is_commitlogfs(entry) and runtime_directory.is_name(entry.source)):
        return False
    return entry.user_id in (0, os.geteuid()) or configured.get(entry.source) == entry.mountpoint


def _mountpoint_in(file: Path) -> str:
    """Empty for a file that is no configuration, or cannot be read by this user."""
    try:
        return load_config(file).mountpoint
    except ConfigError:
        return ""


def _sockets(name: str) -> tuple[Path, ...]:
    own = runtime_directory.status_socket_path(name)
    of_root = runtime_directory.OF_ROOT / own.name
    return (own,) if os.environ.get(runtime_directory.OVERRIDE) or own == of_root else (of_root, own)
