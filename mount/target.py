"""Which mount a command means: by name, configuration file or mountpoint."""

from dataclasses import dataclass
from pathlib import Path

from commitlogfs.mount import mountinfo, runtime
from commitlogfs.mount.config import config_path, load_config
from commitlogfs.mount.errors import UnreachableError, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    name: str

    @property
    def socket(self) -> Path:
        return runtime.socket_path(self.name)


def find_target(which: str | None) -> Target:
    """The mount meant by `[NAME|FILE|MOUNTPOINT]`; None means the only one running.

    Raises UsageError, UnreachableError.
    """
    if which is None:
        names = runtime.list_names()
        if not names:
            raise UnreachableError("no mount is running: start one with `commitlogfs mount`")
        if len(names) > 1:
            raise UsageError(f"{len(names)} mounts are running: name one of {', '.join(names)}")
        return Target(names[0])
    if which.endswith(".toml"):
        return Target(load_config(config_path(which)).name)
    if "/" in which:
        entry = mountinfo.find_mount(which)
        if entry is None or not mountinfo.is_commitlogfs(entry):
            raise UnreachableError(f"{which}: no commitlogfs is mounted here")
        return Target(entry.source)
    return Target(which)


def mountpoint_of(which: str) -> str:
    """The mountpoint meant by `NAME|FILE|MOUNTPOINT`, without asking the daemon (it may be dead).

    Raises UsageError, UnreachableError.
    """
    if which.endswith(".toml"):
        return load_config(config_path(which)).mountpoint
    if "/" in which:
        return mountinfo.resolve_path(which)
    found = [entry.mountpoint for entry in mountinfo.read_mounts() if _is_named(entry, which)]
    if found:
        return found[-1]
    return load_config(config_path(which)).mountpoint


def _is_named(entry: mountinfo.MountEntry, name: str) -> bool:
    return mountinfo.is_commitlogfs(entry) and entry.source == name
