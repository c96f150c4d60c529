"""Whether the former file of a moved segment holds anything that its copy lacks."""

import os
from typing import NamedTuple

from commitlogfs.store.files.attributes import stat_name, unpack
from commitlogfs.store.files.hashing import key_of, read_recorded, read_verdict
from commitlogfs.store.moves.mark import Source, read_mark_of
from commitlogfs.store.moves.unreadable import parse_unreadable, read_unreadable_record


class Damage(NamedTuple):
    """Signs that a file is not right. Of several copies, the best one has the least."""

    unreadable_bytes: int = 0
    has_verdict: bool = False
    is_foreign: bool = False
    """As ContentRecord.is_foreign. It counts least: the content of such a file may well be right."""


class ContentRecord(NamedTuple):
    """The records of a segment's file about its content."""

    mark: Source | None
    is_as_marked: bool
    """Whether nobody has written to it since it was copied."""
    unreadable: tuple[tuple[int, int], ...]
    """Ranges that could not be read when it was copied."""
    digest: bytes | None
    """Checksum of this file in its present state."""
    is_foreign: bool
    """Whether its checksum is that of another file or state: a program has copied or changed it, with all its
    attributes, and nothing tells what it has now."""
    has_verdict: bool

    @property
    def is_certain(self) -> bool:
        """Whether a verified copy of it will be certainly equal to it, as `lacks_content` judges."""
        return self.digest is not None and not self.unreadable and not self.has_verdict

    @property
    def damage(self) -> Damage:
        lost = sum(end - begin for begin, end in self.unreadable)
        return Damage(lost, self.has_verdict, self.is_foreign)


def read_record(dirfd: int, name: bytes) -> ContentRecord:
    """The records of the file `name` in a disk's directory, which is not opened. Blocks. Raises OSError."""
    file = f"/proc/self/fd/{dirfd}/{os.fsdecode(name)}"
    unreadable = parse_unreadable(read_unreadable_record(file) or b"").ranges
    mark, recorded, state = read_mark_of(file), read_recorded(file), unpack(stat_name(dirfd, name))
    is_own = recorded is not None and recorded.key == key_of(state)
    return ContentRecord(
        mark,
        mark is not None and mark.mtime_ns == state.mtime_ns,
        tuple(unreadable),
        recorded.digest if recorded is not None and is_own else None,
        recorded is not None and not is_own,
        bool(read_verdict(file)),
    )


def may_lack_content(copy: ContentRecord, former: Source) -> bool:
    """Whether `lacks_content` may hold for this former file, whatever it records. A disk that fails may not return
    that any more. Pure."""
    is_of_another = copy.mark is not None and copy.mark[:3] != former[:3]
    return bool(copy.unreadable) or is_of_another


def lacks_content(copy: ContentRecord, former: ContentRecord) -> bool:
    """Whether another attempt, with other tools, may read more of the former file than the copy has. What the
    former file lacked already is not to be had from it. Pure.

    Two copies of one file may differ, as each has what the disk returned then. They are certainly equal if they
    have the same checksum, each of its present state, and no scrub or move has found either damaged: the copy may
    be on a disk that was away, and be worse.
    """
    if copy.unreadable and copy.unreadable != former.unreadable:
        return True
    if former.mark is None or former.mark != copy.mark:
        return False
    return copy.digest is None or copy.digest != former.digest or copy.has_verdict or former.has_verdict
