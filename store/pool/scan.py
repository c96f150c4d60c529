"""Reading one disk's folder: what lies there, sorted into kinds. Changes nothing."""

import errno
import os
import stat
from collections import Counter
from dataclasses import dataclass, field

from commitlogfs.store import layout
from commitlogfs.store.files.attributes import PackedAttributes, mode_of, stat_names, unpack
from commitlogfs.store.segment import BaseOffset, looks_like_segment, parse_segment_name, parse_temporary_name


@dataclass(slots=True)
class DiskScan:
    """Every entry of one folder, each in exactly one list."""

    segments: list[tuple[BaseOffset, PackedAttributes]] = field(default_factory=list)
    """Regular files with a segment's name, whatever their size."""
    temporaries: list[tuple[bytes, BaseOffset, PackedAttributes]] = field(default_factory=list)
    irregular: list[tuple[bytes, str]] = field(default_factory=list)
    """A segment's or temporary's name on something that is no regular file: (name, kind)."""
    aliens: list[bytes] = field(default_factory=list)
    """Anything else."""


def scan_folder(dirfd: int, segment_size: int) -> DiskScan:
    """Raises OSError as soon as the folder or any entry with a segment's name cannot be read:
    a scan is complete or it fails, because a missing name is taken for a missing segment."""
    scan = DiskScan()
    names: list[bytes] = []
    bases: list[BaseOffset | None] = []
    for entry in os.listdir(dirfd):
        name = os.fsencode(entry)
        if name in layout.IGNORED_NAMES and _is_folder(dirfd, name):
            continue
        base = parse_segment_name(name, segment_size)
        if base is None and parse_temporary_name(name, segment_size) is None:
            scan.aliens.append(name)
        else:
            names.append(name)
            bases.append(base)
    for name, base, outcome in zip(names, bases, stat_names(dirfd, names), strict=True):
        if isinstance(outcome, int):
            if outcome == errno.ENOENT:  # removed between the two looks
                continue
            if outcome == errno.EXDEV:
                scan.irregular.append((name, "mountpoint"))
                continue
            raise OSError(outcome, os.strerror(outcome), os.fsdecode(name))
        mode = mode_of(outcome)
        if not stat.S_ISREG(mode):
            scan.irregular.append((name, _kind(mode)))
        elif base is not None:
            scan.segments.append((base, outcome))
        else:
            temporary = parse_temporary_name(name, segment_size)
            assert temporary is not None
            scan.temporaries.append((name, temporary, outcome))
    return scan


def sizes_present(dirfd: int) -> Counter[int]:
    """How many non-empty regular files with 20-digit names have each size: how adopt learns the segment size."""
    with os.scandir(dirfd) as entries:
        names = [name for entry in entries if looks_like_segment(name := os.fsencode(entry.name))]
    found = [unpack(outcome) for outcome in stat_names(dirfd, names) if not isinstance(outcome, int)]
    return Counter(attributes.size for attributes in found if stat.S_ISREG(attributes.mode) and attributes.size)


def _is_folder(dirfd: int, name: bytes) -> bool:
    (outcome,) = stat_names(dirfd, [name])
    return not isinstance(outcome, int) and stat.S_ISDIR(mode_of(outcome))


def _kind(mode: int) -> str:
    for test, word in (
        (stat.S_ISLNK, "symbolic link"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "character device"),
        (stat.S_ISBLK, "block device"),
    ):
        if test(mode):
            return word
    return "special file"
