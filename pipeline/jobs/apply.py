"""Rebuilt consume queues and index, put in the place of a store's own.

    lock      the store's `lock` is taken, which a broker holds as long as it runs
    check     the log ends where the rebuild has read it to; all is on one filesystem; all of it is on the disk
    journal   STORE/rebuild-apply.json: which folders are to be exchanged, known by their inodes
    exchange  each folder with its predecessor, in one step; the predecessor becomes NAME.bak-TIME
    done      the journal is removed

Whatever the moment of a crash, each folder is there as a whole, the old one or the new one. The same call again
goes on where it ended; until then the journal says that there is something to be done. To go back, stop the
broker and give the .bak folders their names again.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from commitlogfs.pipeline.errors import PipelineError
from commitlogfs.pipeline.exchange import exchange
from commitlogfs.pipeline.segments import list_segments
from commitlogfs.pipeline.tail import find_end

MANIFEST = "rebuild.json"
"""In the output of a rebuild: what it was made from."""
JOURNAL = "rebuild-apply.json"
"""In the store's root while folders are being exchanged."""
_PARTS = ("consumequeue", "batchconsumequeue", "index")


class ApplyRefusedError(PipelineError):
    """Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Manifest:
    log: str
    segment_size: int
    end_offset: int
    misplaced: int = 0
    """Entries in wrong places (RebuildResult)."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    new: int
    """Inode of the rebuilt folder."""
    old: int | None
    """Inode of the store's own; None where it had none."""


@dataclass(frozen=True, slots=True)
class _Journal:
    output: str
    stamp: str
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """`installed`: the store's folders that are new; `kept`: their predecessors."""

    installed: tuple[Path, ...]
    kept: tuple[Path, ...]
    warnings: tuple[str, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")


def apply_rebuilt(output: Path, store_root: Path, *, accept_misplaced: bool = False) -> ApplyResult:
    """Install what `rebuild` has made in `output`; afterwards `output` is gone.

    Queues with entries in wrong places are installed with `accept_misplaced` only: whoever reads them by queue
    offset gets other messages than from the queues that are there.
    Goes on with an earlier call that did not come to its end. Raises ApplyRefusedError, LocationError; an OSError
    in the middle leaves the journal, and the next call goes on.
    """
    with _broker_kept_out(store_root):
        journal = _read_journal(store_root)
        if journal is None:
            journal = _begin(output, store_root, accept_misplaced=accept_misplaced)
        elif Path(journal.output) != output.resolve():
            raise ApplyRefusedError(
                f"{store_root}: an earlier apply of {journal.output} did not come to its end: apply that one again"
            )
        # A broker that ran in between has gone on with what it found, the new folders and the old ones.
        parts = journal.parts if _is_current(output) else _already_in(journal, store_root)
        for part in parts:
            _bring_in(part, output, store_root, journal.stamp)
        os.sync()
        (store_root / JOURNAL).unlink()
        shutil.rmtree(output)
    left = [part.name for part in journal.parts if part not in parts]
    return ApplyResult(
        tuple(store_root / part.name for part in parts),
        tuple(_kept_as(part, store_root, journal.stamp) for part in parts if part.old is not None),
        tuple(_warnings(store_root, left)),
    )


@contextmanager
def _broker_kept_out(store_root: Path) -> Iterator[None]:
    """The very lock that a broker takes (DefaultMessageStore#start): byte 0 of `lock`, for writing."""
    try:
        file = (store_root / "lock").open("a+b")
    except OSError as error:
        raise ApplyRefusedError(
            f"{store_root}/lock: {error.strerror}: is this the broker's storePathRootDir?"
        ) from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            raise ApplyRefusedError(
                f"{store_root}: a broker is running on this store (it holds {store_root}/lock): stop it first"
            ) from error
        yield


def _begin(output: Path, store_root: Path, *, accept_misplaced: bool) -> _Journal:
    manifest = _read_manifest(output)
    if manifest.misplaced and not accept_misplaced:
        raise ApplyRefusedError(
            f"{output}: {manifest.misplaced:,} entries lie in wrong places: a gap in the log, or a topic that was "
            "deleted and made again: remove it and rebuild with --topic-start TOPIC=OFFSET or --live-topics-only; "
            "--accept-misplaced installs it as it is"
        )
    if not _is_current(output):
        raise ApplyRefusedError(f"{output}: the log has grown since this was made of it: rebuild again")
    names = [name for name in _PARTS if (output / name).is_dir()]
    if not names:
        raise ApplyRefusedError(f"{output} holds no {' or '.join(_PARTS)}: name the output of a rebuild")
    if output.stat().st_dev != store_root.stat().st_dev:
        raise ApplyRefusedError(
            f"{output} is on another filesystem than {store_root}: rebuild into a folder beside the store, from "
            "where it can be moved in one step"
        )
    _give_to_owner(output, store_root)
    os.sync()  # the rebuilt files, before they replace what was there
    parts = tuple(_Part(name, (output / name).stat().st_ino, _inode(store_root / name)) for name in names)
    journal = _Journal(str(output.resolve()), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}", parts)
    temporary = store_root / f".{JOURNAL}"
    with temporary.open("w") as file:
        json.dump(asdict(journal), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(store_root / JOURNAL)
    os.sync()
    return journal


def _read_manifest(output: Path) -> Manifest:
    try:
        return Manifest(**json.loads((output / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ApplyRefusedError(f"{output} is no whole output of a rebuild ({MANIFEST}: {error})") from error


def _is_current(output: Path) -> bool:
    """Whether the log still ends where it ended."""
    manifest = _read_manifest(output)
    return find_end(list_segments(manifest.log, manifest.segment_size)) == manifest.end_offset


def _read_journal(store_root: Path) -> _Journal | None:
    try:
        fields = json.loads((store_root / JOURNAL).read_text())
    except FileNotFoundError:
        return None
    return _Journal(fields["output"], fields["stamp"], tuple(_Part(**part) for part in fields["parts"]))


def _already_in(journal: _Journal, store_root: Path) -> tuple[_Part, ...]:
    return tuple(part for part in journal.parts if _inode(store_root / part.name) == part.new)


def _bring_in(part: _Part, output: Path, store_root: Path, stamp: str) -> None:
    """However far it came before: what is where is told by the inodes."""
    source, target = output / part.name, store_root / part.name
    if _inode(target) != part.new:
        if part.old is None:
            _move(source, target)
        else:
            exchange(source, target)
    if part.old is not None and _inode(source) == part.old:
        _move(source, _kept_as(part, store_root, stamp))


def _kept_as(part: _Part, store_root: Path, stamp: str) -> Path:
    return store_root / f"{part.name}.bak-{stamp}"


def _move(source: Path, target: Path) -> None:
    source.rename(target)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _give_to_owner(output: Path, store_root: Path) -> None:
    """A broker must be able to write what it did not make."""
    owner = store_root.stat()
    if os.geteuid() != 0 or (owner.st_uid, owner.st_gid) == (0, 0):
        return
    for path in output, *output.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _warnings(store_root: Path, left: Sequence[str]) -> Iterator[str]:
    if left:
        yield (
            f"{store_root}: the broker has been running since an earlier apply was interrupted: "
            f"{' and '.join(left)} stayed as the broker has it"
        )
    if (store_root / "abort").exists() and (store_root / "index").exists():
        yield (
            f"{store_root}/abort: the broker was not stopped cleanly: at its next start it removes all index files "
            "newer than its checkpoint: start it, stop it cleanly, and rebuild the index again"
        )
