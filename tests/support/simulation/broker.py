"""A broker and its consumers in simulated time, and what they must find."""

import contextlib
import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import trio
from pyfuse3 import EntryAttributes, FUSEError, SetattrFields
from support.records import make_sealed
from support.request_fields import CONTEXT, ChangedFields
from support.simulation.power import change_on_medium
from support.simulation.world import SIZE, PowerCutError, World

from commitlogfs.fusefs.kernel import inodes
from commitlogfs.store.files.hashing import read_checksum_of
from commitlogfs.store.scrub.verdict import Range
from commitlogfs.store.segment import format_segment_name

BROKER_S = 5.0
"""A broker gives a create up after this time."""
OPEN_SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class Rot:
    """A byte of a message's body that has changed on the medium."""

    content: bytes
    """The whole segment with that byte."""
    message: Range
    """The message. Its body CRC shows the change to a scrub of the messages."""
    had_checksum: bool
    """Whether the medium had the segment's checksum before, so that each scrub finds the change. A checksum that
    is computed afterwards, or that a power cut takes, tells nothing of it."""


@dataclass(eq=False)
class Log:
    """The model: what was acknowledged."""

    segments: dict[int, bytes] = field(default_factory=dict)
    """Content by index."""
    uncertain: set[int] = field(default_factory=set)
    """Segments whose removal has failed: they may be there or not."""
    may_return: set[int] = field(default_factory=set)
    """Segments that were not there when they were to be removed, while a disk was away, or after a removal that had
    failed: a daemon that dies may not have done what it began."""
    rotten: dict[int, Rot] = field(default_factory=dict)
    next_index: int = 0

    def contents(self, index: int) -> set[bytes]:
        """The content of a segment, with a byte that has rotted and without it."""
        rot = self.rotten.get(index)
        contents = (self.segments.get(index), None if rot is None else rot.content)
        return {content for content in contents if content is not None}


class Broker:
    """Appends segment after segment, reads any, and deletes the oldest."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = Log()
        self.slowest_create_s = 0.0
        self.may_be_forced = False
        """Whether the disks were full, so that the oldest segments may be removed by force."""
        self.failed_creates = 0
        self._refused: set[int] = set()
        """Segments of which a removal has failed."""
        self._cut_off: set[int] = set()
        """Segments that were being removed when the power failed."""
        self._removed_unseen: dict[int, frozenset[str]] = {}
        """Segments that were removed while these disks were away, which may have held them."""
        self._open: list[int] = []
        """File handles of the newest segments, as a broker keeps them."""

    def content_of(self, index: int) -> bytes:
        """Messages, since a scrub knows others from damage; others in each life of a segment."""
        return make_sealed(index * SIZE, SIZE, store_ms=1_700_000_000_000 + self.world.random.randrange(10**9))

    @property
    def _away(self) -> frozenset[str]:
        return frozenset(self.world.serving.commitlog.missing)

    async def append(self, between: Callable[[], None] | None = None) -> bool:
        """Make, fill and sync the next segment; whether that was possible. `between` is called when it has its
        name, and not its size."""
        index, begun_s, slow_endings = self.log.next_index, self.world.clock.elapsed(), self.world.slow_endings
        name = format_segment_name(index * SIZE)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            info, entry = await self.world.request("create", inodes.ROOT, name, 0o640, flags, CONTEXT)
        except FUSEError as error:
            return self._no_create(error)
        self.world.kernel.opened[info.fh] += 1
        took_s = self.world.clock.elapsed() - begun_s
        if self.world.slow_endings == slow_endings:  # a hand-over beside a disk that hangs delays everything
            self.slowest_create_s = max(self.slowest_create_s, took_s)
        content = self.content_of(index)
        if between is not None:
            between()
        try:
            await self._change(entry.st_ino, size=SIZE)
        except FUSEError as error:
            await self._give_up(index, info.fh)
            return self._no_create(error)
        try:
            with trio.fail_after(600.0):
                await self._fill(info.fh, content)
                await self._change(entry.st_ino, mtime_ns=self.world.clock.wall_ns())
        except (FUSEError, trio.TooSlowError) as error:
            self.world.note(f"segment {index} is not written: {error!r}")
            await self._give_up(index, info.fh)
            return False
        self.log.segments[index] = content
        self.log.next_index = index + 1
        self._open.append(info.fh)
        while len(self._open) > OPEN_SEGMENTS:
            await self._close(self._open.pop(0))
        return True

    def _no_create(self, error: FUSEError) -> bool:
        self.failed_creates += 1
        self.world.note(f"no segment {self.log.next_index}: {errno.errorcode.get(error.errno, error.errno)}")
        return False

    async def _fill(self, handle: int, content: bytes) -> None:
        """In pieces, each synced, as messages come."""
        piece = SIZE // 4
        for offset in range(0, SIZE, piece):
            written = await self.world.request("write", handle, offset, content[offset : offset + piece])
            assert written == piece
            await self.world.request("fsync", handle, True)

    async def _change(self, inode: int, *, size: int | None = None, mtime_ns: int | None = None) -> None:
        attributes = EntryAttributes()
        attributes.st_size = size or 0
        attributes.st_mtime_ns = mtime_ns or 0
        fields = ChangedFields(update_size=size is not None, update_mtime=mtime_ns is not None)
        await self.world.request("setattr", inode, attributes, cast(SetattrFields, fields), None, CONTEXT)

    async def _close(self, handle: int) -> None:
        with contextlib.suppress(FUSEError):
            await self.world.request("flush", handle)
        await self._release(handle)

    async def _release(self, handle: int) -> None:
        opened = self.world.kernel.opened
        opened[handle] = max(0, opened[handle] - 1)  # a power cut has ended all opens
        await self.world.request("release", handle)

    async def close(self) -> None:
        """Close all segments."""
        while self._open:
            await self._close(self._open.pop())

    async def _give_up(self, index: int, handle: int) -> None:
        """A broker whose disk failed under it is started again, and removes what it has not acknowledged."""
        await self._close(handle)
        while not await self._remove(index):  # noqa: ASYNC110 - nothing announces that a disk is well
            await trio.sleep(30.0)

    async def begin_again(self) -> None:
        """After a power cut: what was being written has not been acknowledged, and is removed."""
        self._open.clear()
        while not await self._remove(self.log.next_index):  # noqa: ASYNC110 - nothing announces that a disk is well
            await trio.sleep(30.0)

    def _oldest_returning(self) -> float:
        """Index of the oldest segment whose disk has not answered to its removal."""
        base = self.world.serving.commitlog.names.oldest_returning
        return math.inf if base is None else base // SIZE

    async def _remove(self, index: int) -> bool:
        """Whether the segment is gone."""
        returning = self._oldest_returning()
        try:
            await self.world.request("unlink", inodes.ROOT, format_segment_name(index * SIZE), CONTEXT)
        except FUSEError as error:
            if error.errno == errno.ENOENT:
                if index in self._refused:
                    self.log.may_return.add(index)
                elif self._away:
                    self._removed_unseen[index] = self._away
                    self.log.may_return.add(index)
                elif index in self.log.segments and index not in self._cut_off:
                    assert self.may_be_forced, f"segment {index} is gone before it was removed"
                return True
            self.world.note(f"segment {index} is not removed: {errno.errorcode.get(error.errno, error.errno)}")
            self._refused.add(index)
            return False
        except PowerCutError:
            self._cut_off.add(index)
            raise
        first = self.world.serving.commitlog.catalog.first
        if first is None or first.base_offset > index * SIZE:
            # It was the oldest, so the other disks have recorded that the log begins behind it, or with a segment
            # whose removal has no answer yet.
            begin = min(index, returning, self._oldest_returning())
            older = {kept for kept, away in self._removed_unseen.items() if kept < begin and away <= self._away}
            self.log.may_return -= older
        return True

    async def expire(self, kept: int) -> None:
        """Delete the oldest segments but `kept`, as cleaning by age does: it stops at the first that stays."""
        for index in sorted(self.log.segments)[: max(0, len(self.log.segments) - kept)]:
            self.log.uncertain.add(index)
            if not await self._remove(index):
                return
            self.log.uncertain.discard(index)
            del self.log.segments[index]

    def let_rot(self, index: int) -> bool:
        """Change a byte of a message's body on the disk, as the medium does: neither the kernel nor a time of the
        file shows it. Whether there is such a file."""
        log, content = self.world.serving.commitlog, bytearray(self.log.segments[index])
        segment = log.catalog.get(index * SIZE)
        if segment is None:
            return False
        disk = log.disk_of(segment)
        simulated = self.world.disks.by_path[disk.path]
        if not simulated.is_well:
            return False
        bodies = [at for at in range(8, SIZE - 8) if content[at] and len(set(content[at - 8 : at + 8])) == 1]
        position = self.world.random.choice(bodies)
        content[position] ^= 1 << self.world.random.randrange(8)
        checksum = read_checksum_of(disk.dirfd, segment.name, segment.ino)
        had_checksum = checksum is not None and simulated.medium.has_all_of(segment.ino)
        path = os.path.join(disk.path, segment.name.decode())
        change_on_medium(path, position, bytes(content[position : position + 1]))
        self.log.rotten[index] = Rot(bytes(content), _message_at(self.log.segments[index], position), had_checksum)
        return True

    async def _open_to_read(self, index: int) -> int:
        """A handle. Between lookup and open the segment may be moved: then the kernel looks its name up again."""
        while True:
            name = format_segment_name(index * SIZE)
            entry = await self.world.request("lookup", inodes.ROOT, name, CONTEXT)
            try:
                info = await self.world.request("open", entry.st_ino, os.O_RDONLY, CONTEXT)
            except FUSEError as error:
                if error.errno != errno.ESTALE:
                    raise
            else:
                self.world.kernel.opened[info.fh] += 1
                return cast("int", info.fh)

    async def read(self, index: int, pause_s: float = 0.0) -> bytes | None:
        """The content of a segment, `pause_s` after it was opened; None if its disk does not give it. Raises
        FileNotFoundError, PowerCutError."""
        power_cuts = self.world.power_cuts
        try:
            with trio.fail_after(600.0 + pause_s):
                handle = await self._open_to_read(index)
                try:
                    await trio.sleep(pause_s)
                    self.world.require_power(power_cuts)
                    content: bytes = await self.world.request("read", handle, 0, SIZE)
                except FUSEError as error:
                    if error.errno == errno.ENOENT and not self.world.absent_once:
                        raise AssertionError(f"an open segment {index} is gone") from error
                    raise
                finally:
                    if self.world.power_cuts == power_cuts:
                        await self._release(handle)
        except trio.TooSlowError:
            return None
        except FUSEError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(index) from error
            return None
        return content

    def _is_before(self, index: int) -> bool:
        """Whether the log has a segment before this one on a disk that was always there: the rules pass over those
        of a disk that is lost."""
        log = self.world.serving.commitlog
        return any(
            segment.base_offset < index * SIZE and log.disk_of(segment).path not in self.world.absent_once
            for segment in log.catalog
        )

    async def check(self, index: int) -> None:
        """A segment that can be read is right. One that was acknowledged is there, unless its disk is away, or it
        is one of the oldest, which the rules may remove."""
        try:
            content = await self.read(index)
        except FileNotFoundError:
            is_complete = not self.world.serving.commitlog.missing
            if index in self.log.segments and index not in self.log.uncertain and is_complete:
                assert self.may_be_forced, f"segment {index} is lost"
                assert not self._is_before(index), f"segment {index} is lost in the middle of the log"
                del self.log.segments[index]
            return
        if content is not None and index in self.log.segments:
            assert content in self.log.contents(index), f"segment {index} has another content"


def _message_at(content: bytes, position: int) -> Range:
    """The message of a sealed segment in which a position lies."""
    begin, end = 0, 0
    while end <= position:
        begin, end = end, end + int.from_bytes(content[end : end + 4], "big")
    return Range(begin, end)
