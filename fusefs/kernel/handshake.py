"""The FUSE features that the kernel and the first daemon of a mount negotiated (FUSE_INIT). They are kept for later
daemons, which cannot negotiate again, and serve with these features even if they would request others. The reply is
kept without the parts that concern the kernel alone: parallel lookups, and the number of background requests.

Written once, into a sealed memory file:

    8 bytes   magic
    u32       layout
    u32       epoch        upper bits of the inode numbers; a new one when the backing table was lost
    u32, u32  lengths of INIT request and reply
    u32       CRC-32 of everything else
    bytes     request, reply (include/uapi/linux/fuse.h)
"""

import fcntl
import os
import struct
import zlib
from dataclasses import dataclass

from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, UnknownLayoutError

LAYOUT = 1
MAX_EPOCH = 15

_MAGIC = b"clfsINIT"
_HEADER = struct.Struct("<8sIIIII")
_MAX_BYTES = 1 << 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Handshake:
    epoch: int
    init_request: bytes
    init_reply: bytes

    def next_epoch(self) -> "Handshake":
        return Handshake(self.epoch % MAX_EPOCH + 1, self.init_request, self.init_reply)


def write(handshake: Handshake) -> int:
    """A sealed memory file with it. Raises OSError."""
    lengths = (len(handshake.init_request), len(handshake.init_reply))
    body = handshake.init_request + handshake.init_reply
    checksum = _checksum(LAYOUT, handshake.epoch, lengths, body)
    fd = os.memfd_create("commitlogfs-handshake", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, _HEADER.pack(_MAGIC, LAYOUT, handshake.epoch, *lengths, checksum) + body)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> Handshake:
    """Raises CorruptStateError, UnknownLayoutError, OSError."""
    content = os.pread(fd, _MAX_BYTES, 0)
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise CorruptStateError("the kept INIT request was not written by commitlogfs")
    _, layout, epoch, request_length, reply_length, checksum = _HEADER.unpack_from(content)
    if layout != LAYOUT:
        raise UnknownLayoutError(f"the kept INIT request has layout {layout}, this version knows {LAYOUT}")
    body = content[_HEADER.size :]
    lengths = (request_length, reply_length)
    if sum(lengths) != len(body) or checksum != _checksum(layout, epoch, lengths, body) or epoch > MAX_EPOCH:
        raise CorruptStateError("the kept INIT request is damaged")
    return Handshake(epoch, body[:request_length], body[request_length:])


def _checksum(layout: int, epoch: int, lengths: tuple[int, int], body: bytes) -> int:
    return zlib.crc32(_HEADER.pack(_MAGIC, layout, epoch, *lengths, 0) + body)
