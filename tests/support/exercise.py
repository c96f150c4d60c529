"""The operations of the exerciser, each checked against the oracle."""

import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from support.openers import DIRECT_ALIGNMENT, Opener
from support.oracle import DifferenceError, File, Open, Oracle
from support.pools import MIB, segment_name

SIZE = MIB
PAGE = 4096
FEWEST_NAMES, MOST_NAMES = 2, 4
MOST_FILES = 7
"""With those that are removed but still open."""
MOST_OPENS = 5
"""State of one file."""
LONGEST_BITS = 16
HOT_PAGES = 12
"""Half of all operations meet on this many pages of a file."""

WAYS = {
    "read-write": os.O_RDWR,
    "read-only": os.O_RDONLY,
    "write-only": os.O_WRONLY,
    "appending": os.O_RDWR | os.O_APPEND,
    "direct": os.O_RDWR | os.O_DIRECT,
    "synchronous": os.O_RDWR | os.O_DSYNC,
}
WAY_WEIGHTS = (8, 3, 4, 2, 2, 1)


class Exercise:
    """Some segments of a mount, their opens by several openers, and the operations on them, one step at a time."""

    def __init__(
        self, mountpoint: Path, disks: Sequence[Path], openers: dict[str, Opener], seed: int, plain: bool
    ) -> None:
        self._mountpoint = mountpoint
        self._disks = disks
        self._openers = openers
        self._plain = plain
        self._random = random.Random(seed)  # noqa: S311
        self.oracle = Oracle(seed)
        self._files: list[File] = []
        self._hot = [self._random.randrange(SIZE // PAGE) for _ in range(HOT_PAGES - 2)] + [0, SIZE // PAGE - 1]
        self._made = self._opened = 0
        self._next_index = 0
        self._kinds, weights = zip(*self._weights(), strict=True)
        self._cumulative = list(itertools.accumulate(weights))

    def _weights(self) -> list[tuple[Callable[[], None], float]]:
        """Cheap ones a hundred times as often as what a disk has to sync."""
        return [
            (self.read, 200),
            (self.write, 180),
            (self.load, 200),
            (self.store, 200),
            (self.msync, 15),
            (self.fsync, 2),
            (self.fdatasync, 2),
            (self.send, 15),
            (self.copy, 15),
            (self.drop, 20),
            (self.unfault, 10),
            (self.look_at_size, 15),
            (self.truncate_to_same_size, 3),
            (self.truncate_otherwise, 3),
            (self.allocate, 0.3),
            (self.seek, 5),
            (self.read_past_the_end, 10),
            (self.write_past_the_end, 10),
            (self.append, 5),
            (self.open, 20),
            (self.close, 15),
            (self.map, 30),
            (self.unmap, 10),
            (self.list, 3),
            (self.make, 1.5),
            (self.remove_oldest, 1),
            (self.make_oldest_again, 0.5),
            (self.read_whole, 3),
            (self.look_at_disk, 0.5),
        ]

    def run_one(self) -> None:
        self.oracle.step += 1
        if not self._files:
            return self.make()
        (kind,) = self._random.choices(self._kinds, cum_weights=self._cumulative)
        kind()

    def finish(self) -> None:
        """Everything once more, in the mount and on the bare disks; nothing is open afterwards."""
        for file in list(self._files):
            if not any(opened.reads and not opened.direct for opened in file.opens):
                if not file.linked:
                    continue
                self._open(file, "read-write", os.O_RDWR)
            reader = next(opened for opened in file.opens if opened.reads and not opened.direct)
            self._check_whole(reader)
        for file in self._files:
            self._check_disk(file)
        for file in list(self._files):
            for opened in list(file.opens):
                self._close(opened)

    # --- what is picked ------------------------------------------------------------------------------

    def _pick(self, wanted: Callable[[Open], bool]) -> Open | None:
        found = [opened for file in self._files for opened in file.opens if wanted(opened)]
        return self._random.choice(found) if found else None

    def _span(self, opened: Open, within: range = range(SIZE)) -> tuple[int, int]:
        """(position, length), at least one byte; whole blocks for a direct opener."""
        pick = self._random.randrange
        length = pick(1, (2 << pick(LONGEST_BITS)) + 1)
        kind = pick(8)
        if kind < 4:  # around the edges of few pages, so that operations meet
            position = self._hot[pick(HOT_PAGES)] * PAGE + pick(-64, 65) * pick(2)
        elif kind < 6:
            position = pick(SIZE)
        elif kind < 7:
            position = pick(SIZE // PAGE) * PAGE
        else:  # to the very end
            position = SIZE - length
        position = min(max(position, within.start), within.stop - 1)
        length = min(length, within.stop - position)
        if opened.direct:
            position -= position % DIRECT_ALIGNMENT
            length = min(-(-length // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT, SIZE - position)
        return position, length

    # --- plain I/O -----------------------------------------------------------------------------------

    def read(self) -> None:
        opened = self._pick(lambda opened: opened.reads)
        if opened is None:
            return self.open()
        position, length = self._span(opened)
        self.oracle.note("read", opened, position, length)
        self.oracle.check(
            opened.file, opened.opener.ask("pread", opened.number, length, position), position, length
        )

    def write(self) -> None:
        opened = self._pick(lambda opened: opened.writes and not opened.appends)
        if opened is None:
            return self.open()
        position, length = self._span(opened)
        data = self.oracle.data(length)
        self.oracle.note("write", opened, position, length, wrote=True)
        self.oracle.expect("what was written", opened.opener.ask("pwrite", opened.number, data, position), length)
        opened.file.content[position : position + length] = data

    def send(self) -> None:
        opened = self._pick(self._can_splice)
        if opened is not None:
            position, length = self._span(opened)
            self.oracle.note("sendfile", opened, position, length)
            found = opened.opener.ask("send", opened.number, length, position)
            self.oracle.check(opened.file, found, position, length)

    def _can_splice(self, opened: Open) -> bool:
        """With passthrough, splice(2) and its relatives read past it from a descriptor that also appends, by way of
        a cache of their own: docs/reference/errors.md."""
        return opened.reads and not opened.direct and (self._plain or not opened.appends)

    def copy(self) -> None:
        """copy_file_range from any file to any other."""
        source = self._pick(self._can_splice)
        if source is None:
            return
        target = self._pick(
            lambda opened: (
                opened.writes
                and not opened.appends
                and not opened.direct
                and opened.opener is source.opener
                and opened.file is not source.file
            )
        )
        if target is None:
            return
        from_position, length = self._span(source)
        to_position, room = self._span(target)
        length = min(length, room)
        self.oracle.note(f"copy to {target} at {to_position}:", source, from_position, length)
        copied = source.opener.ask("copy", source.number, target.number, length, from_position, to_position)
        if not 0 < copied <= length:
            raise DifferenceError(f"{copied} of {length} bytes copied")
        data = source.file.content[from_position : from_position + copied]
        target.file.content[to_position : to_position + copied] = data

    def read_past_the_end(self) -> None:
        opened = self._pick(lambda opened: opened.reads and not opened.direct)
        if opened is not None:
            position = SIZE - self._random.randrange(5000) * self._random.randrange(2)
            self.oracle.note("read past the end", opened, position, 8192)
            found = opened.opener.ask("pread", opened.number, 8192, position)
            self.oracle.check(opened.file, found, position, SIZE - position)

    def write_past_the_end(self) -> None:
        """Refused or cut short. With passthrough nobody is asked: then the size is right at the next look."""
        opened = self._pick(lambda opened: opened.writes and not opened.appends and not opened.direct)
        if opened is None:
            return
        length = self._random.randrange(1, 20_000)
        position = SIZE + self._random.randrange(-length, 10_000)
        inside = max(0, SIZE - position)
        data = self.oracle.data(length)
        self.oracle.note("write past the end", opened, position, length, wrote=True)
        try:
            written = opened.opener.ask("pwrite", opened.number, data, position)
        except OSError as error:
            self._expect_errno(error, errno.EFBIG)
            written = 0
        if opened.reads and not self._plain:
            self.oracle.expect("what was written", written, length)
            written = inside
        elif written > inside:
            raise DifferenceError(f"{written} bytes written, {inside} fit")
        opened.file.content[position : position + written] = data[:written]
        self.oracle.expect("the size", opened.opener.ask("size", opened.number), SIZE)

    def append(self) -> None:
        opened = self._pick(lambda opened: opened.appends)
        if opened is not None:
            self.oracle.note("append", opened)
            self._refused(errno.EFBIG, opened, "pwrite", b"appended", 0)

    # --- mapped I/O ----------------------------------------------------------------------------------

    def load(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is not None)
        if opened is None or opened.mapped is None:
            return self.map()
        position, length = self._span_mapped(opened, opened.mapped)
        self.oracle.note("load", opened, position, length)
        self.oracle.check(opened.file, opened.opener.ask("load", opened.number, length, position), position, length)

    def store(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is not None and opened.writes)
        if opened is None or opened.mapped is None:
            return self.map()
        position, length = self._span_mapped(opened, opened.mapped)
        data = self.oracle.data(length)
        self.oracle.note("store", opened, position, length, wrote=True)
        opened.opener.ask("store", opened.number, data, position)
        opened.file.content[position : position + length] = data

    def msync(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is not None and opened.writes)
        if opened is not None and opened.mapped is not None:
            position, length = self._span_mapped(opened, opened.mapped)
            self.oracle.note("msync", opened, position, length)
            opened.opener.ask("msync", opened.number, length, position)

    def unfault(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is not None)
        if opened is not None:
            self.oracle.note("madvise DONTNEED", opened)
            opened.opener.ask("unfault", opened.number)

    def map(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is None and opened.reads)
        if opened is None:
            return self.open()
        pages = SIZE // PAGE
        first, last = 0, pages
        if self._random.randrange(3) == 0:
            first = self._random.randrange(pages)
            last = self._random.randrange(first, pages) + 1
        mapped = range(first * PAGE, last * PAGE)
        self.oracle.note("map", opened, mapped.start, len(mapped))
        opened.opener.ask("map", opened.number, mapped.start, len(mapped), opened.writes)
        opened.mapped = mapped

    def unmap(self) -> None:
        opened = self._pick(lambda opened: opened.mapped is not None)
        if opened is not None:
            self.oracle.note("unmap", opened)
            opened.opener.ask("unmap", opened.number)
            opened.mapped = None

    def _span_mapped(self, opened: Open, mapped: range) -> tuple[int, int]:
        position, length = self._span(opened, mapped)
        return position, min(length, mapped.stop - position)

    # --- the disks and the cache ---------------------------------------------------------------------

    def fsync(self) -> None:
        self._sync("fsync")

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def _sync(self, kind: str) -> None:
        opened = self._pick(lambda opened: True)
        if opened is not None:
            self.oracle.note(kind, opened)
            opened.opener.ask(kind, opened.number)

    def drop(self) -> None:
        opened = self._pick(lambda opened: True)
        if opened is not None:
            position, length = self._span(opened)
            self.oracle.note("fadvise DONTNEED", opened, position, length)
            opened.opener.ask("drop", opened.number, position, length)

    def look_at_disk(self) -> None:
        opened = self._pick(lambda opened: opened.file.linked)
        if opened is not None:
            self._check_disk(opened.file)

    def _check_disk(self, file: File) -> None:
        """After an fsync by any opener, the disk's own file has every byte, those of mappings too."""
        if not file.linked or not file.opens:
            return
        opened = self._random.choice(file.opens)
        self.oracle.note("fsync, then compare on the disk", opened)
        opened.opener.ask("fsync", opened.number)
        name = os.path.basename(file.path)
        (bare,) = [disk / name for disk in self._disks if (disk / name).exists()]
        self.oracle.check(file, bare.read_bytes(), 0, SIZE)

    def read_whole(self) -> None:
        opened = self._pick(lambda opened: opened.reads and not opened.direct)
        if opened is not None:
            self._check_whole(opened)

    def _check_whole(self, opened: Open) -> None:
        self.oracle.note("read whole", opened)
        self.oracle.check(opened.file, opened.opener.ask("pread", opened.number, SIZE, 0), 0, SIZE)

    # --- size ----------------------------------------------------------------------------------------

    def look_at_size(self) -> None:
        opened = self._pick(lambda opened: True)
        if opened is not None:
            self.oracle.note("fstat", opened)
            self.oracle.expect("the size", opened.opener.ask("size", opened.number), SIZE)
            if opened.file.linked:
                self.oracle.expect("the size by name", os.stat(opened.file.path).st_size, SIZE)

    def truncate_to_same_size(self) -> None:
        opened = self._pick(lambda opened: opened.writes)
        if opened is not None:
            self.oracle.note("truncate to the same size", opened)
            opened.opener.ask("truncate", opened.number, SIZE)

    def truncate_otherwise(self) -> None:
        opened = self._pick(lambda opened: opened.writes)
        if opened is not None:
            size = self._random.randrange(2 * SIZE)
            self.oracle.note(f"truncate to {size}", opened)
            if size != SIZE:
                self._refused(errno.EFBIG if size > SIZE else errno.EINVAL, opened, "truncate", size)

    def allocate(self) -> None:
        """glibc's own, as fallocate(2) is not supported: it writes a zero wherever it reads one."""
        opened = self._pick(lambda opened: opened.reads and opened.writes and not (opened.appends or opened.direct))
        if opened is not None:
            self.oracle.note("posix_fallocate", opened)
            opened.opener.ask("allocate", opened.number, SIZE)

    def seek(self) -> None:
        opened = self._pick(lambda opened: True)
        if opened is not None:
            position = self._random.randrange(SIZE)
            self.oracle.note(f"lseek from {position}", opened)
            self.oracle.expect("data", opened.opener.ask("seek", opened.number, position, os.SEEK_DATA), position)
            self.oracle.expect("hole", opened.opener.ask("seek", opened.number, position, os.SEEK_HOLE), SIZE)
            self._refused(errno.ENXIO, opened, "seek", SIZE, os.SEEK_DATA)

    # --- opening, making, removing -------------------------------------------------------------------

    def open(self) -> None:
        candidates = [file for file in self._files if file.linked and len(file.opens) < MOST_OPENS]
        if not candidates:
            return self.close()
        (way,) = self._random.choices(list(WAYS), WAY_WEIGHTS)
        self._open(self._random.choice(candidates), way, WAYS[way])

    def _open(self, file: File, way: str, flags: int) -> Open:
        where = self._random.choice(list(self._openers))
        self._opened += 1
        access = flags & os.O_ACCMODE
        opened = Open(
            self._opened,
            self._openers[where],
            f"{where} process, {way}",
            file,
            reads=access != os.O_WRONLY,
            writes=access != os.O_RDONLY,
            appends=bool(flags & os.O_APPEND),
            direct=bool(flags & os.O_DIRECT),
        )
        self.oracle.note("open:", opened)
        opened.opener.ask("open", opened.number, file.path, flags)
        file.opens.append(opened)
        return opened

    def close(self) -> None:
        opened = self._pick(lambda opened: True)
        if opened is not None:
            self._close(opened)

    def _close(self, opened: Open) -> None:
        self.oracle.note("close", opened)
        opened.opener.ask("close", opened.number)
        opened.file.opens.remove(opened)
        if not opened.file.linked and not opened.file.opens:
            self._files.remove(opened.file)

    def list(self) -> None:
        names = sorted(os.path.basename(file.path) for file in self._files if file.linked)
        self.oracle.expect("the listing", sorted(os.listdir(self._mountpoint)), names)

    def make(self) -> None:
        linked = [file for file in self._files if file.linked]
        if len(linked) < MOST_NAMES and len(self._files) < MOST_FILES:
            self._make(self._next_index)
            self._next_index += 1

    def remove_oldest(self) -> None:
        linked = [file for file in self._files if file.linked]
        if len(linked) > FEWEST_NAMES:
            self._remove(linked[0])

    def make_oldest_again(self) -> None:
        """A file of the same name is another file; openers of the first one keep it."""
        linked = [file for file in self._files if file.linked]
        if linked and len(self._files) < MOST_FILES:
            self._remove(linked[0])
            self._make(linked[0].index)

    def _remove(self, file: File) -> None:
        self.oracle.note("unlink", file)
        os.unlink(file.path)
        file.linked = False
        if not file.opens:
            self._files.remove(file)

    def _make(self, index: int) -> None:
        """As a broker does, by one ftruncate; by posix_fallocate; or as a copy, by writes one after the other."""
        self._made += 1
        file = File(self._made, index, str(self._mountpoint / segment_name(index, SIZE)), bytearray())
        way = self._random.choice(["truncate", "truncate", "allocate", "copy", "copy"])
        access = os.O_WRONLY if way == "copy" and self._random.randrange(2) else os.O_RDWR
        opened = self._open(file, f"made by {way}", access | os.O_CREAT | os.O_EXCL)
        self._files.append(file)
        self._files.sort(key=lambda file: file.index)
        if way == "copy":
            while len(file.content) < SIZE:
                position = len(file.content)
                data = self.oracle.data(min(self._random.randrange(1, SIZE // 4), SIZE - position))
                self.oracle.note("growing write", opened, position, len(data), wrote=True)
                self.oracle.expect("written", opened.opener.ask("pwrite", opened.number, data, position), len(data))
                file.content.extend(data)
                self.oracle.expect("the size", opened.opener.ask("size", opened.number), len(file.content))
        else:
            self.oracle.note(f"grow by {way}", opened)
            opened.opener.ask(way, opened.number, SIZE)
            file.content.extend(bytes(SIZE))
        self.oracle.expect("the size", opened.opener.ask("size", opened.number), SIZE)

    # --- errors --------------------------------------------------------------------------------------

    def _refused(self, code: int, opened: Open, what: str, *arguments: object) -> None:
        try:
            value = opened.opener.ask(what, opened.number, *arguments)
        except OSError as error:
            self._expect_errno(error, code)
        else:
            raise DifferenceError(f"{what}: {value!r} instead of {errno.errorcode[code]}")

    @staticmethod
    def _expect_errno(error: OSError, code: int) -> None:
        if error.errno != code:
            raise DifferenceError(f"{error} instead of {errno.errorcode[code]}") from error
