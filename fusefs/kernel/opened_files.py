"""Which files were opened in the time of the daemons before: their successor serves them, whatever their size."""

import os
from contextlib import closing

from commitlogfs.fusefs.kernel import handshake, inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.inherited_state import KeptStateError
from commitlogfs.fusefs.kernel.session import Kept
from commitlogfs.store.disks.identity import DiskNumber


def opened_files(kept: Kept) -> frozenset[tuple[DiskNumber, int]]:
    """Disk and backing inode of each. None if that was lost."""
    if kept.table is None:
        return frozenset()
    fd = os.dup(kept.table)
    try:
        table = BackingTable.open(fd, handshake.read(kept.handshake).epoch)
    except KeptStateError:
        os.close(fd)
        return frozenset()
    with closing(table):
        return frozenset(
            (DiskNumber(inode >> inodes.BACKING_BITS & inodes.LARGEST_DISK), inode & inodes.LARGEST_BACKING)
            for inode, _ in table
        )
