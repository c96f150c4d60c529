"""The mount that an archive is about, found without waiting for its daemon or its disks."""

import contextlib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.console.errors import UnreachableError, UsageError, UserError
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import list_configs
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import runtime_directory
from commitlogfs.mount.location.which_mount import Target, configuration_file, find_target, running_targets
from commitlogfs.store.files.locks import lock_holder


@dataclass(frozen=True, slots=True)
class Subject:
    """One mount. `file` is its configuration; None, with the reason in `no_file`, if that is not known."""

    name: str
    file: Path | None
    no_file: str
    others_mountpoint: str | None
    """Mountpoint, if the daemon does not answer this user."""

    def table(self) -> dict[str, object]:
        """The configuration as TOML has it, also if it is not a valid one; empty if it cannot be read."""
        try:
            return {} if self.file is None else tomllib.loads(self.file.read_text(errors="replace"))
        except (OSError, tomllib.TOMLDecodeError):
            return {}

    @property
    def mountpoint(self) -> str | None:
        configured = self.table().get("mountpoint")
        recorded = None
        with contextlib.suppress(UserError):
            recorded = runtime_directory.recorded_mountpoint(self.name)
        return self.others_mountpoint or recorded or (configured if isinstance(configured, str) else None)

    def disks(self) -> list[str]:
        """Paths of the configured disks."""
        disks = self.table().get("disks")
        tables = [disk for disk in disks if isinstance(disk, dict)] if isinstance(disks, list) else []
        return [os.path.normpath(disk["path"]) for disk in tables if isinstance(disk.get("path"), str)]

    def processes(self) -> dict[str, int]:
        """Pids of the daemon and of the keeper, as far as they live."""
        found = {}
        with contextlib.suppress(UserError):
            for role, path in (
                ("daemon", runtime_directory.lock_path(self.name)),
                ("keeper", runtime_directory.keeper_lock_path(self.name)),
            ):
                pid = lock_holder(str(path))
                if pid is not None:
                    found[role] = pid
        return found


def find_subject(which: str | None) -> Subject | None:
    """The mount meant by `[NAME|FILE|MOUNTPOINT]`; None if none is given, configured or running.

    Raises UsageError, UnreachableError, RefusedError.
    """
    which = _only_one() if which is None else which
    if which is None:
        return None
    if which.endswith(".toml"):
        return _of_file(Path(which))
    try:
        target = find_target(which, reads_file=False, of_others=True)
    except UnreachableError:
        file = _file_of_unmounted(which)
        if file is None:
            raise
        return _of_file(file)
    return _with_file(target, which)


def _of_file(file: Path) -> Subject:
    file = file.absolute()
    name = file.stem
    try:
        others = find_target(name, of_others=True).others_mountpoint
    except UserError:
        others = None
    return Subject(name, file, "", others)


def _with_file(target: Target, which: str) -> Subject:
    try:
        return Subject(target.name, configuration_file(which).absolute(), "", target.others_mountpoint)
    except UserError as error:
        return Subject(target.name, None, str(error), target.others_mountpoint)


def _file_of_unmounted(mountpoint: str) -> Path | None:
    """The configuration that has a mountpoint at which nothing is mounted."""
    try:
        return configuration_file(mountpoint)
    except UserError:
        return None


def _only_one() -> str | None:
    """The only mount that runs or is configured; None if there is none. Raises UsageError if there are several."""
    configured: list[str] = []
    with contextlib.suppress(ConfigError):
        configured = [path.stem for path in list_configs()]
    running: list[Target] = []
    with contextlib.suppress(UserError):
        running = running_targets()
    if len(running) == 1:
        return running[0].others_mountpoint or running[0].name
    names = dict.fromkeys([*(target.name for target in running), *configured])
    if len(names) > 1:
        raise UsageError(f"debug: there are several mounts; give one of {', '.join(names)}")
    return next(iter(names), None)


def mounts_of(subject: Subject | None, disks: list[str]) -> list[mountinfo.MountEntry]:
    """The mounts of commitlogfs, and those that the disks lie on. No path is looked up on a disk, so symbolic links
    in the paths of disks are not followed."""
    entries = mountinfo.read_mounts()
    found = [entry for entry in entries if mountinfo.is_commitlogfs(entry)]
    paths = [
        *disks,
        *([] if subject is None or subject.mountpoint is None else [str(Path(subject.mountpoint).parent)]),
    ]
    for path in paths:
        entry = mountinfo.containing_mount(path, entries)
        if entry is not None and entry not in found:
            found.append(entry)
    return found
