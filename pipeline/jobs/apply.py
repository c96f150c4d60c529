"""Installs rebuilt consume queues and index in place of a store's own.

    lock      take the store's `lock`, which a broker holds as long as it runs
    check     the log is the one that was read, and its end has not changed; all directories are on one filesystem,
              which can exchange names; all data is on the disk
    journal   STORE/rebuild-apply.json: the directories to exchange, identified by their inodes
    exchange  each directory with its predecessor, in one step; the predecessor becomes NAME.bak-TIME
    done      rename the output, remove it, then remove the journal

After a crash at any moment each directory is whole, the old one or the new one. The same call then completes the
exchange; until then the journal shows that it is incomplete. To undo an apply, stop the broker and give the .bak
directories their names again.
"""

import ctypes
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.jobs.rename_exchange import exchange, mount_points, require_exchange
from commitlogfs.pipeline.log.errors import LocationError, PipelineError
from commitlogfs.pipeline.log.identity import Fingerprint, fingerprints_of_range, is_same
from commitlogfs.pipeline.log.locations import absolute_places
from commitlogfs.pipeline.log.segments import LogListing, list_segments
from commitlogfs.pipeline.log.tail import find_end
from commitlogfs.store.broker_store import (
    ABORT_FILE,
    BATCH_CONSUME_QUEUE,
    COMMITLOG,
    CONSUME_QUEUE,
    INDEX,
    LOCK_FILE,
)
from commitlogfs.store.clock import SYSTEM_CLOCK, Clock
from commitlogfs.store.segment import format_segment_name

MANIFEST = "rebuild.json"
"""In the output of a rebuild: the log from which it was made."""
JOURNAL = "rebuild-apply.json"
"""In the store's root, while directories are being exchanged."""
_PARTS = (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, INDEX)


class ApplyRefusedError(PipelineError):
    """The apply was refused; nothing was changed."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Manifest:
    log: str
    segment_size: int
    end_offset: int
    identity: tuple[Fingerprint, ...]
    """The first and the last message that were read. They identify the log; older segments may be deleted."""
    misplaced: int = 0
    """Entries in wrong positions (RebuildResult)."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    new: int
    """Inode of the rebuilt directory."""


@dataclass(frozen=True, slots=True)
class _Journal:
    output: str
    stamp: str
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """`installed`: new directories of the store; `kept`: the directories that they replaced."""

    installed: tuple[Path, ...]
    kept: tuple[Path, ...]
    warnings: tuple[str, ...]


def make_manifest(log: str, listing: LogListing, end_offset: int, *, misplaced: int = 0) -> Manifest:
    """The manifest for an output made of `listing` up to `end_offset`. Raises SegmentGoneError, LocationError."""
    identity = fingerprints_of_range(listing, listing.begin_offset, end_offset)
    return Manifest(absolute_places(log), listing.segment_size, end_offset, identity, misplaced)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")


def apply_rebuilt(
    output: Path,
    store_root: Path,
    *,
    own_log: str | None = None,
    given_log: str | None = None,
    accept_misplaced: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> ApplyResult:
    """Install the `output` of `rebuild`; afterwards `output` no longer exists.

    It must have been made of the store's own log: that in `own_log` (None: STORE/commitlog), or in `given_log` if
    `own_log` holds no segments. `accept_misplaced` is required for queues with entries in wrong positions: a reader
    by queue offset gets other messages from them than from the store's current queues. Completes an earlier call
    that was interrupted. Raises ApplyRefusedError, LocationError; after an OSError in the middle the journal
    remains, and the next call continues.
    """
    with _broker_lock(store_root):
        journal = _read_journal(store_root)
        if journal is not None and Path(journal.output) != output.resolve():
            raise ApplyRefusedError(
                f"{store_root}: an earlier apply of {journal.output} is incomplete; apply that output again"
            )
        if journal is not None and _is_done(journal, store_root):
            _finish(journal, store_root)
            if not output.exists():
                return _result(journal, store_root)
            journal = None
        log = _StoreLog(own_log or str(store_root / COMMITLOG), given_log, clock)
        if journal is None:
            journal = _begin(output, store_root, log, clock, accept_misplaced=accept_misplaced)
        elif not output.exists():
            raise ApplyRefusedError(
                f"{output}: does not exist, although an earlier apply has not installed all of it; remove "
                f"{store_root / JOURNAL} and rebuild again (directories that are installed may stay)"
            )
        # If a broker ran since the interruption, it has written into the directories that it found, new and old
        # ones.
        is_unchanged = log.is_as_read(_read_manifest(output))
        try:
            for part in journal.parts:
                _install(part, output, store_root, journal.stamp, is_unchanged=is_unchanged)
        except OSError as error:
            if any(_inode(output / part.name) != part.new for part in journal.parts):
                raise
            (store_root / JOURNAL).unlink()
            raise ApplyRefusedError(
                f"{store_root}: nothing was installed ({error}); correct that, and give the same command again"
            ) from error
        _sync_filesystem(store_root)
        _finish(journal, store_root)
    return _result(journal, store_root)


def _result(journal: _Journal, store_root: Path) -> ApplyResult:
    installed = [part.name for part in journal.parts if _inode(store_root / part.name) == part.new]
    left = [part.name for part in journal.parts if part.name not in installed]
    return ApplyResult(
        tuple(store_root / name for name in installed),
        tuple(path for part in journal.parts for path in _replaced(part.name, store_root, journal.stamp)),
        tuple(_warnings(store_root, left)),
    )


@contextmanager
def _broker_lock(store_root: Path) -> Iterator[None]:
    """Holds the lock that a broker takes (DefaultMessageStore#start): byte 0 of `lock`, for writing."""
    lock = store_root / LOCK_FILE
    try:
        is_new = not lock.exists()
        file = lock.open("a+b")
    except OSError as error:
        raise ApplyRefusedError(
            f"{store_root}/lock: {error.strerror}; name the broker's storePathRootDir"
        ) from error
    with file:
        if is_new:
            _give_to_owner([lock], store_root)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            raise ApplyRefusedError(
                f"{store_root}: a broker is running on this store (it holds {store_root}/lock); stop it first"
            ) from error
        yield


# --- check -----------------------------------------------------------------------------------------------


class _StoreLog:
    """The log from which the queues must have been made."""

    def __init__(self, own: str, given: str | None, clock: Clock) -> None:
        self._own, self._given, self._clock = own, given, clock

    def is_as_read(self, manifest: Manifest) -> bool:
        """Whether this is the log that was read, and its end has not changed since."""
        listing = self._listing(manifest)
        if _other(listing, manifest) is not None:
            return False
        return find_end(listing, clock=self._clock) == manifest.end_offset

    def require_same(self, manifest: Manifest, output: Path) -> None:
        listing = self._listing(manifest)
        other = _other(listing, manifest)
        if other is not None:
            segment = format_segment_name(other.offset - other.offset % manifest.segment_size).decode()
            raise ApplyRefusedError(
                f"{output}: was made from {manifest.log}, not from the log in "
                f"{listing.segments[0].uri.rpartition('/')[0]} (segment {segment} differs at log offset "
                f"{other.offset}); rebuild from this store's log"
            )

    def _listing(self, manifest: Manifest) -> LogListing:
        for place in self._own, self._given:
            if place is not None and (listing := _listing(place, manifest.segment_size)).segments:
                return listing
        raise ApplyRefusedError(
            f"{self._own}: holds no segments, so the output cannot be compared with this store's log; mount the "
            "log there, or name the log"
        )


def _other(listing: LogListing, manifest: Manifest) -> Fingerprint | None:
    """A message that was read, but is not in the log. The first one may be deleted since, the last one must be
    there."""
    for one in manifest.identity:
        same = is_same(listing, one)
        if same is False or (same is None and one == manifest.identity[-1]):
            return one
    return None


def _listing(place: str, segment_size: int) -> LogListing:
    """The log at `place`; empty if `place` does not exist. Raises LocationError if it cannot be read."""
    try:
        return list_segments(place, segment_size)
    except LocationError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return LogListing(segment_size, ())
        raise


def _begin(output: Path, store_root: Path, log: _StoreLog, clock: Clock, *, accept_misplaced: bool) -> _Journal:
    manifest = _read_manifest(output)
    if manifest.misplaced and not accept_misplaced:
        raise ApplyRefusedError(
            f"{output}: {manifest.misplaced:,} entries are in wrong positions, because of a gap in the log or a "
            "topic that was deleted and made again; remove it and rebuild with --topic-start TOPIC=OFFSET or "
            "--live-topics-only (--accept-misplaced installs it as it is)"
        )
    log.require_same(manifest, output)
    if not log.is_as_read(manifest):
        raise ApplyRefusedError(f"{output}: the log has grown since this was made; rebuild again")
    names = [name for name in _PARTS if (output / name).is_dir()]
    if not names:
        raise ApplyRefusedError(f"{output}: holds no {' or '.join(_PARTS)}; name the output of a rebuild")
    _require_exchangeable(output, store_root, names)
    _give_to_owner([output, *output.rglob("*")], store_root)
    _sync_filesystem(output)  # the rebuilt files must be on the disk before they replace the store's own
    parts = tuple(_Part(name, (output / name).stat().st_ino) for name in names)
    begun = datetime.fromtimestamp(clock.wall(), UTC)
    journal = _Journal(str(output.resolve()), f"{begun:%Y%m%dT%H%M%S%fZ}", parts)
    temporary = store_root / f".{JOURNAL}"
    with temporary.open("w") as file:
        json.dump(asdict(journal), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(store_root / JOURNAL)
    _sync_filesystem(store_root)
    return journal


def _sync_filesystem(directory: Path) -> None:
    """Make everything on one filesystem durable. `os.sync` would also wait for each other disk of the machine, one
    that hangs included. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))
    finally:
        os.close(fd)


def _require_exchangeable(output: Path, store_root: Path, names: Sequence[str]) -> None:
    device = store_root.stat().st_dev
    mounted = mount_points()
    for path in output, *(output / name for name in names), *(store_root / name for name in names):
        try:
            found = path.stat(follow_symlinks=path.parent != store_root)
        except FileNotFoundError:
            continue
        if found.st_dev != device:
            raise ApplyRefusedError(
                f"{path}: is on another filesystem than {store_root}; rebuild into a directory beside the store, "
                "and keep the store's directories on the store's filesystem"
            )
        if path != output and str(path.parent.resolve() / path.name) in mounted:
            raise ApplyRefusedError(f"{path}: is a mount point, which cannot be exchanged; unmount it first")
    try:
        require_exchange(store_root)
    except OSError as error:
        raise ApplyRefusedError(
            f"{store_root}: this filesystem cannot exchange two names in one step ({error.strerror}); move the "
            f"store's {' and '.join(names)} away and those of {output} in by hand"
        ) from error


def _read_manifest(output: Path) -> Manifest:
    try:
        fields = json.loads((output / MANIFEST).read_text())
        identity = tuple(map(Fingerprint.of_json, fields.pop("identity")))
        return Manifest(**fields, identity=identity)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ApplyRefusedError(
            f"{output}: is not a complete output of a rebuild ({MANIFEST}: {error}); rebuild again"
        ) from error


# --- journal ---------------------------------------------------------------------------------------------


def _read_journal(store_root: Path) -> _Journal | None:
    try:
        fields = json.loads((store_root / JOURNAL).read_text())
    except FileNotFoundError:
        return None
    return _Journal(
        fields["output"], fields["stamp"], tuple(_Part(part["name"], part["new"]) for part in fields["parts"])
    )


def _done_name(journal: _Journal) -> Path:
    output = Path(journal.output)
    return output.with_name(f"{output.name}.applied-{journal.stamp}")


def _is_done(journal: _Journal, store_root: Path) -> bool:
    """Whether only the output and the journal remain to be removed."""
    if _done_name(journal).exists():
        return True
    return not Path(journal.output).exists() and all(
        _inode(store_root / part.name) == part.new for part in journal.parts
    )


def _finish(journal: _Journal, store_root: Path) -> None:
    done = _done_name(journal)
    if not done.exists() and Path(journal.output).exists():
        Path(journal.output).rename(done)
    if done.exists():
        shutil.rmtree(done)
    (store_root / JOURNAL).unlink()


# --- exchange --------------------------------------------------------------------------------------------


def _install(part: _Part, output: Path, store_root: Path, stamp: str, *, is_unchanged: bool) -> None:
    """Installs one directory, from any state of an interrupted call: the rebuilt directory is found by its inode.

    Every other directory is kept, even if a broker has made it. If the log has changed, only a directory already
    installed stays.
    """
    source, target = output / part.name, store_root / part.name
    if is_unchanged and _inode(source) == part.new:
        if os.path.lexists(target):
            exchange(source, target)
        else:
            _move(source, target)
    if _inode(source) != part.new and os.path.lexists(source):
        _move(source, _free_name(part.name, store_root, stamp))


def _free_name(name: str, store_root: Path, stamp: str) -> Path:
    path = store_root / f"{name}.bak-{stamp}"
    count = 1
    while os.path.lexists(path):
        count += 1
        path = path.with_name(f"{name}.bak-{stamp}-{count}")
    return path


def _replaced(name: str, store_root: Path, stamp: str) -> Iterable[Path]:
    return sorted(store_root.glob(f"{name}.bak-{stamp}*"))


def _move(source: Path, target: Path) -> None:
    source.rename(target)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _give_to_owner(paths: Iterable[Path], store_root: Path) -> None:
    """Give the files to the owner of the store, so that the broker can write them."""
    owner = store_root.stat()
    if os.geteuid() != 0 or (owner.st_uid, owner.st_gid) == (0, 0):
        return
    for path in paths:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _warnings(store_root: Path, left: Sequence[str]) -> Iterator[str]:
    if left:
        yield (
            f"{store_root}: a broker has run since an earlier apply was interrupted; "
            f"{' and '.join(left)} were not replaced; rebuild and apply again"
        )
    if (store_root / ABORT_FILE).exists() and (store_root / INDEX).exists():
        yield (
            f"{store_root}/abort: the broker was not stopped cleanly, so at its next start it removes all index "
            "files newer than its checkpoint; start it, stop it cleanly, and rebuild the index again"
        )
