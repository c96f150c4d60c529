"""Whether the former file of a moved segment holds anything that its copy lacks."""

import os
from typing import NamedTuple

from commitlogfs.store.files.hashing import read_digest, read_verdict
from commitlogfs.store.moves.mark import Source, read_mark_of
from commitlogfs.store.moves.unreadable import parse_unreadable, read_unreadable_record


class ContentRecord(NamedTuple):
    """The records of a segment's file about its content."""

    mark: Source | None
    unreadable: tuple[tuple[int, int], ...]
    """Ranges that could not be read when it was copied."""
    digest: bytes | None
    """Checksum, perhaps of a former state."""
    has_verdict: bool

    @property
    def damage(self) -> tuple[int, bool]:
        """The best one of several copies has the least."""
        return sum(end - begin for begin, end in self.unreadable), self.has_verdict


def read_record(dirfd: int, name: bytes) -> ContentRecord:
    """The records of the file `name` in a disk's directory, which is not opened. Blocks. Raises OSError."""
    file = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
    unreadable = parse_unreadable(read_unreadable_record(file) or b"").ranges
    return ContentRecord(read_mark_of(file), tuple(unreadable), read_digest(file), bool(read_verdict(file)))


def may_lack_content(copy: ContentRecord, former: Source) -> bool:
    """Whether `lacks_content` may hold for this former file, whatever it records. A disk that fails may not return
    that any more. Pure."""
    is_of_another = copy.mark is not None and copy.mark[:3] != former[:3]
    return bool(copy.unreadable) or is_of_another


def lacks_content(copy: ContentRecord, former: ContentRecord) -> bool:
    """Whether another attempt, with other tools, may read more of the former file than the copy has. What the
    former file lacked already is not to be had from it. Pure.

    Two copies of one file may differ, as each has what the disk returned then. They are certainly equal if they
    have the same checksum, and no scrub or move has found either damaged: the copy may be on a disk that was away,
    and be worse.
    """
    if copy.unreadable and copy.unreadable != former.unreadable:
        return True
    if former.mark is None or former.mark != copy.mark:
        return False
    return copy.digest is None or copy.digest != former.digest or copy.has_verdict or former.has_verdict
