"""The session of a mount as its former daemon left it: handshake, backing table and opened files, read once."""

from collections.abc import Mapping
from dataclasses import dataclass

from commitlogfs.fusefs.kernel import handshake, inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, InheritedStateError
from commitlogfs.store.disks.membership import DiskNumber

DEVICE, HANDSHAKE, TABLE = "fuse", "handshake", "backing"
"""Names of the descriptors in the descriptor store."""
STORED = (DEVICE, HANDSHAKE, TABLE)


@dataclass(frozen=True, slots=True)
class InheritedSession:
    """The descriptors belong to this process, and the table's to the table."""

    device: int
    """The connection."""
    handshake_fd: int
    handshake: Handshake
    table: BackingTable | None
    """None if it is lost."""
    why_lost: str
    """Why the table is lost; empty if it is not."""

    def opened_files(self) -> frozenset[tuple[DiskNumber, int]]:
        """Disk and backing inode of each file that was opened under the former daemons: their successor serves
        them, whatever their size. Empty if the table is lost."""
        if self.table is None:
            return frozenset()
        return frozenset(
            (DiskNumber(inode >> inodes.BACKING_BITS & inodes.LARGEST_DISK), inode & inodes.LARGEST_BACKING)
            for inode, _ in self.table
        )


def read(descriptors: Mapping[str, int]) -> InheritedSession:
    """The session that descriptors from the descriptor store belong to; `descriptors` has a DEVICE.

    Raises InheritedStateError if no daemon of this version can take the session over; then nothing has changed.
    """
    if HANDSHAKE not in descriptors:
        raise InheritedStateError(
            "the handshake with the kernel was not kept", "stop the broker, unmount and mount again"
        )
    agreed = handshake.read(descriptors[HANDSHAKE])
    table, why_lost = None, "the backing table was not kept"
    if TABLE in descriptors:
        try:
            table, why_lost = BackingTable.open(descriptors[TABLE], agreed.epoch), ""
        except CorruptStateError as error:
            why_lost = str(error)
    return InheritedSession(descriptors[DEVICE], descriptors[HANDSHAKE], agreed, table, why_lost)
