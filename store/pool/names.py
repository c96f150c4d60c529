"""Which names files of the log have, and which no new file may get."""

from collections.abc import Mapping, Sequence

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import InvalidNameError, SegmentExistsError
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.segment import (
    BaseOffset,
    format_segment_name,
    parse_segment_name,
    parse_temporary_name,
)


class Names:
    """Ledger of names. The same segment on two disks must not happen, so a name is free for a new file only if

    - no segment and no temporary has it, and no disk is still removing it,
    - it is not quarantined,
    - no disk holds, or may hold, it outside of the log (until the disk denies that),
    - no missing disk may hold it, and
    - it is not before the segments that were removed while a disk was away.
    """

    def __init__(
        self,
        catalog: Catalog,
        disks: Mapping[DiskNumber, Disk],
        temporaries: dict[bytes, Segment],
        quarantined: dict[bytes, str],
        missing: Sequence[str],
        newest_missing: BaseOffset | None,
        removed_before: int = 0,
    ) -> None:
        """`missing` are the paths of missing disks, `newest_missing` the newest segment that they may hold.
        `removed_before`: as for take_inventory."""
        self._catalog = catalog
        self._disks = disks
        self._temporaries = temporaries
        self._quarantined = quarantined
        self._missing = missing
        self._newest_missing = newest_missing
        self._removed_before = removed_before
        self._leaving: dict[bytes, Segment] = {}
        self._uncertain: dict[bytes, DiskNumber] = {}
        self._create_floor = self._find_create_floor()

    def _find_create_floor(self) -> BaseOffset | None:
        """Below this no segment is made, since a missing disk may hold it; None where every disk is there."""
        size = self._catalog.segment_size
        floors = [] if self._newest_missing is None else [BaseOffset(self._newest_missing + size)]
        if self._missing and self._catalog.last is not None:
            floors.append(self._catalog.last.base_offset)
        return max(floors, default=None)

    # --- names in use --------------------------------------------------------------------------------

    def find(self, name: bytes) -> Segment | None:
        """The segment or temporary of this name."""
        base = parse_segment_name(name, self._catalog.segment_size)
        return self._temporaries.get(name) if base is None else self._catalog.get(base)

    @property
    def newest(self) -> BaseOffset | None:
        """The newest segment, wherever it lies, as every disk records it."""
        last = self._catalog.last
        known = (self._newest_missing, None if last is None else last.base_offset)
        return max((base for base in known if base is not None), default=None)

    def quarantined(self, name: bytes) -> str:
        """Why a file of this name is kept but not served; empty if there is none."""
        return self._quarantined.get(name, "")

    def enter(self, file: Segment) -> None:
        """A file gets its name, or has it again because its removal has failed."""
        if file.role is Role.TEMPORARY:
            self._temporaries[file.placed_as] = file
        else:
            self._catalog.add(file)

    def drop(self, file: Segment) -> bool:
        """A file loses its name; False if it had begun to leave before."""
        if self._leaving.pop(file.name, None) is not None:
            return False
        if file.role is Role.SEGMENT:
            self._catalog.remove(file)
        elif file.role is Role.TEMPORARY:
            del self._temporaries[file.placed_as]
        return True

    # --- names that no new file may get --------------------------------------------------------------

    def parse_new(self, name: bytes) -> tuple[BaseOffset, Role]:
        """Base offset and role of a new file with this name. Raises InvalidNameError."""
        size = self._catalog.segment_size
        base = parse_segment_name(name, size)
        if base is not None:
            return base, Role.SEGMENT
        base = parse_temporary_name(name, size)
        if base is not None:
            return base, Role.TEMPORARY
        shown = name.decode(errors="backslashreplace")
        raise InvalidNameError(f"{shown}: not a segment of this log: names are 20 digits, a multiple of {size}")

    def require_free(self, name: bytes, base: BaseOffset) -> None:
        """Raises SegmentExistsError."""
        if name in self._quarantined:
            raise SegmentExistsError(f"{name.decode()}: quarantined: {self._quarantined[name]}")
        if name in self._leaving:
            raise SegmentExistsError(
                f"{name.decode()}: is still being removed, because a disk does not answer; repair that disk"
            )
        if name in self._uncertain:
            disk = self._disks[self._uncertain[name]]
            raise SegmentExistsError(f"{name.decode()}: a file of that name lies, or may lie, on {disk.path}")
        if self.find(name) is not None:
            raise SegmentExistsError(f"{name.decode()}: exists")
        if self._create_floor is not None and base < self._create_floor:
            raise SegmentExistsError(
                f"{format_segment_name(base).decode()}: may lie on a missing disk ({', '.join(self._missing)})"
            )
        if base < self._removed_before:
            raise SegmentExistsError(
                f"{format_segment_name(base).decode()}: was removed while a disk was away that still holds such "
                "segments; delete their files, and run `commitlogfs restart`"
            )

    def record_leaving(self, file: Segment) -> None:
        """A disk has not answered to a removal: the file has left the log, but nobody else gets its name yet."""
        self._leaving[file.name] = file

    def end_leaving(self, file: Segment) -> bool:
        """The removal has ended; False if the file was not leaving."""
        return self._leaving.pop(file.name, None) is not None

    @property
    def is_any_leaving(self) -> bool:
        return bool(self._leaving)

    @property
    def oldest_returning(self) -> BaseOffset | None:
        """The oldest segment that a disk is still removing: if that fails, it is a segment of the log again."""
        leaving = (file.base_offset for file in self._leaving.values() if file.role is Role.SEGMENT)
        return min(leaving, default=None)

    def record_uncertain(self, name: bytes, disk: DiskNumber) -> None:
        """A disk holds, or may hold, this name outside of the log."""
        self._uncertain[name] = disk

    def uncertain(self, name: bytes) -> DiskNumber | None:
        """The disk to be asked before this name is used."""
        return self._uncertain.get(name)

    def record_denied(self, name: bytes) -> None:
        """The name certainly does not lie on the disk where it was uncertain."""
        del self._uncertain[name]
