"""Messages of the parts of a mount to the kernel, and their questions to it."""

import logging
from typing import Protocol

import pyfuse3
from pyfuse3 import InodeT

from commitlogfs.fusefs.kernel.invalidation import Invalidation
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)


class KernelLink(Protocol):
    def invalidate(self, name: bytes, inode: int) -> None:
        """The name is gone without a request of the kernel; `inode`, if it is not 0, was its file."""
        ...

    async def sent(self) -> None:
        """Return once the kernel has got all names so far."""
        ...

    async def run(self) -> None:
        """Send the names, until cancelled."""
        ...

    def holds(self, inode: int) -> bool:
        """Whether the kernel still has this inode, open or cached. Blocks; never call it in a request's task."""
        ...


class FuseLink(Invalidation):
    """The link of a FUSE mount."""

    def holds(self, inode: int) -> bool:
        try:
            pyfuse3.invalidate_inode(InodeT(inode), attr_only=True)
        except FileNotFoundError:
            return False
        except OSError as error:
            log_event(log, logging.WARNING, "kernel_not_asked", errno=error.errno)
        return True
