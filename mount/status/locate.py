"""Finds the segment and the disk of a log offset."""

from dataclasses import dataclass

from commitlogfs.console.errors import UsageError
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import LARGEST_OFFSET, NAME_DIGITS, format_segment_name


@dataclass(frozen=True, slots=True)
class Location:
    """`position` is inside the segment; `present` is False for an offset that no whole segment holds."""

    offset: int
    present: bool
    segment: str = ""
    position: int = 0
    disk: str = ""
    disk_number: int = 0
    path: str = ""
    state: str = ""
    """preallocated, active or sealed; empty if it is not known."""
    reason: str = ""


def parse_target(target: str) -> int:
    """A log offset, or a segment's 20-digit name. Raises UsageError."""
    if not (target.isascii() and target.isdigit()) or len(target) > NAME_DIGITS or int(target) > LARGEST_OFFSET:
        raise UsageError(f"{target!r}: neither a log offset nor a segment name; give a decimal number")
    return int(target)


def locate(commitlog: CommitLog, offset: int) -> Location:
    segment = commitlog.catalog.find(offset)
    if segment is None:
        return Location(offset, present=False, reason=_why_absent(commitlog, offset))
    disk = commitlog.disk_of(segment)
    name = segment.name.decode()
    path = f"{disk.path}/{name}"
    if segment.size != commitlog.segment_size:
        reason = f"{path} has been created but does not have its size yet"
        return Location(offset, present=False, segment=name, disk=disk.path, path=path, reason=reason)
    position = offset - segment.base_offset
    return Location(offset, True, name, position, disk.path, disk.number, path)


def _why_absent(commitlog: CommitLog, offset: int) -> str:
    name = format_segment_name(offset - offset % commitlog.segment_size)
    quarantined = commitlog.quarantined(name)
    if quarantined:
        return f"segment {name.decode()} is quarantined: {quarantined}"
    first, last = commitlog.catalog.first, commitlog.catalog.last
    lost = f": it may lie on a missing disk ({', '.join(commitlog.missing)})" if commitlog.missing else ""
    if first is None or last is None:
        return f"the log is empty{lost}"
    if offset < first.base_offset:
        return f"before the oldest segment {first.name.decode()}{lost or ': deleted, or never there'}"
    if offset > last.base_offset:
        return f"after the newest segment {last.name.decode()}: not written yet"
    return f"in a gap of the log{lost or ': see `commitlogfs check`'}"
