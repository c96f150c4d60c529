"""The output directory of an export. Manifests record the finished ranges; a kill at any moment does no harm.

    topic=T/date=D/START-END-NNN.parquet    the rows of one range of the log: START and END are log offsets
    _commitlogfs/export.json                the settings of all its exports
    _commitlogfs/ranges/START-END.json      one finished range: its files and their rows
    _commitlogfs/building/                  unfinished files

Readers of Parquet (Spark, pyarrow) ignore names that begin with `_`. A range is committed in three steps: its files
are complete and synced in `building`; a manifest `START-END.committing` lists them; the files are renamed into
place, and finally the manifest is. The next process that opens the directory completes an interrupted commit, so a
range is never there twice; until then some of its files may be missing. All other files in `building` are deleted.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from pyarrow import ArrowInvalid, fs

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.log.errors import (
    LocationError,
    OutputError,
    PipelineError,
    os_reason,
    output_errors,
)
from commitlogfs.pipeline.log.identity import Fingerprint
from commitlogfs.pipeline.log.scanner import Damage

FORMAT: Final = 2
"""The setting `format` of an output. Since 2, each finished range says of which log it is."""
OWN: Final = "_commitlogfs"
_COLUMNS: Final = "columns"
"""The setting that may change: later runs may add columns."""
_TABLE: Final = "whole_files"
"""The setting of an output whose files an Iceberg table has."""
_FORMAT: Final = "format"
_COMMITTING: Final = ".committing"
_UNFINISHED: Final = ".tmp"
_LONGEST_NAME: Final = 255
_DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = frozenset({*map(chr, range(32)), *"\"#%'*/:=?\\\x7f{[]^"})
"""Characters that Spark escapes in the name of a partition's directory (ExternalCatalogUtils)."""


class ExportRefusedError(PipelineError):
    """The export was refused; nothing was written."""

    exit_code = ExitCode.REFUSED


class ExportBusyError(ExportRefusedError):
    """Another export writes into the same output."""


class ExportInterruptedError(PipelineError):
    """The log changed during the export. Ranges finished before stay, and the same call continues after them."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class FinishedFile:
    path: str
    """Path below the output directory."""
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class FinishedRange:
    """Log offsets [start, end), exported."""

    start: int
    end: int
    rows: int
    files: tuple[FinishedFile, ...]
    damages: tuple[Damage, ...]
    log: tuple[Fingerprint, ...]
    """The first and the last message of the range, which identify the log that it was exported from; and where it
    ends with a segment, the message after it."""

    @property
    def own(self) -> tuple[Fingerprint, ...]:
        """Fingerprints of messages of this range."""
        return tuple(one for one in self.log if one.offset < self.end)

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}"

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            start=document["start"],
            end=document["end"],
            rows=document["rows"],
            files=tuple(FinishedFile(**file) for file in document["files"]),
            damages=tuple(Damage(**damage) for damage in document["damages"]),
            log=tuple(map(Fingerprint.of_json, document["log"])),
        )


def partition_values(path: str) -> dict[str, str | None]:
    """The values in the names of the directories above a file, by column."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _DEFAULT_PARTITION else unquote(value) for name, _, value in pairs}


def partition_directory(partition: Iterable[tuple[str, str | None]]) -> str:
    """`topic=T/date=D`, as Spark names it. Raises ExportRefusedError for a name that no filesystem accepts."""
    names = [f"{column}={_escape(value)}" for column, value in partition]
    for name in names:
        if len(name.encode()) > _LONGEST_NAME:
            raise ExportRefusedError(
                f"{name[:40]}...: is too long for the name of a directory; export this topic separately, or "
                "partition by date only"
            )
    return "/".join(names)


def _escape(value: str | None) -> str:
    if not value:
        return _DEFAULT_PARTITION
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


class ExportDirectory:
    """A context manager. If the output is a local directory, it holds a lock while it is open.

    `place`: a directory, or a URI that pyarrow.fs understands. All paths are relative to it, with `/`.
    """

    def __init__(self, place: str) -> None:
        is_uri = "://" in place or place.startswith("file:")
        self.place = place if is_uri else str(Path(place).absolute())
        """Absolute, so that it is the same for every process on this machine."""
        try:
            self._fs, root = fs.FileSystem.from_uri(place) if is_uri else (fs.LocalFileSystem(), self.place)
        except (ArrowInvalid, OSError) as error:
            raise LocationError(f"{place}: {str(error).splitlines()[0]}") from error
        self._root: str = root.rstrip("/")
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)
        self._lock: int | None = None
        self._is_cut_short = False
        """Whether a commit was interrupted; the next `open` completes it."""
        self._known: dict[tuple[str, int | None], FinishedRange] = {}
        """Manifests that were read: name and time -> content. An export that follows a log makes many of them."""

    # --- opening ----------------------------------------------------------------------------------------

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check whether an export with these settings may begin or continue here. Changes nothing.

        Raises ExportRefusedError, LocationError.
        """
        info = self._info("")
        if info.type == fs.FileType.File:
            raise ExportRefusedError(f"{self.place}: is a file; name a directory")
        if info.type == fs.FileType.NotFound:
            return
        before = self._read_json(f"{OWN}/export.json")
        if before is None:
            self._require_empty()
            return
        if before.get(_FORMAT) != settings.get(_FORMAT):
            raise ExportRefusedError(
                f"{self.place}: was exported by another version of commitlogfs, which did not record the log's "
                "identity or recorded it in another way; export into another output"
            )
        for key in sorted({*before, *settings}):
            if before.get(key) != settings.get(key) and not (key == _COLUMNS and _extends(settings, before)):
                if key == _TABLE:
                    how = "without" if settings.get(key) else "with"
                    raise ExportRefusedError(
                        f"{self.place}: was exported {how} --iceberg; do so again, or name another output"
                    )
                raise ExportRefusedError(
                    f"{self.place}: was exported with {key} = {_shown(before.get(key))}, not "
                    f"{_shown(settings.get(key))}; use the same value, or name another output"
                )

    def open(self, settings: Mapping[str, Any]) -> Self:
        """Create or open the directory, and complete an interrupted commit. Raises the errors of `check`."""
        self.check(settings)
        try:
            self._fs.create_dir(self._path(f"{OWN}/ranges"), recursive=True)
            self._take_lock()
            self._fs.create_dir(self._path(f"{OWN}/building"))
            if self._read_json(f"{OWN}/export.json") is None:
                self._write_json(f"{OWN}/export.json", settings)
            self.check(settings)
            if self._read_json(f"{OWN}/export.json") != settings:
                self._write_json(f"{OWN}/export.json", settings)
            self._recover()
        except OSError as error:
            self.close()
            raise ExportRefusedError(f"{self.place}: cannot be written ({os_reason(error)})") from error
        except BaseException:
            self.close()
            raise
        return self

    def _require_empty(self) -> None:
        names = [info.base_name for info in self._list("")]
        # A first run may have been killed before it wrote anything else.
        if any(name != OWN for name in names):
            raise ExportRefusedError(
                f"{self.place}: holds other files ({sorted(names)[0]}); name an empty directory, or the "
                "output of an earlier export"
            )

    def _take_lock(self) -> None:
        if not self._is_local:
            return
        lock = os.open(self._path(f"{OWN}/lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ExportBusyError(
                f"{self.place}: another export is writing into it; wait until it has ended"
            ) from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading ----------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any] | None:
        """The settings of the exports into this directory; None if there were none. Raises LocationError."""
        try:
            return self._read_json(f"{OWN}/export.json")
        except OSError as error:
            raise LocationError(f"{self.place}: {os_reason(error)}") from error

    def open_file(self, path: str) -> Any:
        """A finished file, open for reading at any place. Raises OSError."""
        return self._fs.open_input_file(self._path(path))

    # --- finished ranges --------------------------------------------------------------------------------

    def is_delta_table(self) -> bool:
        """Whether a Delta table refers to the files."""
        return bool(self._info("_delta_log").type == fs.FileType.Directory)

    def finished(self) -> list[FinishedRange]:
        """The finished ranges in the order of the log."""
        if self._info(f"{OWN}/ranges").type != fs.FileType.Directory:
            return []
        found = {}
        for info in self._list(f"{OWN}/ranges"):
            if not info.base_name.endswith(".json"):
                continue
            manifest = info.base_name, info.mtime_ns
            document = None if manifest in self._known else self._read_json(f"{OWN}/ranges/{info.base_name}")
            if document is not None:
                found[manifest] = FinishedRange.of_json(document)
            elif manifest in self._known:
                found[manifest] = self._known[manifest]
        self._known = found
        return sorted(found.values(), key=lambda one: one.start)

    def require_files(self, finished: FinishedRange) -> None:
        """Raises ExportRefusedError if a file of this range is not there any more."""
        for file in finished.files:
            if self._info(file.path).type != fs.FileType.File:
                raise ExportRefusedError(
                    f"{self.place}: {file.path} was deleted; export the log offsets {finished.start} to "
                    f"{finished.end} into another output"
                )

    # --- writing ----------------------------------------------------------------------------------------

    def new_file(self, name: str) -> tuple[str, Any]:
        """Path and open stream of a new unfinished file; any process may create one."""
        path = f"{OWN}/building/{name}-{os.urandom(6).hex()}"
        return path, self._fs.open_output_stream(self._path(path))

    def finish_file(self, path: str) -> int:
        """Sync the file if it is local; its size."""
        if self._is_local:
            _sync(self._path(path))
        info = self._info(path)
        if info.type != fs.FileType.File:
            raise OutputError(f"{self.place}: {path} is not there although it was written; check the storage")
        return int(info.size)

    def commit(self, new: FinishedRange, made: Mapping[str, str], before: FinishedRange | None = None) -> None:
        """Move the files of `new` from `made` (final path -> path in building) to their final paths. `before`: an
        earlier export of the same range, whose other files are deleted. Raises OutputError; the next `open`
        completes an interrupted commit."""
        new_paths = {file.path for file in new.files}
        gone = {file.path for file in before.files} - new_paths if before is not None else set()
        document = asdict(new) | {"made": dict(made), "remove": sorted(gone)}
        with output_errors(self.place):
            self._is_cut_short = True
            self._write_json(f"{OWN}/ranges/{new.name}{_COMMITTING}", document)
            self._carry_out(document)
            self._is_cut_short = False

    def remove(self, finished: FinishedRange) -> None:
        """Delete the files of a range, then its manifest: after a kill, the manifest names what may be left. Raises
        OutputError."""
        with output_errors(self.place):
            for file in finished.files:
                if self._info(file.path).type == fs.FileType.File:
                    self._fs.delete_file(self._path(file.path))
            self._sync_directories({file.path.rpartition("/")[0] for file in finished.files})
            self._fs.delete_file(self._path(f"{OWN}/ranges/{finished.name}.json"))
            self._sync_directories([f"{OWN}/ranges"])

    def clear_building(self) -> None:
        """Delete unfinished files, unless a commit is interrupted: its files may be among them."""
        for info in self._list(f"{OWN}/building") if not self._is_cut_short else ():
            self._fs.delete_file(info.path)

    def _recover(self) -> None:
        there = self._list(f"{OWN}/ranges")
        # First, because completing a commit writes and renames such a file itself.
        for info in there:
            if info.base_name.endswith(_UNFINISHED):
                self._fs.delete_file(info.path)
        for info in there:
            if info.base_name.endswith(_COMMITTING):
                document = self._read_json(f"{OWN}/ranges/{info.base_name}")
                if document is not None:
                    self._carry_out(document)
        self.clear_building()

    def _carry_out(self, document: Mapping[str, Any]) -> None:
        """Do all steps of a commit; each of them may have been done before."""
        directories = set()
        for final, made in document["made"].items():
            directory = final.rpartition("/")[0]
            if directory not in directories:
                self._fs.create_dir(self._path(directory), recursive=True)
                directories.add(directory)
            if self._info(made).type == fs.FileType.File:
                self._fs.move(self._path(made), self._path(final))
            elif self._info(final).type != fs.FileType.File:
                raise ExportRefusedError(
                    f"{self.place}: {final} was removed before its range was finished; export into another output"
                )
        for path in document["remove"]:
            if self._info(path).type == fs.FileType.File:
                self._fs.delete_file(self._path(path))
        self._sync_directories(directories)
        finished = {field.name: document[field.name] for field in fields(FinishedRange)}
        name = FinishedRange.of_json(finished).name
        self._write_json(f"{OWN}/ranges/{name}.json", finished)
        self._fs.delete_file(self._path(f"{OWN}/ranges/{name}{_COMMITTING}"))

    # --- files ------------------------------------------------------------------------------------------

    def _path(self, below: str) -> str:
        return f"{self._root}/{below}" if below else self._root

    def _info(self, below: str) -> fs.FileInfo:
        try:
            return self._fs.get_file_info(self._path(below))
        except OSError as error:
            raise LocationError(f"{self.place}: {os_reason(error)}") from error

    def _list(self, below: str) -> list[fs.FileInfo]:
        try:
            return list(self._fs.get_file_info(fs.FileSelector(self._path(below), allow_not_found=True)))
        except OSError as error:
            raise LocationError(f"{self.place}: {os_reason(error)}") from error

    def _read_json(self, below: str) -> dict[str, Any] | None:
        """Content of the file; None if it does not exist."""
        if self._info(below).type != fs.FileType.File:
            return None
        with self._fs.open_input_stream(self._path(below)) as stream:
            text = stream.readall().decode()
        try:
            document: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ExportRefusedError(
                f"{self.place}/{below}: is damaged ({error}); export into another output"
            ) from error
        return document

    def _write_json(self, below: str, document: Mapping[str, Any]) -> None:
        path = self._path(below)
        with self._fs.open_output_stream(f"{path}{_UNFINISHED}") as stream:
            stream.write(json.dumps(document, indent=1).encode())
        if self._is_local:
            _sync(f"{path}{_UNFINISHED}")
        self._fs.move(f"{path}{_UNFINISHED}", path)
        self._sync_directories([below.rpartition("/")[0]])

    def _sync_directories(self, directories: Iterable[str]) -> None:
        """Sync these directories and those above them up to the output: they may be new."""
        if not self._is_local:
            return
        paths = set()
        for directory in directories:
            parts = directory.split("/")
            paths |= {"/".join(parts[:depth]) for depth in range(len(parts) + 1)}
        for directory in sorted(paths):
            _sync(self._path(directory))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _extends(settings: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return {*settings[_COLUMNS]} >= {*before[_COLUMNS]}


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)
