"""The session that a daemon inherits: read once and whole, or refused with the reason."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from commitlogfs.fusefs.kernel import handshake, inherited_session
from commitlogfs.fusefs.kernel.backing_table import PLAIN, BackingTable
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.fusefs.kernel.inherited_session import DEVICE, HANDSHAKE, TABLE
from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, InheritedStateError, UnknownLayoutError

AGREED = Handshake(2, b"request", b"reply")
LAYOUT_OFFSET = 8


@pytest.fixture
def descriptors() -> Iterator[dict[str, int]]:
    """As a daemon of epoch 2 leaves them, with two opened files and a note on a disk."""
    with closing(BackingTable.create(AGREED.epoch)) as table:
        table.put(2 << 60 | 3 << 48 | 17, 5)
        table.put(2 << 60 | 4095 << 48 | (1 << 48) - 1, PLAIN)
        table.put_note(3, 1, 7)
        held = {DEVICE: os.open(os.devnull, os.O_RDWR), HANDSHAKE: handshake.write(AGREED), TABLE: os.dup(table.fd)}
        yield held
    for fd in (held[DEVICE], held.get(HANDSHAKE)):
        if fd is not None:
            os.close(fd)


def test_handshake_table_and_opened_files_come_in_one(descriptors: dict[str, int]) -> None:
    session = inherited_session.read(descriptors)
    assert (session.device, session.handshake_fd) == (descriptors[DEVICE], descriptors[HANDSHAKE])
    assert session.handshake == AGREED
    assert session.opened_files() == {(3, 17), (4095, (1 << 48) - 1)}
    assert session.why_lost == ""
    assert session.table is not None
    assert session.table.fd == descriptors[TABLE], "the table takes the descriptor over"
    session.table.close()


def test_a_table_that_was_not_kept_is_lost(descriptors: dict[str, int]) -> None:
    os.close(descriptors.pop(TABLE))
    session = inherited_session.read(descriptors)
    assert (session.table, session.why_lost) == (None, "the backing table was not kept")
    assert session.opened_files() == frozenset()


def test_a_damaged_table_is_lost(descriptors: dict[str, int]) -> None:
    os.pwrite(descriptors[TABLE], b"CLFS", 0)
    session = inherited_session.read(descriptors)
    assert (session.table, session.why_lost) == (None, "the kept backing table was not written by commitlogfs")
    os.close(descriptors[TABLE])


def test_a_table_of_another_layout_is_left_to_its_version(descriptors: dict[str, int]) -> None:
    os.pwrite(descriptors[TABLE], (9).to_bytes(4, "little"), LAYOUT_OFFSET)
    with pytest.raises(UnknownLayoutError, match="layout 9"):
        inherited_session.read(descriptors)
    os.close(descriptors[TABLE])


def test_without_a_handshake_nothing_is_taken_over(descriptors: dict[str, int]) -> None:
    os.close(descriptors.pop(HANDSHAKE))
    with pytest.raises(InheritedStateError, match="the handshake with the kernel was not kept"):
        inherited_session.read(descriptors)
    os.close(descriptors[TABLE])


def test_a_damaged_handshake_is_refused(descriptors: dict[str, int]) -> None:
    os.close(descriptors[HANDSHAKE])
    descriptors[HANDSHAKE] = os.memfd_create("damaged")
    with pytest.raises(CorruptStateError, match="INIT request"):
        inherited_session.read(descriptors)
    os.close(descriptors[TABLE])
