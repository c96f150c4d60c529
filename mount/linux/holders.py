"""The processes that keep a mount busy, found without touching the mount.

Only /proc is read: `stat` or `open` on a mount whose daemon is dead would block. Processes that this user cannot
read are left out.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.mountinfo import MountEntry

_HOLDERS_SHOWN = 5
_PROC = Path("/proc")
_MAP_LINE = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*) +(.*)$", re.MULTILINE)
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)
_FD_INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)


class HoldKind(StrEnum):
    """How a process holds a mount."""

    CWD = "cwd"
    ROOT = "root"
    FD = "fd"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that holds a mount. `example_path` is one of the paths, as /proc shows it."""

    pid: int
    comm: str
    uid: int
    kinds: frozenset[HoldKind]
    example_path: str
    namespace: str = ""
    """Its mount namespace, as `mnt:[4026532]`, if that is not the one of this process. What it holds there may keep
    no mount busy here."""


def find_holders(mountpoint: str | os.PathLike[str], *, exclude: Sequence[int] = ()) -> list[Holder]:
    """The processes that hold the topmost mount at `mountpoint`, sorted by pid; empty if nothing is mounted.

    Processes in other mount namespaces are found too. `exclude` names pids to leave out, such as
    `os.getpid()`. A snapshot: processes come and go meanwhile.
    """
    entry = mountinfo.find_mount(mountpoint)
    return [] if entry is None else find_device_holders(entry.device, exclude=exclude)


def find_device_holders(device: int, *, exclude: Sequence[int] = ()) -> list[Holder]:
    """As `find_holders`, for the mount whose files have this st_dev, even if it is not visible at its
    mountpoint."""
    views = _Views(device)
    pids = (pid for pid in _pids() if pid not in exclude)
    found = (_inspect(_PROC / str(pid), views) for pid in pids)
    return sorted(filter(None, found), key=lambda holder: holder.pid)


def find_holders_elsewhere(mountpoint: str | os.PathLike[str]) -> list[Holder]:
    """As `find_holders`, in other mount namespaces only. Takes little time without any."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None:
        return []
    views = _Views(entry.device)
    found = (_inspect(_PROC / str(pid), views) for pid in _pids_elsewhere(views))
    return sorted(filter(None, found), key=lambda holder: holder.pid)


@dataclass(frozen=True, slots=True)
class FileUser:
    """One process that has files of a mount open or mapped."""

    pid: int
    comm: str
    files: int


def find_file_users(mountpoint: str | os.PathLike[str], is_meant: Callable[[int], bool]) -> list[FileUser]:
    """The processes that have files open or mapped whose inode numbers `is_meant` accepts, sorted by pid. As
    `find_holders` otherwise."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None:
        return []
    views, found = _Views(entry.device), []
    for directory in _PROC.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            files = {ino for ino in _inodes_on_device(directory, views) if is_meant(ino)}
            comm = os.fsdecode((directory / "comm").read_bytes().rstrip(b"\n"))
        except (OSError, ValueError):
            continue  # the process has ended, or this user may not read it
        if files:
            found.append(FileUser(int(directory.name), comm, len(files)))
    return sorted(found, key=lambda user: user.pid)


def describe_file_users(users: Sequence[FileUser]) -> str:
    """One line for an operator: `java (pid 4711): 12 files, ...`; the first few, then a count."""
    texts = [
        f"{ascii(user.comm)[1:-1]} (pid {user.pid}): {user.files:,} file{'s' if user.files > 1 else ''}"
        for user in users[:_HOLDERS_SHOWN]
    ]
    if len(users) > _HOLDERS_SHOWN:
        texts.append(f"and {len(users) - _HOLDERS_SHOWN} more processes")
    return ", ".join(texts) if texts else "nothing"


def _inodes_on_device(directory: Path, views: "_Views") -> Iterator[int]:
    for major, minor, ino, _ in _MAP_LINE.findall((directory / "maps").read_bytes()):
        if os.makedev(int(major, 16), int(minor, 16)) == views.device:
            yield int(ino)
    mount_ids = views.mount_ids(directory)
    if not mount_ids:
        return
    for fd in _names(directory / "fdinfo"):
        with contextlib.suppress(OSError):
            info = (directory / "fdinfo" / fd).read_bytes()
            if any(int(found) in mount_ids for found in _MOUNT_ID.findall(info)):
                yield from map(int, _FD_INODE.findall(info))


def describe_holders(holders: Sequence[Holder]) -> str:
    """One line for an operator: `java (pid 4711, uid 1000: fd, map), ...`; the first few, then a count."""
    texts = [
        f"{ascii(holder.comm)[1:-1]} (pid {holder.pid}, uid {holder.uid}: {', '.join(sorted(holder.kinds))}"
        f"{f'; mount namespace {holder.namespace}' if holder.namespace else ''})"
        for holder in holders[:_HOLDERS_SHOWN]
    ]
    if len(holders) > _HOLDERS_SHOWN:
        texts.append(f"and {len(holders) - _HOLDERS_SHOWN} more")
    return ", ".join(texts) if texts else "nobody"


def find_namespaces(device: int) -> dict[str, int]:
    """The other mount namespaces that have a mount of this device, each with a pid of a process in it."""
    views, found = _Views(device), dict[str, int]()
    for pid in _pids_elsewhere(views):
        with contextlib.suppress(OSError):
            found.setdefault(views.other_namespace(_PROC / str(pid)), pid)
    return found


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _pids_elsewhere(views: "_Views") -> Iterator[int]:
    """Processes of other mount namespaces that have a mount of the device."""
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            directory = _PROC / str(pid)
            if views.other_namespace(directory) and views.mount_ids(directory):
                yield pid


class _Views:
    """Mounts of the device in each mount namespace; read once for each namespace."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._own = _namespace(_PROC / "self")
        self._entries: dict[str, tuple[MountEntry, ...]] = {}

    def entries(self, directory: Path) -> tuple[MountEntry, ...]:
        namespace = _namespace(directory)
        if namespace not in self._entries:
            # In our own namespace, our own view: /proc shows a chrooted process's paths from our root.
            ours = namespace == self._own
            self._entries[namespace] = mountinfo.read_mounts(None if ours else int(directory.name))
        return self._entries[namespace]

    def other_namespace(self, directory: Path) -> str:
        """The mount namespace of a process; empty if it is our own."""
        namespace = _namespace(directory)
        return "" if namespace == self._own else namespace

    def mount_ids(self, directory: Path) -> set[int]:
        return {entry.mount_id for entry in self.entries(directory) if entry.device == self.device}


def _namespace(directory: Path) -> str:
    return os.readlink(directory / "ns/mnt")  # noqa: PTH115  a text, no path


def _inspect(directory: Path, views: _Views) -> Holder | None:
    held: dict[HoldKind, str] = {}
    for kind, find_path in (
        (HoldKind.CWD, _link_on_device),
        (HoldKind.ROOT, _link_on_device),
        (HoldKind.FD, _fd_on_device),
        (HoldKind.MAP, _map_on_device),
    ):
        try:
            path = find_path(directory, kind, views)
        except (OSError, ValueError):
            continue  # the process has ended, or this user may not read it
        if path is not None:
            held[kind] = path
    if not held:
        return None
    try:
        comm = os.fsdecode((directory / "comm").read_bytes().rstrip(b"\n"))
        uid = _real_uid(directory)
        namespace = views.other_namespace(directory)
    except (OSError, ValueError):
        return None
    files = held.get(HoldKind.MAP) or held.get(HoldKind.FD)
    return Holder(int(directory.name), comm, uid, frozenset(held), files or next(iter(held.values())), namespace)


def _link_on_device(directory: Path, kind: HoldKind, views: _Views) -> str | None:
    path = os.readlink(directory / kind.value)  # noqa: PTH115  may be no path at all
    if not path.startswith("/"):
        return None
    # Compare devices, not paths: another mount may cover the path, and the mount may be visible elsewhere, too.
    entry = mountinfo.containing_mount(path, views.entries(directory))
    return path if entry is not None and entry.device == views.device else None


def _fd_on_device(directory: Path, _kind: HoldKind, views: _Views) -> str | None:
    mount_ids = views.mount_ids(directory)
    if not mount_ids:
        return None
    for fd in _names(directory / "fdinfo"):
        try:
            info = (directory / "fdinfo" / fd).read_bytes()
        except OSError:
            continue
        mount_id = _MOUNT_ID.search(info)
        if mount_id is not None and int(mount_id[1]) in mount_ids:
            return os.readlink(directory / "fd" / fd)  # noqa: PTH115
    return None


def _map_on_device(directory: Path, _kind: HoldKind, views: _Views) -> str | None:
    for major, minor, _, path in _MAP_LINE.findall((directory / "maps").read_bytes()):
        if os.makedev(int(major, 16), int(minor, 16)) == views.device:
            return os.fsdecode(path)
    return None


def _names(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as scan:
        for item in scan:
            yield item.name


def _real_uid(directory: Path) -> int:
    status = (directory / "status").read_bytes()
    match = re.search(rb"^Uid:\s*(\d+)", status, re.MULTILINE)
    if match is None:
        raise ValueError(f"{directory}/status shows no Uid")
    return int(match[1])
