"""The files of a log, in a mount, in bare disk directories, or behind a URI that pyarrow.fs understands."""

import errno
import os
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from commitlogfs.pipeline.log.errors import DuplicateSegmentError, LocationError, SegmentGoneError
from commitlogfs.pipeline.log.locations import absolute_place, is_uri, local_path, split_places
from commitlogfs.pipeline.log.mount_status import MOUNT_STATUS, AcceptedLosses, NotServed, latest, read_told
from commitlogfs.store.broker_store import COMMITLOG
from commitlogfs.store.gaps import uncovered
from commitlogfs.store.layout import XATTR_IDENTITY
from commitlogfs.store.moves.mark import is_moved_copy
from commitlogfs.store.segment import LARGEST_OFFSET, format_segment_name, looks_like_segment

_ABOVE_LOG = (COMMITLOG, f"store/{COMMITLOG}")
"""Where the log is, below a directory that users easily take for it."""
_MOST_DIRECTORIES = 1000


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment: base offset, size of its file in bytes, absolute local path or URI."""

    base_offset: int
    size: int
    uri: str

    @property
    def name(self) -> str:
        return format_segment_name(self.base_offset).decode()

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


@dataclass(frozen=True, slots=True)
class LogListing:
    """The segments of a log in ascending order, each base offset once."""

    segment_size: int
    segments: tuple[SegmentFile, ...]
    empty_places: tuple[str, ...] = ()
    """Locations without a segment that are neither a mount nor a disk of a pool: their disk may not be mounted."""
    not_served: tuple[NotServed, ...] = ()
    """Disks and segments that degraded mounts among the locations do not serve."""
    accepted: AcceptedLosses | None = None
    """Lost segments whose gaps an operator has accepted."""

    @property
    def begin_offset(self) -> int:
        """Base offset of the first segment; 0 without segments."""
        return self.segments[0].base_offset if self.segments else 0

    @property
    def may_lack_beginning(self) -> bool:
        """Whether a degraded mount may leave out data before the first segment, which does not show as a gap."""
        return any(not self.segments or one.may_precede(self.begin_offset) for one in self.not_served)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The ranges [start, end) missing between the segments, of which some may be truncated."""
        covered = [(one.base_offset, one.end_offset) for one in self.segments]
        return uncovered(covered[0][0], covered[-1][1], covered) if covered else []


class SegmentReader(Protocol):
    """An open segment. A context manager."""

    def read_into(self, buffer: npt.NDArray[np.uint8], position: int) -> int:
        """Fill `buffer` from `position` on; the number of bytes read, fewer than requested only at the end of the
        file."""

    def next_data(self, position: int) -> int:
        """The first position from `position` on that may have been written; `position` itself if that is
        unknown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def read_at(reader: SegmentReader, position: int, length: int) -> npt.NDArray[np.uint8]:
    """`length` bytes from `position` on, fewer at the end of the file."""
    buffer = np.empty(length, np.uint8)
    return buffer[: reader.read_into(buffer, position)]


# --- listing ---------------------------------------------------------------------------------------------


def list_segments(path: str, segment_size: int | None = None) -> LogListing:
    """The log at `path`: a directory, several (bare disks, separated by commas), or a URI.

    Files that are not segments (other names, empty files) are ignored. Without `segment_size`, the size of the
    largest file counts. Raises LocationError, DuplicateSegmentError.
    """
    listing, twins = list_with_twins(path, segment_size)
    if twins:
        one, other = twins[0]
        raise DuplicateSegmentError(
            f"segment {one.name}: is at {one.uri} and at {other.uri}; compare the two with `cmp`, and move one "
            "away (docs/reference/findings.md, duplicate-segment)"
        )
    return listing


def list_with_twins(
    path: str, segment_size: int | None = None
) -> tuple[LogListing, list[tuple[SegmentFile, SegmentFile]]]:
    """As `list_segments`, and the segments that exist twice, as pairs: the listing has the first of each pair. The
    two files of a segment that is moved from disk to disk are no pair: the listing has the copy, which stays.
    Raises LocationError."""
    places = split_places(path)
    if not places:
        raise LocationError("no path: name the commitlog directory, a comma list of disk directories, or a URI")
    found: dict[int, SegmentFile] = {}
    twins: list[tuple[SegmentFile, SegmentFile]] = []
    empty: list[str] = []
    not_served: list[NotServed] = []
    accepted: list[AcceptedLosses] = []
    for place in map(absolute_place, places):
        told = read_told(place)
        not_served += told.not_served
        accepted += [] if told.accepted is None else [told.accepted]
        listed = _list_uri(place) if is_uri(place) else _list_directory(place)
        for segment in listed.segments:
            other = found.setdefault(segment.base_offset, segment)
            if other is segment:
                continue
            if _is_moved_copy(segment, other):
                found[segment.base_offset] = segment
            elif not _is_moved_copy(other, segment):
                twins.append((other, segment))
        if not listed.segments and not (listed.has_unsized or _is_known_log(place)):
            _require_no_log_below(place, listed.directories)
            empty.append(place)
    segments = tuple(found[offset] for offset in sorted(found))
    size = segment_size or max((one.size for one in segments), default=0)
    listing = LogListing(size, segments, tuple(empty), tuple(not_served), latest(accepted))
    return _checked(listing, path), twins


def _is_moved_copy(copy: SegmentFile, source: SegmentFile) -> bool:
    paths = local_path(copy.uri), local_path(source.uri)
    return paths[0] is not None and paths[1] is not None and is_moved_copy(paths[0], paths[1])


def _is_known_log(place: str) -> bool:
    """Whether `place` is a mount of commitlogfs or a disk of a pool, so that a log without messages is possible."""
    path = local_path(place)
    if path is None:
        return False
    try:
        return (path / MOUNT_STATUS).exists() or bool(os.getxattr(path, XATTR_IDENTITY))
    except OSError:
        return False


def _require_no_log_below(place: str, directories: Container[str]) -> None:
    """Raises LocationError if `place`, which contains `directories`, is a store's root or its parent directory."""
    for above in _ABOVE_LOG:
        if above.partition("/")[0] not in directories:
            continue
        base, mark, query = place.partition("?") if is_uri(place) else (place, "", "")
        below = f"{base.rstrip('/')}/{above}{mark}{query}"
        try:
            listed = _list_uri(below) if is_uri(below) else _list_directory(below)
        except LocationError:
            continue
        if above == _ABOVE_LOG[0] or listed.segments or listed.has_unsized:
            raise LocationError(f"{place}: holds no segments; the log is probably {below}")


@dataclass(slots=True)
class _Listed:
    """The content of one location."""

    segments: list[SegmentFile] = field(default_factory=list)
    has_unsized: bool = False
    """Whether a segment is empty: a broker is creating it."""
    directories: set[str] = field(default_factory=set)


def _checked(listing: LogListing, path: str) -> LogListing:
    for segment in listing.segments:
        if segment.size > listing.segment_size or segment.base_offset % listing.segment_size:
            raise LocationError(
                f"{path}: segment {segment.name} has {segment.size} bytes, which does not fit the segment size "
                f"{listing.segment_size}; set segmentSize"
            )
    return listing


def _list_directory(directory: str) -> _Listed:
    listed = _Listed()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not _is_segment_name(entry.name):
                    if len(listed.directories) < _MOST_DIRECTORIES and entry.is_dir():
                        listed.directories.add(entry.name)
                elif entry.is_file():
                    try:
                        size = entry.stat().st_size
                    except FileNotFoundError:
                        continue  # deleted since the directory was read
                    if size:
                        listed.segments.append(SegmentFile(int(entry.name), size, entry.path))
                    else:
                        listed.has_unsized = True
    except NotADirectoryError as error:
        path = Path(directory)
        hint = f"the log is probably {path.parent}" if _is_segment_name(path.name) else "name the log's directory"
        raise LocationError(f"{directory}: Not a directory; {hint}") from error
    except OSError as error:
        raise LocationError(
            f"{directory}: {os.strerror(error.errno or errno.EIO)}; check that the log is mounted there"
        ) from error
    return listed


def _is_segment_name(name: str) -> bool:
    return looks_like_segment(os.fsencode(name)) and int(name) <= LARGEST_OFFSET


def _list_uri(uri: str) -> _Listed:
    from pyarrow import fs

    listed = _Listed()
    filesystem, root = _resolve(uri)
    try:
        infos = filesystem.get_file_info(fs.FileSelector(root))
    except OSError as error:
        raise LocationError(f"{uri}: {str(error).splitlines()[0]}") from error
    query = urlsplit(uri).query
    base = uri.partition("?")[0].rstrip("/")
    for info in infos:
        if info.is_file and _is_segment_name(info.base_name):
            if info.size:
                name = f"{base}/{info.base_name}" + (f"?{query}" if query else "")
                listed.segments.append(SegmentFile(int(info.base_name), info.size, name))
            else:
                listed.has_unsized = True
        elif not info.is_file and len(listed.directories) < _MOST_DIRECTORIES:
            listed.directories.add(info.base_name)
    return listed


# --- reading ---------------------------------------------------------------------------------------------


def open_segment(segment: SegmentFile) -> SegmentReader:
    """Raises SegmentGoneError, LocationError."""
    try:
        path = local_path(segment.uri)
        return _RemoteSegment(segment) if path is None else _LocalSegment(segment, path)
    except FileNotFoundError:
        raise SegmentGoneError(
            f"segment {segment.name}: was deleted after the log was listed ({segment.uri})"
        ) from None
    except OSError as error:
        raise LocationError(f"segment {segment.name} ({segment.uri}): {str(error).splitlines()[0]}") from error


class _LocalSegment:
    """A segment in a local file, read by pread(2). An error of the disk raises an exception; with a mapping it
    would be a SIGBUS for the process."""

    def __init__(self, segment: SegmentFile, path: Path) -> None:
        self._segment = segment
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, buffer: npt.NDArray[np.uint8], position: int) -> int:
        view, done = buffer.data, 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], position + done)
            except OSError as error:
                where = f"segment {self._segment.name}, byte {position + done} ({self._segment.uri})"
                raise LocationError(f"{where}: {os.strerror(error.errno or errno.EIO)}") from error
            if not got:
                break
            done += got
        return done

    def next_data(self, position: int) -> int:
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            # ENXIO also means "after the end": if the file was truncated meanwhile, its reader reports that.
            if error.errno != errno.ENXIO or os.fstat(self._fd).st_size < self._segment.size:
                return position
            return max(position, self._segment.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


class _RemoteSegment:
    """A segment behind a URI, read by ranges: one request for each window."""

    def __init__(self, segment: SegmentFile) -> None:
        filesystem, path = _resolve(segment.uri)
        self._segment = segment
        self._file = filesystem.open_input_file(path)

    def read_into(self, buffer: npt.NDArray[np.uint8], position: int) -> int:
        length = max(0, min(len(buffer), self._segment.size - position))
        if length:
            try:
                data = np.frombuffer(self._file.read_at(length, position), np.uint8)
            except OSError as error:
                where = f"segment {self._segment.name}, byte {position} ({self._segment.uri})"
                raise LocationError(f"{where}: {str(error).splitlines()[0]}") from error
            length = len(data)
            buffer[:length] = data
        return length

    def next_data(self, position: int) -> int:
        return position

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _resolve(uri: str) -> tuple[Any, str]:
    """pyarrow's filesystem for `uri`, and the path in it. Raises LocationError."""
    from pyarrow import ArrowInvalid, fs

    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (ArrowInvalid, OSError, ImportError) as error:
        raise LocationError(f"{uri}: {str(error).splitlines()[0]}") from error
    return filesystem, path
