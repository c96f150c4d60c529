"""The session with the kernel: fresh, or taken over from a daemon that is dead or has stepped back."""

import logging
import os
from dataclasses import dataclass, field
from enum import Enum

import pyfuse3

from commitlogfs.fusefs.kernel import extension, handshake, inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, KeptStateError, UnknownLayoutError
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

DEVICE, HANDSHAKE, TABLE = "fuse", "handshake", "backing"
"""What the descriptors are called in the descriptor store."""
STORED = (DEVICE, HANDSHAKE, TABLE)

_INIT_OUT_FLAGS = 12
"""Byte offset in the INIT reply behind version and read-ahead, which may differ."""


class Passthrough(Enum):
    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Kept:
    """Descriptors that came back from the descriptor store, by name. They belong to whoever is given this."""

    device: int
    handshake: int
    table: int | None


@dataclass(slots=True)
class Session:
    """A mounted filesystem, before requests are served."""

    table: BackingTable
    device: int | None
    """None where a successor cannot go on with this session; `why_no_takeover` says why."""
    handshake_fd: int | None
    taken_over: bool
    state_lost: bool
    passthrough: bool
    why_plain: str
    why_no_takeover: str
    not_passed_through: list[str] = field(default_factory=list)
    """Why some or all files are served plain, one reason each."""

    def descriptors(self) -> dict[str, int]:
        """What has to survive, by name; empty where nothing can."""
        if self.device is None or self.handshake_fd is None:
            return {}
        return {DEVICE: self.device, HANDSHAKE: self.handshake_fd, TABLE: self.table.fd}


def begin(
    operations: pyfuse3.Operations, mountpoint: str, options: set[str], wanted: Passthrough, kept: Kept | None
) -> Session:
    """Mount, or go on with what was kept. Requests wait until they are served.

    Raises KeptStateError if a kept session cannot be continued (nothing has changed then), RuntimeError where the
    system refuses a mount.
    """
    kernel = extension.module
    if kernel is None:
        if kept is not None:
            raise KeptStateError(f"the mount cannot be taken over: {extension.reason}")
        pyfuse3.init(operations, os.path.abspath(mountpoint), options)
        return _plain(extension.reason, wanted)
    former = None if kept is None else handshake.read(kept.handshake)
    try:
        if kept is None or former is None:
            kernel.prepare(-1, b"", wanted is not Passthrough.OFF)
        else:
            # What was negotiated holds for the life of the mount, whatever the configuration says by now.
            kernel.prepare(kept.device, former.init_request, bool(_flags(former) & kernel.PASSTHROUGH))
        pyfuse3.init(operations, os.path.abspath(mountpoint), options)
    except RuntimeError as error:
        reason = kernel.failure() or str(error)
        raise (RuntimeError if kept is None else KeptStateError)(reason) from error
    except ValueError as error:
        raise KeptStateError(str(error)) from error
    device, request, reply, flags = kernel.negotiated()
    if kept is not None and former is not None:
        return _taken_over(kept, former, reply, device, wanted)
    fresh = Handshake(0, request, reply)
    table = BackingTable.create(fresh.epoch)
    survives = bool(flags & kernel.HAS_RESEND)
    offered = bool(flags & kernel.PASSTHROUGH)
    return Session(
        table,
        device if survives else None,
        handshake.write(fresh) if survives else None,
        taken_over=False,
        state_lost=False,
        passthrough=offered,
        why_plain=_why_plain(offered, wanted),
        why_no_takeover="" if survives else "the kernel cannot resend requests (needs Linux 6.9)",
    )


def _taken_over(kept: Kept, former: Handshake, reply: bytes, device: int, wanted: Passthrough) -> Session:
    assert extension.module is not None
    if reply[_INIT_OUT_FLAGS:] != former.init_reply[_INIT_OUT_FLAGS:]:
        raise UnknownLayoutError(
            "this version would have agreed with the kernel on other features than the mount was made with"
        )
    lost = False
    handshake_fd = kept.handshake
    offered = bool(_flags(former) & extension.module.PASSTHROUGH)
    try:
        if kept.table is None:
            raise CorruptStateError("the backing table was not kept")
        table = BackingTable.open(kept.table, former.epoch)
    except CorruptStateError as error:
        lost = True
        log_event(log, logging.WARNING, "state_lost", reason=str(error))
        if offered:
            # Nobody knows the backing ids of the inodes that the kernel still holds: they are none of ours any
            # longer, and new ones get other numbers. Without passthrough there were no ids to lose.
            former = former.next_epoch()
            handshake_fd = handshake.write(former)
        table = BackingTable.create(former.epoch)
    inodes.begin_epoch(former.epoch)
    on = offered and wanted is not Passthrough.OFF
    return Session(
        table,
        device,
        handshake_fd,
        taken_over=True,
        state_lost=lost,
        passthrough=on,
        why_plain=_why_plain(offered, wanted, "the mount was made without it: unmount, and mount it again"),
        why_no_takeover="",
    )


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


def _flags(former: Handshake) -> int:
    """Of the INIT reply: 32 bits at byte 12, 32 more at byte 32 (struct fuse_init_out)."""
    low = int.from_bytes(former.init_reply[12:16], "little")
    high = int.from_bytes(former.init_reply[32:36], "little")
    return low | high << 32
