"""Scan of one disk's directory: its entries, sorted by kind. Changes nothing."""

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
    """Every entry of one directory, each in exactly one list."""

    segments: list[tuple[BaseOffset, PackedAttributes]] = field(default_factory=list)
    """Regular files with a segment's name, whatever their size."""
    temporaries: list[tuple[bytes, BaseOffset, PackedAttributes]] = field(default_factory=list)
    irregular: list[tuple[bytes, str]] = field(default_factory=list)
    """Entries that have a segment's or a temporary's name but are not regular files, as (name, kind)."""
    aliens: list[bytes] = field(default_factory=list)
    """All other entries."""


def scan_directory(dirfd: int, segment_size: int) -> DiskScan:
    """Scan of the directory. A scan is complete or fails, because a name that is not read counts as a missing
    segment.

    Raises OSError if the directory, or any entry with a segment's name, cannot be read.
    """
    scan = DiskScan()
    names: list[bytes] = []
    bases: list[BaseOffset | None] = []
    for entry in os.listdir(dirfd):
        name = os.fsencode(entry)
        if name in layout.IGNORED_NAMES and _is_directory(dirfd, name):
            continue
        base = parse_segment_name(name, segment_size)
        if base is None and parse_temporary_name(name, segment_size) is None:
            scan.aliens.append(name)
        else:
            names.append(name)
            bases.append(base)
    for name, base, outcome in zip(names, bases, stat_names(dirfd, names), strict=True):
        if isinstance(outcome, int):
            if outcome == errno.ENOENT:  # removed after the directory was listed
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
    """Number of non-empty regular files with 20-digit names, by size. `adopt` learns the segment size from it."""
    with os.scandir(dirfd) as entries:
        names = [name for entry in entries if looks_like_segment(name := os.fsencode(entry.name))]
    found = [unpack(outcome) for outcome in stat_names(dirfd, names) if not isinstance(outcome, int)]
    return Counter(attributes.size for attributes in found if stat.S_ISREG(attributes.mode) and attributes.size)


def _is_directory(dirfd: int, name: bytes) -> bool:
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
