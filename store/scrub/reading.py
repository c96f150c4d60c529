"""Reading one sealed segment from its device, past the page cache, and judging its content.

The quick read only compares the content with the segment's checksum. Two threads read by turns while a third one
hashes, so that the device always has work. The thorough read also follows the chain of records, and continues after
blocks that cannot be read. Both leave it to the caller to pause or stop between two chunks. All functions block and
belong in a worker thread.
"""

import errno
import mmap
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Final

import xxhash

from commitlogfs.store.clock import Clock
from commitlogfs.store.disks.disk import MEDIUM_ERRORS
from commitlogfs.store.errors import SegmentChangedError, SegmentUnreadableError
from commitlogfs.store.files import safe_open
from commitlogfs.store.files.attributes import stat_fd, unpack
from commitlogfs.store.files.direct import ALIGNMENT, set_direct
from commitlogfs.store.files.hashing import read_checksum
from commitlogfs.store.moves.unreadable import UnreadableRanges, read_unreadable
from commitlogfs.store.record_layout import BODY_AT
from commitlogfs.store.scrub.chain import check_chain, is_of_other_segment
from commitlogfs.store.scrub.verdict import Evidence, Range
from commitlogfs.store.segment import BaseOffset

CHUNK_BYTES: Final = 1 << 20
FAST_CHUNK_BYTES: Final = 4 << 20
"""For reads that give way to nobody: each chunk costs some 0.1 ms for its way through three threads."""
_BLOCKS_AT_ONCE: Final = 8
"""Blocks of a failing range that are read between two pauses: a disk may take seconds for each bad one."""
_PROBES: Final = 16
"""Blocks, spread over a segment, of which one must be readable for the others to be tried one by one."""

NextChunk = Callable[[int, float], int]
"""Called before each chunk, at the end, and before each slice of a damaged chain that is searched, with the number
of bytes read since the last call, and the seconds for which that has kept the disk or this thread busy. It waits as
long as necessary, and returns the most bytes to read next. It raises whatever is to end the read."""


class SegmentReader:
    """One segment. For one thread; close it afterwards."""

    def __init__(
        self,
        dirfd: int,
        name: bytes,
        ino: int,
        base_offset: BaseOffset,
        size: int,
        clock: Clock,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`size`: that of the segment, which its file may not have. `chunk_bytes`: the most to read at once. Raises
        OSError."""
        self.size = size
        self.chunk_bytes = chunk_bytes
        self._clock = clock
        self._base_offset = base_offset
        self._name = name
        self._fd = safe_open.open_file(dirfd, name, os.O_RDONLY, ino)
        try:
            self._before = unpack(stat_fd(self._fd))
            self._present = min(size, self._before.size)
            """Number of bytes of the segment that its file has."""
            # What was appended to the file is no part of the segment, and changes none of its bytes.
            state = self._before._replace(size=self._present)
            self._checksum = read_checksum(self._fd, state)
            self._lost = [Range(*known) for known in read_unreadable(self._fd).ranges]
            set_direct(self._fd)
        except BaseException:
            os.close(self._fd)
            raise
        self._buffers = [mmap.mmap(-1, chunk_bytes) for _ in range(2)]

    @property
    def has_checksum(self) -> bool:
        """Whether a checksum shows if its content is right."""
        return self._checksum is not None and not self._is_short and not self._lost

    @property
    def _is_short(self) -> bool:
        return self._present < self.size

    def matches_checksum(self, next_chunk: NextChunk) -> bool:
        """Whether the whole content has the checksum, and does not begin with a record of another place in the log:
        the checksum goes with its file, if that gets the name of another segment. Raises OSError,
        SegmentChangedError."""
        digest, is_first, begins_right = xxhash.xxh3_128(), True, True
        position, done, seconds = 0, 0, 0.0
        free = list(self._buffers)
        reads: deque[tuple[Future[tuple[int, float]], mmap.mmap]] = deque()
        with _Readers(self._timed_read, len(free)) as readers:
            while position < self.size or reads:
                while free and position < self.size:
                    length = min(next_chunk(done, seconds), self.chunk_bytes, self.size - position)
                    done = 0
                    buffer = free.pop()
                    reads.append((readers.submit(position, length, buffer), buffer))
                    position += length
                read, buffer = reads.popleft()
                count, seconds = read.result()
                if is_first:
                    begins_right = not is_of_other_segment(buffer[:BODY_AT], self._base_offset)
                    is_first = False
                digest.update(memoryview(buffer)[:count])
                free.append(buffer)
                if position >= self.size:
                    next_chunk(count, seconds)
                else:
                    done = count
        self._require_unchanged()
        return begins_right and digest.digest() == self._checksum

    def _timed_read(self, position: int, length: int, buffer: mmap.mmap) -> tuple[int, float]:
        began_s = self._clock.monotonic()
        return self._read(position, length, buffer), self._clock.monotonic() - began_s

    def examine(self, next_chunk: NextChunk) -> Evidence:
        """Read all of it, and check its chain. Raises OSError, SegmentChangedError; SegmentUnreadableError if no
        block can be read."""
        digest, unreadable, lost = xxhash.xxh3_128(), UnreadableRanges(), set[Range]()
        clock = self._clock
        position, done, began_s = 0, 0, clock.monotonic()
        failing_until = 0  # the end of a chunk that could not be read at once

        def load() -> bytes:
            nonlocal position, done, began_s, failing_until
            if position >= self._present:
                zeros = bytes(min(self.chunk_bytes, self.size - position))
                position += len(zeros)
                return zeros
            most = next_chunk(done, clock.monotonic() - began_s)
            began_s = clock.monotonic()
            try:
                if position >= failing_until:
                    done = self._read(position, most, self._buffers[0])
            except OSError as error:
                if error.errno not in MEDIUM_ERRORS:
                    raise
                failing_until = position + min(most, self.chunk_bytes)
            if position < failing_until:
                done = self._read_around(position, most, unreadable)
            data = self._buffers[0][:done]
            lost.update(known for known in self._lost if _has_zeros(data, position, known))
            digest.update(data)
            position += done
            return data

        def pause() -> None:
            nonlocal began_s
            paused_s = clock.monotonic()
            next_chunk(0, 0.0)
            began_s += clock.monotonic() - paused_s

        chain = check_chain(load, self._base_offset, self.size, pause, present=self._present)
        next_chunk(done, clock.monotonic() - began_s)
        self._require_unchanged()
        is_as_sealed = not self._is_short and self._checksum == digest.digest()
        return Evidence(
            differs=self._is_short or (self._checksum is not None and not is_as_sealed),
            unreadable=tuple(sorted({*(Range(*known) for known in unreadable.ranges), *lost})),
            damages=tuple(chain.damages),
            has_end=chain.has_end,
            chain_end=chain.end,
            size=self.size,
            is_as_sealed=is_as_sealed,
        )

    def close(self) -> None:
        os.close(self._fd)

    def _read(self, position: int, most: int, buffer: mmap.mmap) -> int:
        """Fill the buffer from the next bytes. Returns their number."""
        required = min(most, self.chunk_bytes, self._present - position)
        filled = 0
        while filled < required:
            # O_DIRECT reads whole blocks; at the end of the file fewer bytes come back.
            length = -(-(required - filled) // ALIGNMENT) * ALIGNMENT
            count = os.preadv(self._fd, [memoryview(buffer)[filled : filled + length]], position + filled)
            if not count:
                raise SegmentChangedError(f"{self._name.decode()}: ends at {position + filled}")
            if filled + count >= required:
                break
            if count < ALIGNMENT:  # a read ends before a bad block; the next one fails
                raise OSError(errno.EIO, "cannot be read completely", os.fsdecode(self._name))
            filled += count // ALIGNMENT * ALIGNMENT
        return required

    def _read_around(self, position: int, most: int, unreadable: UnreadableRanges) -> int:
        """The same, some blocks only, with zeros for those that cannot be read."""
        if not unreadable.ranges:
            self._require_any_readable()
        required = min(most, _BLOCKS_AT_ONCE * ALIGNMENT, self._present - position)
        buffer = memoryview(self._buffers[0])
        for at in range(0, required, ALIGNMENT):
            if not self._read_block(position + at, buffer[at : at + ALIGNMENT]):
                buffer[at : at + ALIGNMENT] = bytes(ALIGNMENT)
                unreadable.add(position + at, min(position + at + ALIGNMENT, self._present))
        return required

    def _require_any_readable(self) -> None:
        blocks = self._present // ALIGNMENT
        places = {blocks * number // _PROBES * ALIGNMENT for number in range(_PROBES)}
        block = memoryview(self._buffers[0])[:ALIGNMENT]
        if not any(self._read_block(place, block) for place in sorted(places)):
            raise SegmentUnreadableError(f"{self._name.decode()}: cannot be read at all")

    def _read_block(self, position: int, block: memoryview) -> bool:
        try:
            return os.preadv(self._fd, [block], position) >= min(ALIGNMENT, self._present - position)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
            return False

    def _require_unchanged(self) -> None:
        """Raises SegmentChangedError if the segment, or what is known of it, has changed since it was opened."""
        after = unpack(stat_fd(self._fd))
        fields = (after.ino, after.size, after.mtime_ns, after.ctime_ns, after.nlink)
        before = self._before
        if fields != (before.ino, before.size, before.mtime_ns, before.ctime_ns, before.nlink):
            raise SegmentChangedError(f"{self._name.decode()}: was changed while it was read")


def _has_zeros(data: bytes, position: int, lost: Range) -> bool:
    """Whether these bytes, which begin at a position in the segment, have a block of zeros in a range that a move
    could not read: it was not written to since."""
    begin, end = max(lost.begin, position), min(lost.end, position + len(data))
    blocks = (data[at - position : min(at + ALIGNMENT, end) - position] for at in range(begin, end, ALIGNMENT))
    return any(block.count(0) == len(block) for block in blocks)


_TimedRead = Callable[[int, int, mmap.mmap], tuple[int, float]]
_Request = tuple[Future[tuple[int, float]], int, int, mmap.mmap]


class _Readers:
    """Threads that read ahead. A thread that hangs does not keep the process from ending, as one of a
    ThreadPoolExecutor would."""

    def __init__(self, read: _TimedRead, count: int) -> None:
        self._read = read
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name="scrub", daemon=True) for _ in range(count)]

    def __enter__(self) -> "_Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for reads under way: their buffers and their descriptor are about to go."""
        for _thread in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, position: int, length: int, buffer: mmap.mmap) -> Future[tuple[int, float]]:
        future: Future[tuple[int, float]] = Future()
        self._requests.put((future, position, length, buffer))
        return future

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            future, position, length, buffer = request
            try:
                future.set_result(self._read(position, length, buffer))
            except Exception as error:
                future.set_exception(error)


def is_any_readable(dirfd: int, names: Iterable[bytes]) -> bool:
    """Whether the device can read the first block of one of these files."""
    block = mmap.mmap(-1, ALIGNMENT)
    for name in names:
        try:
            fd = safe_open.open_file(dirfd, name, os.O_RDONLY)
        except OSError:
            continue
        try:
            set_direct(fd)
            os.preadv(fd, [block], 0)
        except OSError:
            continue
        else:
            return True
        finally:
            os.close(fd)
    return False
