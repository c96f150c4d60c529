"""Which mount a command means: by name, configuration file or mountpoint."""

from dataclasses import dataclass
from pathlib import Path

from commitlogfs.mount import control, mountinfo, runtime, settings
from commitlogfs.mount.config import config_path, load_config
from commitlogfs.mount.errors import UnreachableError, UsageError


@dataclass(frozen=True, slots=True)
class Target:
    name: str

    @property
    def socket(self) -> Path:
        return runtime.socket_path(self.name)


def find_target(which: str | None, *, reads_file: bool = True) -> Target:
    """The mount meant by `[NAME|FILE|MOUNTPOINT]`; None means that of --config, else the only one running. Its name
    tells which mount a FILE means; it has to be usable, too, if `reads_file`.

    Raises ConfigError, UsageError, UnreachableError.
    """
    which = settings.or_default(which)
    if which is None:
        names = runtime.list_names()
        names = [name for name in names if control.is_heard(runtime.socket_path(name))] or names
        if not names:
            raise UnreachableError("no mount is running: start one with `commitlogfs mount`")
        if len(names) > 1:
            raise UsageError(f"{len(names)} mounts are running: name one of {', '.join(names)}")
        return Target(names[0])
    if which.endswith(".toml"):
        file = config_path(which)
        return Target(load_config(file).name if reads_file else file.stem)
    if _is_mountpoint(which):
        entry = mountinfo.find_mount(which)
        if entry is None or not mountinfo.is_commitlogfs(entry):
            raise UnreachableError(f"{which}: no commitlogfs is mounted here")
        if not is_of_this_folder(entry):
            raise UnreachableError(
                f"{which}: its daemon is none of {runtime.runtime_folder()}: ask as the user who mounted it"
            )
        return Target(entry.source)
    return Target(which)


def answering_mountpoint(which: str | None) -> str:
    """The mountpoint meant by `[NAME|FILE|MOUNTPOINT]`, as its daemon knows it. A path is taken without asking: the
    daemon talks to root and its own user only, the mount to more.

    Raises UsageError, UnreachableError.
    """
    which = settings.or_default(which)
    if which is not None and _is_mountpoint(which):
        return mountinfo.resolve_path(which)
    mountpoint: str = control.ask(find_target(which).socket, "status")["mountpoint"]
    return mountpoint


def mountpoint_of(which: str | None) -> str:
    """The mountpoint meant by `NAME|FILE|MOUNTPOINT`, without asking the daemon (it may be dead).

    Raises UsageError, UnreachableError.
    """
    which = settings.or_default(which)
    if which is None:
        raise UsageError("which mount? Give its NAME, its configuration FILE or its MOUNTPOINT")
    if which.endswith(".toml"):
        return load_config(config_path(which)).mountpoint
    if _is_mountpoint(which):
        return mountinfo.resolve_path(which)
    recorded = runtime.recorded_mountpoint(which)
    if recorded is not None:
        entry = mountinfo.find_mount(recorded)
        if entry is not None and is_of_this_folder(entry) and entry.source == which:
            return entry.mountpoint
    return load_config(config_path(which)).mountpoint


def is_of_this_folder(entry: mountinfo.MountEntry) -> bool:
    """Whether a mount belongs to this runtime folder. Its name alone does not tell: names are chosen per folder."""
    if not mountinfo.is_commitlogfs(entry):
        return False
    try:
        recorded = runtime.recorded_mountpoint(entry.source)
    except UsageError:
        return False
    return recorded is not None and mountinfo.resolve_path(recorded) == entry.mountpoint


def _is_mountpoint(which: str) -> bool:
    return "/" in which and not which.endswith(".toml")
