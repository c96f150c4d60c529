"""Pools in which segments are copied while disks of former copies are away, without a mount."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from support.pooled import PATIENT, SIZE, Parts, make, name_of, open_parts, place, segment

from commitlogfs.store.clock import SYSTEM_CLOCK
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.membership import DiskNumber, Drain, DrainMode
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.thresholds import Thresholds

COUNT, DISKS = 16, 4
DRAINED = DiskNumber(1)


def content(index: int) -> bytes:
    return b"%0*d" % (SIZE, index)


def make_pool(workdir: Path) -> list[Path]:
    """The directories of a pool of COUNT segments."""
    with open_parts(workdir, DISKS) as parts:

        async def main() -> None:
            for index in range(COUNT):
                await make(parts, index)
                place(parts, index).write_bytes(content(index))
            for file in parts.commitlog.catalog:
                await parts.attributes.refresh(file)

        trio.run(main)
        return list(parts.directories)


class Away:
    """Disks of a pool, some of which may be away."""

    def __init__(self, directories: list[Path], *, is_read_only: bool) -> None:
        self.directories = directories
        self.is_read_only = is_read_only

    @contextmanager
    def opened(self, *away: int) -> Iterator[Parts]:
        """The next daemon, without these disks."""
        present = [path for number, path in enumerate(self.directories, 1) if number not in away]
        pool = open_pool(tuple(DiskSpec(str(path), Thresholds()) for path in present), SIZE)
        self.findings = pool.findings
        self.pool = pool
        log = CommitLog(pool, POLICIES["round-robin"], SYSTEM_CLOCK, PATIENT)
        if DRAINED in log.disks:
            log.disks[DRAINED].is_read_only = self.is_read_only
        parts = Parts(self.directories, log)
        try:
            yield parts
        finally:
            parts.close()

    def drain(self, parts: Parts, *, most: int = COUNT, let_go: bool = True) -> None:
        mode = DrainMode.FAILING if self.is_read_only else DrainMode.COPY
        log = parts.commitlog
        log.record_membership(log.membership.draining(DRAINED, Drain(1, mode, 10**9)))

        async def main() -> None:
            for _ in range(most):
                if not await parts.drains._move_next():
                    break
                if let_go:
                    await parts.sources.finish()

        trio.run(main)

    def holders(self, index: int) -> set[int]:
        name = name_of(index).decode()
        return {number for number, path in enumerate(self.directories, 1) if (path / name).exists()}


def indexes(parts: Parts) -> list[int]:
    return [file.base_offset // SIZE for file in parts.commitlog.catalog]


def move_on(parts: Parts, index: int, target: int, *, salvages: bool = False) -> None:
    def rate() -> int:
        return 2**40

    async def main() -> None:
        await parts.mover.move(segment(parts, index), DiskNumber(target), rate, lambda: True, salvages=salvages)

    trio.run(main)


def copied_twice(
    directories: list[Path], *, is_read_only: bool, wanted: int | None = None
) -> tuple[Away, int, int]:
    """A segment whose copy was on a disk that went away, and which was then copied from the same file again; and
    that disk, the `wanted` one if any. The first copy is whole, and the daemon has died before it removed the
    source."""
    away = Away(directories, is_read_only=is_read_only)
    with away.opened() as parts:
        former = {file.base_offset // SIZE: file.disk for file in parts.commitlog.catalog}
        if wanted is not None:  # a drain may find more space elsewhere
            move_on(parts, min(i for i, disk in former.items() if disk == DRAINED), wanted)
        away.drain(parts, let_go=False)
        moved = {i: file.disk for i, disk in former.items() if (file := segment(parts, i)).disk != disk}
        index = min(i for i, disk in moved.items() if wanted in (None, disk))
        first = moved[index]
    with away.opened(first) as parts:
        assert segment(parts, index).disk == DRAINED
        away.drain(parts)
        assert segment(parts, index).disk not in (DRAINED, first)
    return away, index, first


def put_unseen(path: Path, data: bytes) -> None:
    """Change the content of a file, but none of its attributes that a program can set."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def moved_on(directories: list[Path]) -> tuple[Away, int, int, int, int]:
    """As copied_twice; and the disk of the second copy, and one that has none."""
    away, index, first = copied_twice(directories, is_read_only=False)
    (second,) = away.holders(index) - {first}
    (third,) = {1, 2, 3, 4} - {DRAINED, first, second}
    return away, index, first, second, third
