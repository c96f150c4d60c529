"""Whole logs written by hand: segments of a given size, blank records between them, the last one unfinished."""

from collections.abc import Callable, Iterable
from pathlib import Path

from support.records import make_blank, make_record

from commitlogfs.store.segment import format_segment_name

Maker = Callable[[int], bytes]
"""log offset -> a whole record that lies there"""

END_BLANK = 8


class WrittenLog:
    """Appends as a broker does; `offsets` are those of its records."""

    def __init__(self, directory: Path, segment_size: int, *, first: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.segment_size = directory, segment_size
        self.end = first
        self.offsets: list[int] = []
        self._new_segment()

    def append(self, make: Maker) -> int:
        record = make(self.end)
        left = self.segment_size - self.end % self.segment_size
        if len(record) + END_BLANK > left:
            self.write_at(self.end, make_blank(left)[:left])
            self.end += left
            self._new_segment()
            record = make(self.end)
        self.write_at(self.end, record)
        self.offsets.append(self.end)
        self.end += len(record)
        return self.offsets[-1]

    def write_at(self, offset: int, data: bytes) -> None:
        with self.segment_at(offset).open("r+b") as file:
            file.seek(offset % self.segment_size)
            file.write(data)

    def segment_at(self, offset: int) -> Path:
        return self.directory / format_segment_name(offset - offset % self.segment_size).decode()

    def _new_segment(self) -> None:
        with self.segment_at(self.end).open("xb") as file:
            file.truncate(self.segment_size)


def write_log(directory: Path, segment_size: int, makers: Iterable[Maker], *, first: int = 0) -> WrittenLog:
    log = WrittenLog(directory, segment_size, first=first)
    for make in makers:
        log.append(make)
    return log


def sized(body_bytes: int, **fields: object) -> Maker:
    """A record with a body of so many bytes."""
    return lambda offset: make_record(offset, body=b"x" * body_bytes, **fields)  # type: ignore[arg-type]
