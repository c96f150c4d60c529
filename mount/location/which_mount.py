"""Which mount a command means: by name, configuration file or mountpoint.

Only the functions that read configuration files import their parser, whose loading takes 0.15 s.
"""

import difflib
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError, UnreachableError, UsageError, UserError
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import control_client, runtime_directory
from commitlogfs.mount.location.name_lock import is_of_this_directory, recorded_mount
from commitlogfs.mount.location.status_file import read_status_file


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    others_mountpoint: str | None = None
    """Mountpoint, if its daemon does not answer this user; None for a mount of this runtime directory."""

    @property
    def socket(self) -> Path:
        return runtime_directory.socket_path(self.name)

    def status(self) -> dict[str, Any]:
        """The status document: from the daemon, or from the file in the mount, which other users may read, too.

        Raises UnreachableError, RefusedError, ControlError.
        """
        if self.others_mountpoint is not None:
            return read_status_file(self.others_mountpoint)
        return control_client.ask(self.socket, "status")


def find_target(which: str | None, *, reads_file: bool = True, of_others: bool = False) -> Target:
    """The mount meant by `[NAME|FILE|MOUNTPOINT]`; None means that of --config, else the only running one.

    A FILE means the mount of the file's name; with `reads_file` the file must be usable. With `of_others` the
    result may be a mount whose daemon does not answer this user; else such a mount is refused.

    Raises ConfigError, UsageError, UnreachableError, RefusedError.
    """
    target = _find(settings.or_default(which), reads_file)
    if target.others_mountpoint is not None and not of_others:
        owner = _owner(target.others_mountpoint)
        remedy = (
            "run the command as that user (`sudo -u`), with the $COMMITLOGFS_RUNTIME_DIR of its daemon"
            if os.geteuid() == 0
            else "its daemon answers that user and root only; run the command as one of them"
        )
        raise RefusedError(f"{target.name}: {owner} has mounted it at {target.others_mountpoint}; {remedy}")
    return target


def running_targets() -> list[Target]:
    """The mounts of this user; if there are none, for users other than root the visible mounts of others.

    Raises RefusedError if the runtime directory exists but another user could have made it.
    """
    try:
        names = runtime_directory.list_names()
    except RefusedError:
        if not _others():
            raise
        names = []
    if not names and os.geteuid() != 0:
        return [Target(entry.source, entry.mountpoint) for entry in _others()]
    listening = [name for name in names if control_client.is_listening(runtime_directory.socket_path(name))]
    return [Target(name) for name in listening or names]


def configuration_file(which: str | None) -> Path:
    """The configuration file meant by `[NAME|FILE|MOUNTPOINT]`; None means the only one there is.

    A MOUNTPOINT is that of a running mount, or one that a configuration has.

    Raises ConfigError, UsageError.
    """
    from commitlogfs.mount.config.errors import ConfigError, Problem
    from commitlogfs.mount.config.model import default_config_path, list_configs, load_config

    if which is None:
        return default_config_path()
    if not _is_mountpoint(which):
        return _file_of_name(which)
    entry = mountinfo.find_mount(which)
    if entry is None and Path(which).is_file():
        return Path(which)
    if entry is not None and mountinfo.is_commitlogfs(entry):
        file = _file_of_running(entry)
        if file is not None:
            return file
    mountpoint = mountinfo.resolve_path(which)
    for path in list_configs():
        try:
            found = mountinfo.resolve_path(load_config(path).mountpoint) == mountpoint
        except ConfigError:
            continue
        if found:
            return path
    problem = "not a configuration file, and no configuration has this mountpoint; give a NAME or a FILE"
    raise ConfigError(which, Problem("", problem))


def _file_of_name(which: str) -> Path:
    """The configuration file of a NAME or FILE. A running mount may have one that is in no directory of ours."""
    from commitlogfs.mount.config.errors import ConfigError
    from commitlogfs.mount.config.model import config_path

    try:
        return config_path(which)
    except ConfigError:
        try:
            entry = recorded_mount(which)
        except UsageError:
            entry = None
        file = None if entry is None else _file_of_running(entry)
        if file is None:
            raise
        return file


def answering_mountpoint(which: str | None) -> str:
    """The mountpoint meant by `[NAME|FILE|MOUNTPOINT]`, as its daemon reports it.

    For a path the daemon is not asked: it answers root and its own user only, and more users may use the mount.

    Raises UsageError, UnreachableError.
    """
    which = settings.or_default(which)
    if which is not None and _is_mountpoint(which):
        return mountinfo.resolve_path(which)
    target = find_target(which, of_others=True)
    mountpoint: str = target.others_mountpoint or target.status()["mountpoint"]
    return mountpoint


def mountpoint_of(which: str | None) -> str:
    """The mountpoint meant by `NAME|FILE|MOUNTPOINT`. The daemon is not asked, as it may be dead.

    Raises UsageError, UnreachableError.
    """
    from commitlogfs.mount.config.model import config_path, load_config

    which = settings.or_default(which)
    if which is None:
        raise UsageError("no mount is given; give its NAME, its configuration FILE or its MOUNTPOINT")
    if which.endswith(".toml"):
        return load_config(config_path(which)).mountpoint
    if _is_mountpoint(which):
        return mountinfo.resolve_path(which)
    entry = recorded_mount(which)
    return load_config(config_path(which)).mountpoint if entry is None else entry.mountpoint


def _find(which: str | None, reads_file: bool) -> Target:
    if which is None:
        targets = running_targets()
        if not targets:
            raise UnreachableError("no mount is running; start one with `commitlogfs mount`")
        if len(targets) > 1:
            names = ", ".join(target.name for target in targets)
            raise UsageError(f"{len(targets)} mounts are running; give one of {names}")
        return targets[0]
    if which.endswith(".toml"):
        if not reads_file:
            return Target(Path(which).stem)
        from commitlogfs.mount.config.model import load_config

        config = load_config(which)
        return _named(config.name, config.mountpoint)
    if _is_mountpoint(which):
        entry = mountinfo.find_mount(which)
        if entry is None or not mountinfo.is_commitlogfs(entry):
            raise UnreachableError(
                f"{which}: no commitlogfs is mounted here; `commitlogfs status` lists the mounts"
            )
        return Target(entry.source, None if is_of_this_directory(entry) else entry.mountpoint)
    target = _named(which)
    if target.others_mountpoint is not None or which in _names_of_this_directory():
        return target
    if which not in _known_names():
        raise UsageError(f"{which}: no such mount or configuration{_suggest(which, _known_names())}")
    return target


def _named(name: str, mountpoint: str | None = None) -> Target:
    """The mount `name` of this runtime directory, else that of another one (at `mountpoint`, if that is given).

    Raises UsageError for a text that cannot be a name, and if several mounts of others have the name.
    """
    if control_client.is_listening(runtime_directory.socket_path(name)) or name in _names_of_this_directory():
        return Target(name)
    expected = None if mountpoint is None else mountinfo.resolve_path(mountpoint)
    others = [entry.mountpoint for entry in _others() if entry.source == name]
    mountpoints = [other for other in others if expected in (None, other)]
    if len(mountpoints) > 1:
        raise UsageError(f"{name}: {len(mountpoints)} mounts have this name; give one of {', '.join(mountpoints)}")
    return Target(name, mountpoints[0] if mountpoints else None)


def _others() -> list[mountinfo.MountEntry]:
    """Visible mounts of other runtime directories, such as those of another user."""
    entries = mountinfo.read_mounts()
    return [
        entry
        for entry in entries
        if mountinfo.is_commitlogfs(entry)
        and mountinfo.find_mount(entry.mountpoint, entries) == entry
        and not is_of_this_directory(entry)
    ]


def _names_of_this_directory() -> list[str]:
    try:
        return runtime_directory.known_names()
    except RefusedError:
        return []


def _known_names() -> list[str]:
    """Names of all mounts and configurations, for suggestions."""
    from commitlogfs.mount.config.errors import ConfigError
    from commitlogfs.mount.config.model import list_configs

    try:
        configurations = list_configs()
    except ConfigError:
        configurations = []
    return sorted(
        {
            *_names_of_this_directory(),
            *(path.stem for path in configurations),
            *(entry.source for entry in _others()),
        }
    )


def _suggest(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; `commitlogfs status` lists the running mounts"


def _owner(mountpoint: str) -> str:
    entry = mountinfo.find_mount(mountpoint)
    uid = 0 if entry is None else entry.user_id
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _file_of_running(entry: mountinfo.MountEntry) -> Path | None:
    """Configuration file of the mount's daemon; None if the daemon does not answer. Raises UsageError if it has
    none."""
    target = Target(entry.source, None if is_of_this_directory(entry) else entry.mountpoint)
    try:
        document = target.status()
    except UserError:
        return None
    file: str | None = document["daemon"]["configuration"]
    if file is None:
        disks = ",".join(disk["path"] for disk in document["disks"])
        raise UsageError(
            f"{entry.mountpoint}: mounted without a configuration file (mount --init); its disks are {disks}"
        )
    return Path(file)


def _is_mountpoint(which: str) -> bool:
    return "/" in which and not which.endswith(".toml")
