"""Mounts, read from /proc/PID/mountinfo.

All code finds mounts in this way: `stat` on a FUSE mount waits for its daemon, which may be dead, or may be the
caller itself. Nothing here touches a mounted FUSE filesystem, and nothing here blocks.
"""

import errno
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FSTYPE = "fuse.commitlogfs"

_ESCAPE = re.compile(rb"\\([0-7]{3})")
_MAX_SYMLINKS = 40
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "ramfs", "overlay", "vfat", "exfat", "rootfs"}
)


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo (proc_pid_mountinfo(5)), octal escapes decoded.

    Texts are file names: bytes that are not UTF-8 are kept as surrogate escapes (`os.fsencode`).
    """

    mount_id: int
    parent_id: int
    major: int
    minor: int
    root: str
    mountpoint: str
    mount_options: tuple[str, ...]
    optional_fields: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]

    @property
    def user_id(self) -> int:
        """The user who made a FUSE mount (mount option user_id); 0, root, if the kernel does not say."""
        return next((int(option[8:]) for option in self.super_options if option.startswith("user_id=")), 0)

    @property
    def device(self) -> int:
        """The st_dev of files on this mount, known without asking the filesystem."""
        return os.makedev(self.major, self.minor)


def parse_mountinfo(text: bytes) -> tuple[MountEntry, ...]:
    """All entries in the kernel's order. Raises ValueError for a line that is not one of mountinfo."""
    return tuple(_parse_line(line) for line in text.split(b"\n") if line)


def read_mounts(pid: int | None = None) -> tuple[MountEntry, ...]:
    """The mounts that process `pid` sees (default: this one). Raises OSError if they cannot be read."""
    return parse_mountinfo(Path(f"/proc/{'self' if pid is None else pid}/mountinfo").read_bytes())


def is_fuse(entry: MountEntry) -> bool:
    """Whether this is a FUSE mount. Touching it can block, as a process answers for it."""
    return entry.fstype in ("fuse", "fuseblk") or entry.fstype.startswith(("fuse.", "fuseblk."))


def is_commitlogfs(entry: MountEntry) -> bool:
    """Whether this is a mount of ours, alive or dead."""
    return entry.fstype == FSTYPE


def local_filesystem(fd: int) -> str | None:
    """The type of the filesystem that an open file lies on, if reads of it wait for no other machine or process;
    None for any other, and if it cannot be known, such as in another mount namespace. Asks only the kernel: fstatfs
    waits for the filesystem itself. Raises OSError for a descriptor that is not open."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    mount_id = next(int(line.removeprefix("mnt_id:")) for line in lines if line.startswith("mnt_id:"))
    types = (entry.fstype for entry in read_mounts() if entry.mount_id == mount_id)
    return next((fstype for fstype in types if fstype in _LOCAL), None)


def find_mount(path: str | os.PathLike[str], entries: Sequence[MountEntry] | None = None) -> MountEntry | None:
    """The mount that is visible at exactly `path` (the topmost of a stack), or None."""
    chain = _mounts_at(path, entries)
    return chain[-1] if chain else None


def stacked_count(path: str | os.PathLike[str], entries: Sequence[MountEntry] | None = None) -> int:
    """How many mounts lie on top of each other at exactly `path`. Above 1, `umount` uncovers another one."""
    return len(_mounts_at(path, entries))


def mounts_below(
    path: str | os.PathLike[str], entries: Sequence[MountEntry] | None = None
) -> tuple[MountEntry, ...]:
    """Every mount whose mountpoint is below `path`, hidden ones too, in mount order.

    Unmount them in reverse.
    """
    entries = read_mounts() if entries is None else entries
    prefix = resolve_path(path, entries).rstrip("/") + "/"
    return tuple(entry for entry in entries if entry.mountpoint != "/" and entry.mountpoint.startswith(prefix))


def containing_mount(
    path: str | os.PathLike[str], entries: Sequence[MountEntry] | None = None
) -> MountEntry | None:
    """The mount that holds an absolute `path` without symlinks. None only inside a chroot's own root."""
    entries = read_mounts() if entries is None else entries
    walked = _walk(os.fspath(path), entries)
    return walked[-1] if walked else None


def resolve_path(path: str | os.PathLike[str], entries: Sequence[MountEntry] | None = None) -> str:
    """`path` made absolute, with symlinks resolved as far as that touches no FUSE mount.

    Components that do not exist, or cannot be read (a failed disk), are kept, so the path may be one that is still
    to be made. Raises OSError (ELOOP) for a circle of symlinks.
    """
    entries = read_mounts() if entries is None else entries
    fuse_mountpoints = {entry.mountpoint for entry in entries if is_fuse(entry)}
    # Not normalised first: `link/..` is the parent of the link's target.
    todo = _reversed_parts(_absolute(path).parts)
    resolved, symlinks = "/", 0
    while todo:
        part = todo.pop()
        if part == "..":
            resolved = str(Path(resolved).parent)
            continue
        candidate = resolved.rstrip("/") + "/" + part
        if candidate in fuse_mountpoints:
            return os.path.normpath("/".join([candidate, *reversed(todo)]))
        target = _read_symlink(candidate)
        if target is None:
            resolved = candidate
            continue
        symlinks += 1
        if symlinks > _MAX_SYMLINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        todo += _reversed_parts(Path(target).parts)
        if target.startswith("/"):
            resolved = "/"
    return resolved


def _reversed_parts(parts: tuple[str, ...]) -> list[str]:
    """The components of a path without its root, the last one first."""
    return [part for part in reversed(parts) if not part.startswith("/")]


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(path) if Path(path).is_absolute() else Path.cwd() / path


def _read_symlink(path: str) -> str | None:
    try:
        if not stat.S_ISLNK(Path(path).lstat().st_mode):
            return None
        return str(Path(path).readlink())
    except OSError:
        return None


def _mounts_at(path: str | os.PathLike[str], entries: Sequence[MountEntry] | None) -> list[MountEntry]:
    entries = read_mounts() if entries is None else entries
    target = resolve_path(path, entries)
    return [entry for entry in _walk(target, entries) if entry.mountpoint == target]


def _walk(path: str, entries: Sequence[MountEntry]) -> list[MountEntry]:
    """The mounts crossed on the way to `path`, outermost first, as the kernel's lookup crosses them.

    Comparing paths alone would also find mounts that a later one hides.
    """
    children = {(entry.parent_id, entry.mountpoint): entry for entry in entries}
    ids = {entry.mount_id for entry in entries}
    # The root mount's parent is not listed; neither is a chroot's root, unless it is a mountpoint.
    unlisted = {e.mountpoint: e for e in entries if e.parent_id not in ids or e.parent_id == e.mount_id}
    crossed: list[MountEntry] = []
    for prefix in _prefixes(path):
        entry = children.get((crossed[-1].mount_id, prefix)) if crossed else unlisted.get(prefix)
        while entry is not None and entry not in crossed:
            crossed.append(entry)
            entry = children.get((entry.mount_id, prefix))
    return crossed


def _prefixes(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))]


def _parse_line(line: bytes) -> MountEntry:
    fields = line.split(b" ")
    try:
        separator = fields.index(b"-", 6)
        # The source may be empty (mount -t tmpfs ""): then two spaces follow each other.
        fstype, source, super_options = fields[separator + 1 : separator + 4]
        major, minor = fields[2].split(b":")
        return MountEntry(
            mount_id=int(fields[0]),
            parent_id=int(fields[1]),
            major=int(major),
            minor=int(minor),
            root=_decode(fields[3]),
            mountpoint=_decode(fields[4]),
            mount_options=tuple(os.fsdecode(fields[5]).split(",")),
            optional_fields=tuple(os.fsdecode(field) for field in fields[6:separator]),
            fstype=_decode(fstype),
            source=_decode(source),
            super_options=tuple(_decode(super_options).split(",")),
        )
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a line of mountinfo: {line!r}") from error


def _decode(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
