"""Where a log offset or a segment lies."""

from dataclasses import dataclass

from commitlogfs.mount.errors import UsageError
from commitlogfs.store.commitlog import CommitLog
from commitlogfs.store.segment import LARGEST_OFFSET, NAME_DIGITS


@dataclass(frozen=True, slots=True)
class Location:
    """`position` is inside the segment; `present` is False for an offset that no segment holds."""

    offset: int
    present: bool
    segment: str = ""
    position: int = 0
    disk: str = ""
    disk_number: int = 0
    path: str = ""
    reason: str = ""


def locate(commitlog: CommitLog, target: str) -> Location:
    """`target` is a log offset, or a segment's 20-digit name. Raises UsageError."""
    if not (target.isascii() and target.isdigit()) or len(target) > NAME_DIGITS or int(target) > LARGEST_OFFSET:
        raise UsageError(f"{target!r}: neither a log offset nor a segment name: give a decimal number")
    offset = int(target)
    segment = commitlog.catalog.find(offset)
    if segment is None:
        return Location(offset, present=False, reason=_why_absent(commitlog, offset))
    disk = commitlog.disk_of(segment)
    name = segment.name.decode()
    return Location(offset, True, name, offset - segment.base_offset, disk.path, disk.number, f"{disk.path}/{name}")


def _why_absent(commitlog: CommitLog, offset: int) -> str:
    first, last = commitlog.catalog.first, commitlog.catalog.last
    if first is None or last is None:
        return "the log is empty"
    if offset < first.base_offset:
        return f"before the oldest segment {first.name.decode()}: deleted, or never there"
    if offset > last.base_offset:
        return f"after the newest segment {last.name.decode()}: not written yet"
    return "in a gap of the log: see `commitlogfs check`"
