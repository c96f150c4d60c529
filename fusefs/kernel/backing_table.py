"""How each opened file is served, in shared memory that survives the daemon: the next daemon has to know what the
kernel remembers of an inode. The table also keeps the lead of the wall clock: a later daemon must not reset the
clock baseline.

It is a memory file: a header, then one record of 16 bytes for each file that was opened since the mount was made:

    8 bytes   magic          u64   inode number (0: free)
    u32       layout         i32   backing id; PLAIN
    u32       epoch          u32   CRC-32 of the first twelve bytes
    u32       takeovers
    u32       0
    f64       the wall clock's lead in seconds (retention/clocks.py); 0.0: not known, as older versions write it

A note on a disk (disk_memory.py) is a record, too. It looks like a file that cannot exist, since its disk number is
0, and that is served plain. Versions that do not know notes drop it, as they drop files that are gone. In place of
the inode number it has:

    12 bits 0,  0 0 0 0,  4 bits kind,  12 bits disk number,  32 bits value      (from the highest)

A record is complete before anything depends on it, and a removed one is zero. A daemon that is killed while it
writes a record leaves the beginning of it, which counts as free. Anything else that does not fit is damage, and a
damaged table is not used: the kernel refuses an open file that is opened with another backing id.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator

from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, UnknownLayoutError

LAYOUT = 1
PLAIN = -1
"""Served by the daemon: the kernel refuses to mix this with passthrough on one inode."""

_MAGIC = b"clfsBACK"
_HEADER = struct.Struct("<8sIII")
_NUMBER = struct.Struct("<I")
_TAKEOVERS_OFFSET = 16
_LEAD = struct.Struct("<d")
_LEAD_OFFSET = 24
_RECORD_START = 32
_RECORD = struct.Struct("<QiI")
_KEY = struct.Struct("<Qi")
_INODE = struct.Struct("<Q")
_NOTE = struct.Struct("<IHH")
_KIND_SHIFT = 12
_DISK_BITS = (1 << _KIND_SHIFT) - 1
_LARGEST_VALUE = (1 << 32) - 1
_FIRST_RECORDS = 4094
"""64 KiB; a full table doubles."""


class BackingTable:
    """For one thread. Descriptor and mapping belong to it."""

    def __init__(self, fd: int, epoch: int, map_: mmap.mmap, records: dict[int, tuple[int, int]]) -> None:
        self.fd = fd
        self.epoch = epoch
        self._map = map_
        self._records = {inode: record for inode, record in records.items() if not _is_note(inode, record[1])}
        """inode -> (slot, backing id)"""
        self._notes: dict[tuple[int, int], tuple[int, int]] = {}
        """(disk number, kind) -> (slot, value)"""
        for key in sorted(records.keys() - self._records.keys()):
            value, subject, _ = _NOTE.unpack(_INODE.pack(key))
            note = subject & _DISK_BITS, subject >> _KIND_SHIFT
            if note in self._notes:  # a daemon was killed before it had removed the former value
                _RECORD.pack_into(map_, self._offset(self._notes[note][0]), 0, 0, 0)
            self._notes[note] = (records[key][0], value)
        used = {slot for slot, _ in (*self._records.values(), *self._notes.values())}
        self._free = [slot for slot in reversed(range(self._capacity())) if slot not in used]

    @classmethod
    def create(cls, epoch: int) -> "BackingTable":
        """An empty table. Raises OSError."""
        fd = os.memfd_create("commitlogfs-backing", os.MFD_CLOEXEC)
        os.ftruncate(fd, _RECORD_START + _FIRST_RECORDS * _RECORD.size)
        map_ = mmap.mmap(fd, 0)
        _HEADER.pack_into(map_, 0, _MAGIC, LAYOUT, epoch, 0)
        return cls(fd, epoch, map_, {})

    @classmethod
    def open(cls, fd: int, epoch: int) -> "BackingTable":
        """The table of a former daemon, which must be of this epoch. Raises CorruptStateError, UnknownLayoutError;
        then `fd` stays the caller's."""
        try:
            map_ = mmap.mmap(fd, 0)
        except (OSError, ValueError) as error:
            raise CorruptStateError(f"the kept backing table cannot be mapped ({error})") from error
        if len(map_) < _RECORD_START or map_[: len(_MAGIC)] != _MAGIC:
            raise CorruptStateError("the kept backing table was not written by commitlogfs")
        _, layout, written_epoch, _ = _HEADER.unpack_from(map_)
        if layout != LAYOUT:
            raise UnknownLayoutError(f"the kept backing table has layout {layout}, this version knows {LAYOUT}")
        if written_epoch != epoch or not _is_a_size(len(map_)):
            raise CorruptStateError("the kept backing table is damaged")
        records = {}
        for slot, offset in enumerate(range(_RECORD_START, len(map_), _RECORD.size)):
            inode, backing_id, checksum = _RECORD.unpack_from(map_, offset)
            if inode and checksum == _checksum(inode, backing_id):
                records[inode] = (slot, backing_id)
            elif inode and not _is_beginning_of(checksum, _checksum(inode, backing_id)):
                raise CorruptStateError(f"record {slot} of the kept backing table is damaged")
            elif inode or backing_id or checksum:
                _RECORD.pack_into(map_, offset, 0, 0, 0)
        return cls(fd, epoch, map_, records)

    @property
    def takeovers(self) -> int:
        """Number of takeovers of this mount."""
        takeovers: int = _NUMBER.unpack_from(self._map, _TAKEOVERS_OFFSET)[0]
        return takeovers

    def record_takeover(self) -> None:
        _NUMBER.pack_into(self._map, _TAKEOVERS_OFFSET, self.takeovers + 1)

    @property
    def clock_lead_s(self) -> float | None:
        lead_s: float = _LEAD.unpack_from(self._map, _LEAD_OFFSET)[0]
        return lead_s or None

    def record_clock_lead(self, lead_s: float | None) -> None:
        """None: the next daemon has to measure it."""
        _LEAD.pack_into(self._map, _LEAD_OFFSET, lead_s or 0.0)

    def get(self, inode: int) -> int | None:
        """The backing id, PLAIN, or None for a file that was not opened yet."""
        record = self._records.get(inode)
        return None if record is None else record[1]

    def put(self, inode: int, backing_id: int) -> None:
        """Survives the death of this process when it returns. Raises OSError if memory is short."""
        record = self._records.get(inode)
        slot = record[0] if record is not None else self._take_slot()
        _RECORD.pack_into(self._map, self._offset(slot), inode, backing_id, _checksum(inode, backing_id))
        self._records[inode] = (slot, backing_id)

    def remove(self, inode: int) -> None:
        record = self._records.pop(inode, None)
        if record is not None:
            _RECORD.pack_into(self._map, self._offset(record[0]), 0, 0, 0)
            self._free.append(record[0])

    def put_note(self, disk: int, kind: int, value: int | None) -> None:
        """Keep a number of 32 bits about a disk; a larger one is cut to the largest. None removes it. Raises
        OSError if memory is short."""
        former = self._notes.get((disk, kind))
        value = None if value is None else min(value, _LARGEST_VALUE)
        if value == (None if former is None else former[1]):
            return
        if value is not None:
            slot = self._take_slot()
            (key,) = _INODE.unpack(_NOTE.pack(value, kind << _KIND_SHIFT | disk, 0))
            _RECORD.pack_into(self._map, self._offset(slot), key, PLAIN, _checksum(key, PLAIN))
            self._notes[disk, kind] = (slot, value)
        else:
            del self._notes[disk, kind]
        if former is not None:
            _RECORD.pack_into(self._map, self._offset(former[0]), 0, 0, 0)
            self._free.append(former[0])

    def notes(self) -> dict[tuple[int, int], int]:
        """(disk number, kind) -> value, for every note."""
        return {key: value for key, (_, value) in self._notes.items()}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(inode, backing id or PLAIN) of every record. A copy: the table may change meanwhile."""
        return iter([(inode, backing_id) for inode, (_, backing_id) in self._records.items()])

    def __len__(self) -> int:
        return len(self._records)

    def close(self) -> None:
        """Close descriptor and mapping; the copy in the descriptor store keeps the content."""
        self._map.close()
        os.close(self.fd)

    def _capacity(self) -> int:
        return (len(self._map) - _RECORD_START) // _RECORD.size

    def _offset(self, slot: int) -> int:
        return _RECORD_START + slot * _RECORD.size

    def _take_slot(self) -> int:
        if not self._free:
            before = self._capacity()
            size = _RECORD_START + 2 * before * _RECORD.size
            os.ftruncate(self.fd, size)
            self._map.resize(size)
            self._free = list(reversed(range(before, self._capacity())))
        return self._free.pop()


def _is_note(inode: int, backing_id: int) -> bool:
    _, subject, rest = _NOTE.unpack(_INODE.pack(inode))
    return backing_id == PLAIN and not rest and bool(subject & _DISK_BITS) and bool(subject >> _KIND_SHIFT)


def _checksum(inode: int, backing_id: int) -> int:
    return zlib.crc32(_KEY.pack(inode, backing_id))


def _is_beginning_of(written: int, whole: int) -> bool:
    """Whether only the first bytes of a checksum, or none, were written over zeros."""
    return any(written == whole & (1 << 8 * length) - 1 for length in range(4))


def _is_a_size(length: int) -> bool:
    """Whether a table can have this length: one that was cut off would hide records."""
    records, rest = divmod(length - _RECORD_START, _RECORD.size)
    times, odd = divmod(records, _FIRST_RECORDS)
    return not rest and not odd and times.bit_count() == 1
