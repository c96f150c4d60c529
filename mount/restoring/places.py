"""Places that hold copies of segments: directories, and URIs that pyarrow.fs understands."""

import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.mount.config.model import path_argument
from commitlogfs.mount.linux.mountinfo import local_filesystem
from commitlogfs.store.disks.disk import open_directory
from commitlogfs.store.disks.identity import read_identity
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.errors import StoreError
from commitlogfs.store.segment import BaseOffset, parse_segment_name

_LOG_BELOW: Final = "commitlog"
"""In the root directory of a broker's store."""
_PART_BYTES: Final = 4 << 20
_NOT_A_FILE: Final = "is not a regular file"

OnProgress = Callable[[int], None]
"""Gets the number of bytes that were fetched of a file."""


class Entry(NamedTuple):
    """A file, or something else, that has the name of a segment."""

    size: int
    """In bytes."""
    fault: str = ""
    """Why it cannot be a copy, whatever its content is; empty if it can."""


class UnreadablePlaceError(Exception):
    """A copy of a segment cannot be read; the message says why."""


class Place(Protocol):
    """A directory, or a URI."""

    @property
    def name(self) -> str:
        """As the operator gave it, without keys."""
        ...

    def disk(self) -> tuple[str, DiskNumber] | None:
        """Pool and number of the disk whose directory the place is, as that records it; None for another place."""
        ...

    def segments(self) -> dict[BaseOffset, Entry]:
        """The entries that have names of segments. Opens none of them. Raises RefusedError, UsageError."""
        ...

    def head(self, base_offset: BaseOffset, length: int) -> bytes:
        """The first bytes of a segment, at most `length`. Raises UnreadablePlaceError."""
        ...

    @contextmanager
    def open(self, base_offset: BaseOffset, spool: str | None, on_progress: OnProgress) -> Iterator[int]:
        """A descriptor of a file with the segment's content, for reading. What does not lie on a local filesystem
        is fetched into an unnamed file in the directory `spool` first: the daemon reads only local files. Raises
        UnreadablePlaceError."""
        ...


def find_place(text: str, segment_size: int) -> Place:
    """Raises UsageError, RefusedError."""
    if "://" not in text and not text.startswith("file:"):
        return _Directory(text, Path(path_argument(text)), segment_size)
    keys = _keys(text)
    try:
        scheme, host, path, _, _ = urlsplit(text)
    except ValueError as error:
        raise UsageError(f"--from {_without_keys(text)}: {_first_line(error, keys)}") from error
    if scheme == "file":
        if host not in ("", "localhost"):
            raise UsageError(
                f"--from {_without_keys(text)}: is on another machine; mount that directory here, and name it"
            )
        return _Directory(text, Path(unquote(path)), segment_size)
    shown = _without_keys(text)
    return _Remote(shown, *_resolve(text, shown, keys), segment_size, keys)


def _named_segments(names: Iterable[str], segment_size: int) -> Iterator[tuple[BaseOffset, str]]:
    for name in names:
        base_offset = parse_segment_name(os.fsencode(name), segment_size)
        if base_offset is not None:
            yield base_offset, name


@dataclass(frozen=True, slots=True)
class _Directory:
    name: str
    path: Path
    segment_size: int

    def disk(self) -> tuple[str, DiskNumber] | None:
        try:
            dirfd = open_directory(str(self.path))
        except OSError:
            return None
        try:
            identity = read_identity(dirfd, str(self.path))
        except (OSError, StoreError):
            return None
        finally:
            os.close(dirfd)
        return None if identity is None else (identity.pool_id, identity.number)

    def segments(self) -> dict[BaseOffset, Entry]:
        found = self._list(self.path)
        if not found and (self.path / _LOG_BELOW).is_dir():
            raise UsageError(f"--from {self.name}: holds no segments; the log is probably {self.path / _LOG_BELOW}")
        return found

    def _list(self, directory: Path) -> dict[BaseOffset, Entry]:
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"--from {self.name}: {os.strerror(error.errno or 0)}; give the directory of a log"
            ) from error
        except OSError as error:
            raise RefusedError(
                f"--from {self.name}: {os.strerror(error.errno or 0)}; make it readable, or name another place"
            ) from error
        return {base: _examine(directory / name) for base, name in _named_segments(names, self.segment_size)}

    def head(self, base_offset: BaseOffset, length: int) -> bytes:
        with self._opened(base_offset) as file:
            try:
                return file.read(length)
            except OSError as error:
                raise self._unreadable(base_offset, error) from error

    @contextmanager
    def open(self, base_offset: BaseOffset, spool: str | None, on_progress: OnProgress) -> Iterator[int]:
        with self._opened(base_offset) as file:
            if local_filesystem(file.fileno()) is not None:
                yield file.fileno()
                return
            try:
                fetched = _fetch(file, spool, on_progress)
            except OSError as error:
                raise self._unreadable(base_offset, error) from error
        with fetched:
            yield fetched.fileno()

    def _opened(self, base_offset: BaseOffset) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(self.path / f"{base_offset:020d}", flags), "rb", buffering=0)
        except OSError as error:
            raise self._unreadable(base_offset, error) from error
        fault = _fault_of(os.fstat(file.fileno()).st_mode)
        if fault:  # another file since the place was listed
            file.close()
            raise UnreadablePlaceError(f"{self.path / f'{base_offset:020d}'}: {fault}")
        return file

    def _unreadable(self, base_offset: BaseOffset, error: OSError) -> UnreadablePlaceError:
        return UnreadablePlaceError(f"{self.path / f'{base_offset:020d}'}: {os.strerror(error.errno or 0)}")


@dataclass(frozen=True, slots=True)
class _Remote:
    name: str
    filesystem: Any
    root: str
    segment_size: int
    keys: tuple[str, ...] = field(repr=False)
    """Parts of the URI that no message may show."""

    def disk(self) -> None:
        return None

    def segments(self) -> dict[BaseOffset, Entry]:
        from pyarrow import fs

        try:
            infos = self.filesystem.get_file_info(fs.FileSelector(self.root))
        except FileNotFoundError as error:
            raise UsageError(f"--from {self.name}: {_first_line(error, self.keys)}") from error
        except OSError as error:
            raise RefusedError(f"--from {self.name}: {_first_line(error, self.keys)}") from error
        found = {info.base_name: Entry(info.size or 0, "" if info.is_file else _NOT_A_FILE) for info in infos}
        return {base: found[name] for base, name in _named_segments(found, self.segment_size)}

    def head(self, base_offset: BaseOffset, length: int) -> bytes:
        try:
            with self._opened(base_offset) as file:
                return bytes(file.read(length))
        except OSError as error:
            raise self._unreadable(base_offset, error) from error

    @contextmanager
    def open(self, base_offset: BaseOffset, spool: str | None, on_progress: OnProgress) -> Iterator[int]:
        try:
            with self._opened(base_offset) as file:
                fetched = _fetch(file, spool, on_progress)
        except OSError as error:
            raise self._unreadable(base_offset, error) from error
        with fetched:
            yield fetched.fileno()

    def _opened(self, base_offset: BaseOffset) -> Any:
        return self.filesystem.open_input_stream(f"{self.root}/{base_offset:020d}")

    def _unreadable(self, base_offset: BaseOffset, error: OSError) -> UnreadablePlaceError:
        return UnreadablePlaceError(f"{self.name}/{base_offset:020d}: {_first_line(error, self.keys)}")


def _examine(path: Path) -> Entry:
    try:
        status = os.lstat(path)
    except OSError as error:
        return Entry(0, os.strerror(error.errno or 0))
    return Entry(status.st_size, _fault_of(status.st_mode))


def _fault_of(mode: int) -> str:
    """The reason why a file of this mode is no copy; empty for a regular one. An open of another one may block."""
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISLNK(mode):
        return "is a symbolic link, which is not followed; name the directory of the file itself"
    return "is a directory" if stat.S_ISDIR(mode) else _NOT_A_FILE


def _fetch(source: Any, spool: str | None, on_progress: OnProgress) -> IO[bytes]:
    """An unnamed file in the directory `spool` with the content of a file, which has `read`. Raises OSError."""
    local = tempfile.TemporaryFile(dir=spool)  # noqa: SIM115 - the caller closes it
    try:
        count = 0
        while part := source.read(_PART_BYTES):
            local.write(part)
            count += len(part)
            on_progress(count)
        local.flush()
    except BaseException:
        local.close()
        raise
    return local


def _resolve(uri: str, shown: str, keys: tuple[str, ...]) -> tuple[Any, str]:
    """Filesystem and path of a URI, which messages show as `shown`. Raises UsageError, RefusedError."""
    try:
        from pyarrow import fs
    except ModuleNotFoundError as error:
        raise RefusedError(
            "--from: pyarrow, which reads URIs, is not installed; pip install 'commitlogfs[restore]'"
        ) from error
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise UsageError(f"--from {shown}: {_first_line(error, keys)}") from error
    return filesystem, path.rstrip("/")


# --- keys in URIs ----------------------------------------------------------------------------------------


def _split_user(uri: str) -> tuple[str, str, str]:
    """Scheme, user part and the rest of a URI. The user part may hold a key with any character, although some of
    them must be escaped."""
    scheme, _, rest = uri.partition("://")
    user, _, place = rest.rpartition("@")
    return (scheme, user, place) if ":" in user or "/" not in user else (scheme, "", rest)


def _without_keys(uri: str) -> str:
    """A URI for messages."""
    scheme, _, place = _split_user(uri)
    return f"{scheme}://{re.split('[?#]', place, maxsplit=1)[0]}"


def _keys(uri: str) -> tuple[str, ...]:
    """Texts that no message may show, the longest first."""
    user = _split_user(uri)[1]
    parts = {user, *user.split(":", 1)} - {""}
    return tuple(sorted(parts | {unquote(part) for part in parts}, key=len, reverse=True))


def _first_line(error: Exception, keys: tuple[str, ...] = ()) -> str:
    """The first line of a library's message, without keys."""
    lines = str(error).splitlines() or [type(error).__name__]
    for key in keys:
        lines[0] = re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "***", lines[0])
    return lines[0]
