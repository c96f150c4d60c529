"""Handlers of a successor, and the files that a daemon which died has left, without a kernel."""

import os
from pathlib import Path

import pytest
import trio
from pyfuse3 import FileHandleT
from support.pooled import OURS, Parts, name_of, open_parts

from commitlogfs.fusefs import connection
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.kernel import inodes
from commitlogfs.fusefs.kernel.backing_table import BackingTable
from commitlogfs.fusefs.operations import CommitLogOperations


async def _no_text() -> bytes:
    return b""


def _operations(parts: Parts) -> CommitLogOperations:
    return CommitLogOperations(parts, ControlContents(_no_text, _no_text))


def test_a_copy_that_grew_under_a_former_daemon_is_durable_when_it_is_closed(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cp and rsync sync nothing, so the close does, whichever daemon gets it; once."""
    synced: list[int] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    with open_parts(workdir) as parts:

        async def task() -> None:
            table = BackingTable.create(0)
            parts.backing.begin(table, None, "no kernel")
            former = _operations(parts)
            connection.begin(former)
            handle = await parts.creation.create(name_of(0), OURS)
            inode = inodes.encode(handle.file)
            await former.write(FileHandleT(inode), 0, b"message")

            successor = _operations(parts)
            connection.take_up(successor, state_lost=False, resend=lambda: None)
            monkeypatch.setattr(os, "fsync", noted)
            await successor.flush(FileHandleT(inode))
            await successor.flush(FileHandleT(inode))
            assert synced == [handle.file.ino]
            await parts.handles.release(inode)

        trio.run(task)
