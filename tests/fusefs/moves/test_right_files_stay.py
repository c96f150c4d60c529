"""A right file of a segment is not removed while no other one is known to be right, whatever has become of them."""

import contextlib
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import trio
import xxhash
from support.pooled import SIZE, Parts, name_of, open_parts, place
from support.returned import Away, content, put_unseen

from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store import layout
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import stat_name, unpack
from commitlogfs.store.files.hashing import write_checksum
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.moves.mark import source_of, write_mark
from commitlogfs.store.pool.open import finish_moves
from commitlogfs.store.scrub.verdict import Kind, format_verdict, whole_verdict


def seal(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    write_checksum(fd, xxhash.xxh3_128_digest(path.read_bytes()))
    os.close(fd)


def stay_right(_: Path) -> None:
    pass


def rot(path: Path) -> None:
    put_unseen(path, bytes(SIZE))


def record_verdict(path: Path) -> None:
    rot(path)
    os.setxattr(path, layout.XATTR_VERDICT, format_verdict(whole_verdict(Kind.ROTTED, SIZE, 5)))


def lose_checksum(path: Path) -> None:
    if layout.XATTR_CHECKSUM in os.listxattr(path):
        os.removexattr(path, layout.XATTR_CHECKSUM)


def rot_unseen(path: Path) -> None:
    lose_checksum(path)
    rot(path)


def change_mode(path: Path) -> None:
    path.chmod(0o640)


def rot_and_change_mode(path: Path) -> None:
    rot(path)
    path.chmod(0o640)


Fate = Callable[[Path], None]

FATES: Final[tuple[Fate, ...]] = (
    stay_right,
    rot,
    record_verdict,
    lose_checksum,
    rot_unseen,
    change_mode,
    rot_and_change_mode,
    Path.unlink,
)
DISKS: Final = 4
"""The first three have the files of each segment: a source, and two copies of it."""
STEPS: Final = 4
"""Steps of one life of a daemon at most: each removes all that is not needed, and then reads on each disk."""
LIVES: Final = 6
MTIME_NS: Final = 10**18


class Killed(BaseException):
    """The daemon has died."""


def write_file(path: Path, index: int, source: Path | None) -> None:
    """Make one file of a segment, as a move leaves it."""
    path.write_bytes(content(index))
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    with path.open("rb") as file:
        if source is not None:
            dirfd = os.open(source.parent, os.O_RDONLY)
            write_mark(file.fileno(), source_of(DiskNumber(1), unpack(stat_name(dirfd, os.fsencode(source.name)))))
            os.close(dirfd)
        write_checksum(file.fileno(), xxhash.xxh3_128_digest(content(index)))


class Log:
    """A pool whose segments have had all pairs of fates of source and copy, and any one of a second copy."""

    def __init__(self, workdir: Path, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        with open_parts(workdir, DISKS) as parts:
            self.directories = parts.directories
        self._away = Away(self.directories, is_read_only=False)
        self._chance = chance
        self.removed = 0
        self._life = 0
        for index, fates in enumerate(itertools.product(FATES, FATES)):
            source, *copies = paths = [directory / name_of(index).decode() for directory in self.directories[:3]]
            write_file(source, index, None)
            for copy in copies:
                write_file(copy, index, source)
            for path, fate in zip(paths, (*fates, chance.choice(FATES)), strict=True):
                fate(path)
        unlink = DiskFiles.unlink

        async def watched(disk: DiskFiles, name: bytes, ino: int) -> DiskUsage:
            self.require_other(Path(disk.path, os.fsdecode(name)))
            if not self._life:
                raise Killed
            self._life -= 1
            self.removed += 1
            return await unlink(disk, name, ino)

        monkeypatch.setattr(DiskFiles, "unlink", watched)

    def is_right(self, path: Path) -> bool:
        return path.exists() and path.read_bytes() == content(int(path.name) // SIZE)

    def right_files(self, name: str) -> list[Path]:
        return [directory / name for directory in self.directories if self.is_right(directory / name)]

    def require_other(self, path: Path) -> None:
        """A file is about to be removed."""
        right = self.right_files(path.name)
        assert right != [path], f"{path} is the only right file"

    def live(self) -> None:
        """The life of one daemon, which is killed at any moment; a disk may be missing, hang or be unwritable."""
        chance = self._chance
        away = [number for number in range(1, DISKS + 1) if chance.random() < 0.1]
        self._life = chance.choice((1, 5, 1000))
        with self._away.opened(*away) as parts:
            for disk in parts.commitlog.disks.values():
                disk.is_unresponsive = chance.random() < 0.1
                disk.is_read_only = chance.random() < 0.1
            with contextlib.suppress(Killed):
                trio.run(self._serve, parts)

    async def _serve(self, parts: Parts) -> None:
        for _ in range(self._chance.randint(1, STEPS)):
            await parts.sources.finish()
            for number in parts.commitlog.disks:
                while self._chance.random() < 0.98 and await parts.readings.read_next(number):
                    pass
            for file in parts.commitlog.catalog:
                path = place(parts, file.base_offset // SIZE)
                lacks_checksum = layout.XATTR_CHECKSUM not in os.listxattr(path)
                if lacks_checksum and self._chance.random() < 0.3 and parts.checksums._may_compute(file):
                    seal(path)  # as a daemon does in the background

    def finish_unmounted(self) -> None:
        before = {path.name: self.right_files(path.name) for path in self.directories[0].iterdir()}
        with self._away.opened():
            finish_moves(self._away.pool)
        for name, right in before.items():
            assert not right or self.right_files(name), f"{name}: the only right file was removed"


@pytest.mark.parametrize("seed", range(3))
def test_the_only_right_file_of_a_segment_is_never_removed(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same each time
    log = Log(workdir, chance, monkeypatch)
    for _ in range(LIVES):
        log.live()
        if chance.random() < 0.2:
            log.finish_unmounted()
    assert log.removed  # else nothing was tried
