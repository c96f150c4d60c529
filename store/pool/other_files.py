"""Files of the pool that are not in the catalog: copies in progress, and what has left the log and may be open."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import nlink_of, unpack
from commitlogfs.store.files.remove import Reason, reason_of
from commitlogfs.store.pool.catalog import Role, Segment
from commitlogfs.store.segment import BaseOffset


def was_moved(file: Segment) -> bool:
    """Whether its segment was moved to another disk, or repaired there."""
    if file.role is Role.RETIRED:
        return reason_of(file.placed_as) in (Reason.MOVED, Reason.DAMAGED)
    return file.role is Role.MOVED


def is_set_aside(file: Segment) -> bool:
    """Whether it is the damaged file of a repaired segment, which is kept also if nobody has it open."""
    return file.role is Role.RETIRED and reason_of(file.placed_as) is Reason.DAMAGED


class OtherFiles:
    """Ledger, by inode, of temporaries, retired files, leftovers, sources of moves, and files that a disk is still
    removing.

    A file is here from the moment it is made as a copy, or leaves the catalog, until it enters the catalog or is
    certainly gone from its disk. So every file that can be open is either here or in the catalog. Its base offset
    stays the same as long as it is here.
    """

    def __init__(self, files: Iterable[Segment]) -> None:
        self._files: dict[tuple[DiskNumber, int], Segment] = {}
        self._of_offset: dict[BaseOffset, list[Segment]] = {}
        self._kept: set[tuple[DiskNumber, int]] = set()
        for file in files:
            self.add(file)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._files.values())

    def get(self, disk: DiskNumber, ino: int) -> Segment | None:
        return self._files.get((disk, ino))

    def add(self, file: Segment) -> None:
        """In place of one of the same inode, if there is one."""
        self._drop(file.disk, file.ino)
        self._files[file.disk, file.ino] = file
        self._of_offset.setdefault(file.base_offset, []).append(file)

    def remove(self, file: Segment) -> None:
        """The file is in the catalog now, or gone. Nothing happens if another file has got its inode number."""
        if self._files.get((file.disk, file.ino)) is file:
            self._drop(file.disk, file.ino)
            self._kept.discard((file.disk, file.ino))

    def _drop(self, disk: DiskNumber, ino: int) -> None:
        file = self._files.pop((disk, ino), None)
        if file is not None:
            left = [other for other in self._of_offset.pop(file.base_offset) if other is not file]
            if left:
                self._of_offset[file.base_offset] = left

    # --- retired files -------------------------------------------------------------------------------

    @property
    def has_retired(self) -> bool:
        """Cheap where there is none, which is nearly always."""
        return any(file.role is Role.RETIRED for file in self._files.values())

    def retired(self) -> list[Segment]:
        return [file for file in self._files.values() if file.role is Role.RETIRED]

    def record_kept(self, file: Segment) -> None:
        """Another user keeps this file: a retired one has a name that is not ours, so its last close frees nothing;
        a leftover may hold data, so it stays."""
        if self._files.get((file.disk, file.ino)) is file:
            self._kept.add((file.disk, file.ino))

    def pending_bytes(self, disk: DiskNumber) -> int:
        """Bytes of removed files, which become free with their last close. Those of moved ones do not count: a
        broker keeps them open until it is started anew."""
        return sum(
            self.gainable_bytes(file) for file in self.retired() if file.disk == disk and not was_moved(file)
        )

    def gainable_bytes(self, file: Segment) -> int:
        """Bytes that unlinking a file, and its last close, give back as far as is known: none while it has a name
        that is not ours."""
        return 0 if nlink_of(file.attributes) > 1 else self.punchable_bytes(file)

    def punchable_bytes(self, file: Segment) -> int:
        """Bytes that a hole in a retired file would give back. A name that is not ours forbids that, but may have
        gone since it was seen."""
        return 0 if self._is_kept(file) else unpack(file.attributes).allocated_bytes

    # --- sources of moves ----------------------------------------------------------------------------

    def moved(self, disk: DiskNumber) -> list[Segment]:
        """Files of a disk whose segments are on other disks now: under their names still, or open and retired.
        Without those that are set aside."""
        return [
            file
            for file in self._files.values()
            if file.disk == disk and was_moved(file) and not is_set_aside(file)
        ]

    def set_aside(self) -> list[Segment]:
        """Damaged files of repaired segments, in ascending order."""
        return sorted(filter(is_set_aside, self._files.values()), key=lambda file: file.base_offset)

    def held_bytes(self) -> Counter[DiskNumber]:
        """Bytes of moved files of each disk, which are not free before the broker closes the files."""
        held: Counter[DiskNumber] = Counter()
        for file in self._files.values():
            if was_moved(file) and not is_set_aside(file):
                held[file.disk] += unpack(file.attributes).allocated_bytes
        return held

    def sources(self, base_offset: BaseOffset) -> list[Segment]:
        """Files in whose place a segment is: what it was copied from, and what was repaired. Cheap: a drain asks
        it for every segment of a disk."""
        return [file for file in self._of_offset.get(base_offset, ()) if was_moved(file)]

    def has_unremovable(self, disks: Mapping[DiskNumber, Disk]) -> bool:
        """Whether a source of a move still has its segment's name because its disk is read-only."""
        return any(file.role is Role.MOVED and disks[file.disk].forbids_writes for file in self._files.values())

    # --- leftovers -----------------------------------------------------------------------------------

    def leftovers(self, disk: DiskNumber) -> list[Segment]:
        """Leftovers that can be removed when their disk is well."""
        return [
            file
            for file in self._files.values()
            if file.role is Role.GIVEN_UP and file.disk == disk and not self._is_kept(file)
        ]

    def leftovers_named(self, name: bytes) -> list[Segment]:
        return [file for file in self._files.values() if file.role is Role.GIVEN_UP and file.name == name]

    def record_named(self, named: Segment) -> None:
        """A file of the log has got its name: another one that gets it later is a leftover."""
        for file in self._of_offset.get(named.base_offset, ()):
            if file.role is Role.LINKING and file.name == named.name:
                file.role = Role.LINKING_TOO_LATE

    def disks_taken(self, name: bytes) -> set[DiskNumber]:
        """Disks that have a leftover of this name, or get one when they answer."""
        roles = (Role.GIVEN_UP, Role.LINKING, Role.LINKING_TOO_LATE)
        return {file.disk for file in self._files.values() if file.role in roles and file.name == name}

    def _is_kept(self, file: Segment) -> bool:
        return (file.disk, file.ino) in self._kept
