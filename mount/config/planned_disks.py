"""The disks of a simulation, from a list of sizes or from a configuration's real disks."""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import UnitError, parse_duration_ms, parse_size
from commitlogfs.mount.config.model import Config
from commitlogfs.store.files.attributes import BLOCK_BYTES
from commitlogfs.store.files.usage import measure_usage
from commitlogfs.store.retention.simulated_pool import PlannedDisk
from commitlogfs.store.segment import parse_segment_name
from commitlogfs.store.thresholds import RESUME_FROM_FORCE, ThresholdError, Thresholds

MOST_DISKS: Final = 1000
_GROUP = re.compile(r"(?:([0-9]{1,5}) ?x ?)?([0-9]+ ?[A-Za-z]*)")


def disks_of_sizes(text: str, thresholds: Thresholds) -> tuple[PlannedDisk, ...]:
    """Disks from "12x5TB", "4TB,4TB,8TB" or "10x5TB,2x8TB", named /data1, /data2 ... Raises UsageError."""
    sizes: list[int] = []
    for item in text.split(","):
        match = _GROUP.fullmatch(item.strip())
        if match is None:
            raise UsageError(f'--disks: {item!r} is not a disk size; write sizes such as "12x5TB" or "4TB,4TB,8TB"')
        count, size = match.groups()
        try:
            size_bytes = parse_size(size)
        except UnitError as error:
            raise UsageError(f"--disks: {error}") from None
        repeat = 1 if count is None else int(count)
        if not size_bytes or not repeat or len(sizes) + repeat > MOST_DISKS:
            raise UsageError(f"--disks: {item!r} is out of range; give 1 to {MOST_DISKS} disks, each larger than 0")
        sizes += [size_bytes] * repeat
    return tuple(PlannedDisk(f"/data{n}", size, 0, thresholds) for n, size in enumerate(sizes, start=1))


def disks_of_config(config: Config) -> tuple[PlannedDisk, ...]:
    """The real disks of a configuration: their sizes, and the other data on them. Cordoned ones are left out.

    Raises UsageError.
    """
    planned = []
    for disk in config.disks:
        if disk.readonly:
            continue
        try:
            usage = measure_usage(disk.path)
            ours = _segment_bytes(disk.path, config.segment_size)
        except OSError as error:
            raise UsageError(
                f"{disk.path}: cannot be measured ({error.strerror}); mount it, or give --disks"
            ) from None
        foreign = max(0, usage.used_bytes - ours)
        planned.append(PlannedDisk(disk.path, usage.entire_bytes, foreign, disk.thresholds, disk.weight))
    if not planned:
        raise UsageError(
            f"{config.name}: every disk is readonly, so none takes segments; remove `readonly` from one"
        )
    return tuple(planned)


def with_foreign(disks: tuple[PlannedDisk, ...], items: Iterable[str]) -> tuple[PlannedDisk, ...]:
    """The disks with other data on them. `items` are DISK:SIZE, by number or path. Raises UsageError."""
    changed = list(disks)
    for item in items:
        name, _, size = item.rpartition(":")
        index = _find("--foreign", "DISK:SIZE", item, name, disks)
        try:
            foreign = parse_size(size)
        except UnitError as error:
            raise UsageError(f"--foreign: {error}") from None
        disk = disks[index]
        if foreign > disk.size_bytes:
            raise UsageError(
                f"--foreign: {item!r} does not fit on {disk.path}; give at most {disk.size_bytes:,} bytes"
            )
        changed[index] = replace(disk, foreign_bytes=foreign)
    return tuple(changed)


def with_added(
    disks: tuple[PlannedDisk, ...], items: Iterable[str], thresholds: Thresholds
) -> tuple[PlannedDisk, ...]:
    """The disks and those that are added later, with the next numbers. `items` are TIME:SIZE, or TIME for a disk as
    large as the first one. Raises UsageError."""
    found = list(disks)
    for item in items:
        time, _, size = item.partition(":")
        try:
            size_bytes = parse_size(size) if size else disks[0].size_bytes
        except UnitError as error:
            raise UsageError(f"--add-disk-at: {error}") from None
        if not size_bytes or len(found) == MOST_DISKS:
            raise UsageError(f"--add-disk-at: {item!r} is out of range; give a size above 0, of {MOST_DISKS} disks")
        path = f"/data{len(found) + 1}"
        found.append(PlannedDisk(path, size_bytes, 0, thresholds, added_s=_time_s("--add-disk-at", time)))
    return tuple(found)


def with_drains(disks: tuple[PlannedDisk, ...], items: Iterable[str]) -> tuple[PlannedDisk, ...]:
    """The disks, some of which drain by expiry. `items` are TIME:DISK, by number or path. Raises UsageError."""
    changed = list(disks)
    for item in items:
        time, _, name = item.partition(":")
        index = _find("--drain-at", "TIME:DISK", item, name, disks)
        if changed[index].drains_s is not None:
            raise UsageError(f"--drain-at: {item!r}: this disk drains already; give each disk once")
        changed[index] = replace(disks[index], drains_s=_time_s("--drain-at", time))
    return tuple(changed)


def _find(option: str, form: str, item: str, name: str, disks: tuple[PlannedDisk, ...]) -> int:
    """Index of the disk with this number or path. Raises UsageError."""
    for index, disk in enumerate(disks):
        if name in (str(index + 1), disk.path):
            return index
    raise UsageError(f"{option}: {item!r} names no disk; write {form}, DISK being 1 to {len(disks)} or a path")


def _time_s(option: str, text: str) -> int:
    """Seconds after the beginning. Raises UsageError."""
    try:
        time_s = parse_duration_ms(text) // 1000
    except UnitError as error:
        raise UsageError(f"{option}: {error}") from None
    if not time_s:
        raise UsageError(f'{option}: {text!r} is the beginning; give a later time, such as "10d"')
    return time_s


def change_thresholds(thresholds: Thresholds, given: dict[str, int]) -> Thresholds:
    """The thresholds with those in `given`, by their names in the configuration, replaced. Raises UsageError.

    A new `force` also changes a `resume` that is not given.
    """
    values = {("min_free_bytes" if key == "min_free" else key): value for key, value in given.items()}
    if "force" in values:
        values.setdefault("resume", RESUME_FROM_FORCE)
    try:
        return replace(thresholds, **values)
    except ThresholdError as error:
        raise UsageError(f"--{error.key.replace('_', '-')}: {error}") from None


def _segment_bytes(directory: str, segment_size: int) -> int:
    with os.scandir(directory) as entries:
        ours = [e for e in entries if parse_segment_name(os.fsencode(e.name), segment_size) is not None]
        found = [entry.stat(follow_symlinks=False) for entry in ours]
    return sum(st.st_blocks * BLOCK_BYTES for st in found if stat.S_ISREG(st.st_mode))
