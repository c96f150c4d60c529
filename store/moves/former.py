"""Whether the former file of a moved segment holds anything that its copy lacks.

The daemon that has made a copy has verified it. Another daemon cannot know what has become of it since: it may have
rotted, or its disk may have been replaced by a bad copy of itself, with all attributes. So it reads the copy before
it removes the former file:

    what the copy's device returns                                  the former file
    has the checksum of the copy and of the former file, or         goes
    somebody has written to the copy; and it has no verdict
    else: is what the device of the former file returns             goes
    else: nobody has written to the copy since, and the former      stays; the copy is damaged
    file has its own checksum, or that of the copy
    else, or one of them cannot be read                             stays

A copy that was written to has no checksum until the daemon has computed one.
"""

import os
from enum import Enum, auto
from typing import NamedTuple

from commitlogfs.store.checksum import Checksum, Key
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

    key: Key
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
        key_of(state),
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


def lacks_content(copy: ContentRecord, former: ContentRecord, itself: Source) -> bool:
    """Whether another attempt, with other tools, may read more of the former file, which is `itself`, than the copy
    has. What the former file lacked already is not to be had from it. Pure.

    Two copies of one file may differ, as each has what the disk returned then. They are certainly equal if they
    have the same checksum, each of its present state, and no scrub or move has found either damaged: the copy may
    be on a disk that was away, and be worse.
    """
    if copy.unreadable and copy.unreadable != former.unreadable:
        return True
    if copy.mark is None or copy.mark[:3] == itself[:3]:
        return False
    return copy.digest is None or copy.digest != former.digest or copy.has_verdict or former.has_verdict


class Comparison(Enum):
    """State of knowledge of a former file and the copy in its place."""

    READ_COPY = auto()
    """Nothing yet: the copy is to be read."""
    READ_FORMER = auto()
    """The copy may be wrong: the former file is to be read, too."""
    NOT_NEEDED = auto()
    """The former file has nothing that the copy lacks."""
    COPY_IS_WRONG = auto()
    """The former file is right."""
    UNCERTAIN = auto()
    NO_CHECKSUM = auto()
    """The copy was written to, and has no checksum of that yet."""


def compare(
    copy: ContentRecord, former: ContentRecord, of_copy: Checksum | None, of_former: Checksum | None
) -> Comparison:
    """By the records of both, and by what their devices have returned, if they have been read. Pure."""
    is_unchanged = copy.key[1:] == former.key[1:]  # a copy has the mtime of its source
    if not is_unchanged and copy.digest is None:
        return Comparison.NO_CHECKSUM
    if of_copy is None or of_copy.key != copy.key:
        return Comparison.READ_COPY
    is_as_recorded = of_copy.digest == copy.digest
    is_agreed = not is_unchanged or former.digest == copy.digest
    if is_as_recorded and is_agreed and copy.is_certain:
        return Comparison.NOT_NEEDED
    if of_former is None or of_former.key != former.key:
        return Comparison.READ_FORMER
    if of_former.digest == of_copy.digest:
        return Comparison.NOT_NEEDED
    is_copy_wrong = is_unchanged and not is_as_recorded
    return (
        Comparison.COPY_IS_WRONG if is_copy_wrong and _is_right(former, of_former, copy) else Comparison.UNCERTAIN
    )


def _is_right(former: ContentRecord, of_former: Checksum, copy: ContentRecord) -> bool:
    return of_former.digest in (former.digest, copy.digest) and not former.has_verdict
