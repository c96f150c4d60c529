"""The broker's store root, normally the directory around the mountpoint: whether the broker's user can write there,
and how full it is.

A broker that cannot make its `lock` file in it does not start.
"""

import contextlib
import grp
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.broker_store import ABORT_FILE, CHECKPOINT_FILE, CONFIG, CONSUME_QUEUE, INDEX, LOCK_FILE
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.files.usage import DiskUsage, measure_usage

_TRACES: Final = (LOCK_FILE, ABORT_FILE, CHECKPOINT_FILE, CONFIG, CONSUME_QUEUE, INDEX)
"""Names that a broker makes in its store root."""
_TIMEOUT_S: Final = 3.0

# Run as that user, so that the kernel decides, by access control lists and read-only filesystems, too.
_SCRIPT: Final = """
for directory; do
    [ -e "$directory" ] || exit 0
    [ -x "$directory" ] || { printf %s "$directory"; exit 1; }
done
[ -w "$directory" ] || exit 2
"""
_NOT_ENTERED, _NOT_WRITTEN = 1, 2


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """Result of `examine_store_root`.

    `obstacle` says why the pool's owner cannot write the directory, `remedy` what to do. Both are empty if the
    owner can, if this process cannot find out, and if the broker's store root is evidently another directory.
    `other_user` is the uid of a broker that has run there and is not the pool's owner.
    """

    path: str
    obstacle: str = ""
    remedy: str = ""
    other_user: int | None = None


def examine_store_root(mountpoint: str, owner: RootAttributes, *, has_segments: bool) -> StoreRoot:
    """Whether the pool's owner can write the directory around the mountpoint.

    `has_segments`: the log has segments, so a broker has run with this pool before.
    """
    root = Path(mountinfo.resolve_path(Path(mountpoint).parent))
    traces = [name for name in _TRACES if os.path.lexists(root / name)]
    if has_segments and not traces:
        return StoreRoot(str(root))
    if LOCK_FILE in traces:
        user = (root / LOCK_FILE).lstat().st_uid
        if user != owner.uid:
            return StoreRoot(str(root), other_user=user)
    obstacle, remedy = _find_obstacle(root, mountpoint, owner)
    return StoreRoot(str(root), obstacle, remedy)


def measure_store_root(root: str) -> tuple[str, DiskUsage]:
    """The fullest of the filesystems that hold the store root, its consumequeue and its index, and the path that
    leads to it. Each of the two may be a mountpoint, or a symbolic link to another disk; they are absent before a
    broker has started. Blocks. Raises OSError."""
    found = [(root, measure_usage(root))]
    for name in (CONSUME_QUEUE, INDEX):
        path = f"{root}/{name}"
        with contextlib.suppress(FileNotFoundError):
            found.append((path, measure_usage(path)))
    return max(found, key=lambda measured: measured[1].used_ratio)


def user_name(uid: int) -> str:
    """The user's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The group's name, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _find_obstacle(root: Path, mountpoint: str, owner: RootAttributes) -> tuple[str, str]:
    directories = [str(directory) for directory in reversed((root, *root.parents))]
    identity = _identity_of(owner)
    if identity is None:
        return "", ""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _SCRIPT, "sh", *directories],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=_TIMEOUT_S,
            check=False,
            **identity,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.TimeoutExpired):  # not allowed to become that user; a disk that hangs
        return "", ""
    name = user_name(owner.uid)
    if done.returncode == _NOT_ENTERED:
        barred = os.fsdecode(done.stdout)
        return f"user {name} cannot enter {barred}", f"chmod o+x {barred}"
    if done.returncode == _NOT_WRITTEN:
        return _why_not_written(root, mountpoint, name)
    return "", ""


def _why_not_written(root: Path, mountpoint: str, name: str) -> tuple[str, str]:
    entry = mountinfo.containing_mount(root)
    with contextlib.suppress(OSError):
        if entry is not None and os.statvfs(root).f_flag & os.ST_RDONLY:
            return "its filesystem is read-only", f"mount -o remount,rw {entry.mountpoint}"
    obstacle = f"user {name} cannot write there, so a broker of this user does not start"
    if _holds_nothing_else(root, Path(mountpoint).name):
        return obstacle, f"chown {name} {root}"
    return obstacle, f"choose a mountpoint in a directory of its own, or let {name} write {root}"


def _holds_nothing_else(root: Path, mountpoint: str) -> bool:
    """Whether the directory holds a broker's files and the mountpoint only.

    Any other directory, such as / or /mnt, must not be given to the broker's user.
    """
    try:
        return all(name in (mountpoint, "lost+found", *_TRACES) for name in os.listdir(root))  # noqa: PTH208
    except OSError:
        return False


def _identity_of(owner: RootAttributes) -> dict[str, object] | None:
    """Arguments of subprocess.run by which a child acts as the owner; None if this process cannot."""
    if os.geteuid() == owner.uid:
        return {}
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwuid(owner.uid)
    except KeyError:
        return {"user": owner.uid, "group": owner.gid, "extra_groups": []}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": owner.uid, "group": account.pw_gid, "extra_groups": groups}
