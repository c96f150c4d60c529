"""The session with the kernel: a fresh one, or one that is taken over from a daemon that has ended."""

import logging
import os
from dataclasses import dataclass, field
from enum import Enum

import pyfuse3

from commitlogfs.fusefs.kernel import extension, handshake, inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.fusefs.kernel.inherited_session import DEVICE, HANDSHAKE, TABLE, InheritedSession
from commitlogfs.fusefs.kernel.inherited_state import InheritedStateError
from commitlogfs.fusefs.kernel.request_queue import RequestQueue
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)


class Passthrough(Enum):
    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(slots=True)
class Session:
    """A mounted filesystem, before requests are served."""

    table: BackingTable
    device: int | None
    """None where no successor can take this session over; `why_no_takeover` says why."""
    handshake_fd: int | None
    taken_over: bool
    state_lost: bool
    passthrough: bool
    why_plain: str
    why_no_takeover: str
    queue: RequestQueue | None = None
    """None without the extension."""
    not_passed_through: list[str] = field(default_factory=list)
    """Reasons why some or all files are served plain."""

    def descriptors(self) -> dict[str, int]:
        """Descriptors that a successor needs, by name; empty if none can take over."""
        if self.device is None or self.handshake_fd is None:
            return {}
        return {DEVICE: self.device, HANDSHAKE: self.handshake_fd, TABLE: self.table.fd}


def begin(
    operations: pyfuse3.Operations,
    mountpoint: str,
    options: set[str],
    wanted: Passthrough,
    inherited: InheritedSession | None,
) -> Session:
    """Mount, or take an inherited session over. Requests wait until they are served.

    Raises InheritedStateError if an inherited session cannot be continued (nothing has changed then), RuntimeError
    where the system refuses a mount.
    """
    kernel = extension.module
    if kernel is None:
        if inherited is not None:
            raise InheritedStateError(extension.reason, "repair the installation")
        pyfuse3.init(operations, os.path.abspath(mountpoint), options)
        return _plain(extension.reason, wanted)
    try:
        if inherited is None:
            kernel.prepare(-1, b"", b"", wanted is not Passthrough.OFF)
        else:
            # What was negotiated at the mount holds for its whole life, whatever this version or the configuration
            # would request by now.
            kept = inherited.handshake
            kernel.prepare(inherited.device, kept.init_request, kept.init_reply, False)
        pyfuse3.init(operations, os.path.abspath(mountpoint), options)
    except RuntimeError as error:
        reason = kernel.failure() or str(error)
        raise (RuntimeError if inherited is None else InheritedStateError)(reason) from error
    except ValueError as error:
        raise InheritedStateError(str(error)) from error
    device, request, reply, flags = kernel.negotiated()
    queue = RequestQueue(device, kernel.taken)
    if inherited is not None:
        return _taken_over(inherited, device, wanted, queue)
    fresh = Handshake(0, request, reply)
    table = BackingTable.create(fresh.epoch)
    can_resend = bool(flags & kernel.HAS_RESEND)
    offered = bool(flags & kernel.PASSTHROUGH)
    return Session(
        table,
        device if can_resend else None,
        handshake.write(fresh) if can_resend else None,
        taken_over=False,
        state_lost=False,
        passthrough=offered,
        why_plain=_why_plain(offered, wanted),
        why_no_takeover="" if can_resend else "the kernel cannot resend requests (needs Linux 6.9)",
        queue=queue,
    )


def _taken_over(inherited: InheritedSession, device: int, wanted: Passthrough, queue: RequestQueue) -> Session:
    former, handshake_fd, table = inherited.handshake, inherited.handshake_fd, inherited.table
    offered = _offers_passthrough(inherited)
    if table is None:
        log_event(log, logging.WARNING, "state_lost", reason=inherited.why_lost)
        if offered:
            # No daemon knows the backing ids of the inodes that the kernel still holds. They count as foreign from
            # now on, and files get other inode numbers. Without passthrough there were no ids to lose.
            former = former.next_epoch()
            handshake_fd = handshake.write(former)
        table = BackingTable.create(former.epoch)
    inodes.begin_epoch(former.epoch)
    return Session(
        table,
        device,
        handshake_fd,
        taken_over=True,
        state_lost=inherited.table is None,
        passthrough=offered and wanted is not Passthrough.OFF,
        why_plain=_why_plain(offered, wanted, "the mount was made without it: unmount, and mount it again"),
        why_no_takeover="",
        queue=queue,
    )


def _offers_passthrough(inherited: InheritedSession) -> bool:
    assert extension.module is not None
    flags = extension.module.init_reply_flags(inherited.handshake.init_reply)
    return bool(flags & extension.module.PASSTHROUGH)


def _plain(reason: str, wanted: Passthrough) -> Session:
    why = "off in the configuration" if wanted is Passthrough.OFF else reason
    return Session(
        BackingTable.create(0),
        None,
        None,
        taken_over=False,
        state_lost=False,
        passthrough=False,
        why_plain=why,
        why_no_takeover=reason,
    )


def _why_plain(
    offered: bool,
    wanted: Passthrough,
    otherwise: str = "the kernel does not offer it (needs Linux 6.9, built with FUSE_PASSTHROUGH)",
) -> str:
    if wanted is Passthrough.OFF:
        return "off in the configuration"
    return "" if offered else otherwise
