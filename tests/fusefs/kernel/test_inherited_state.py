"""State that a daemon leaves to its successor: read back whole, or refused as damaged or unknown."""

import contextlib
import os
import random
import struct
import zlib
from typing import Any

import pytest

from commitlogfs.fusefs.kernel import handshake, inodes
from commitlogfs.fusefs.kernel.backing_table import PLAIN, BackingTable
from commitlogfs.fusefs.kernel.handshake import Handshake
from commitlogfs.fusefs.kernel.inherited_state import CorruptStateError, InheritedStateError, UnknownLayoutError

SHAKEN = Handshake(3, b"request" * 9, b"reply" * 12)
LAYOUT_OFFSET = 8


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def content_of(fd: int) -> bytes:
    return os.pread(fd, 1 << 20, 0)


# --- handshake ---------------------------------------------------------------------------------------------


def test_a_handshake_is_read_as_it_was_written():
    fd = handshake.write(SHAKEN)
    assert handshake.read(fd) == SHAKEN
    os.close(fd)


def test_a_handshake_cannot_be_changed_by_its_receivers():
    fd = handshake.write(SHAKEN)
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 16)):
        with pytest.raises(PermissionError):
            change()
    os.close(fd)


def test_any_damage_to_a_handshake_is_noticed():
    fd = handshake.write(SHAKEN)
    whole = content_of(fd)
    os.close(fd)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        fd = memory_file(bytes(damaged))
        with pytest.raises((CorruptStateError, UnknownLayoutError)):
            handshake.read(fd)
        os.close(fd)
    for length in range(len(whole)):
        fd = memory_file(whole[:length])
        with pytest.raises(CorruptStateError):
            handshake.read(fd)
        os.close(fd)


def test_another_layout_is_refused_by_name():
    fd = handshake.write(SHAKEN)
    content = bytearray(content_of(fd))
    os.close(fd)
    struct.pack_into("<I", content, LAYOUT_OFFSET, 2)
    fd = memory_file(bytes(content))
    with pytest.raises(UnknownLayoutError, match="layout 2, this version knows 1"):
        handshake.read(fd)
    os.close(fd)


def test_epochs_never_return_to_the_first():
    epochs = [SHAKEN.epoch]
    state = SHAKEN
    for _ in range(40):
        state = state.next_epoch()
        epochs.append(state.epoch)
    assert epochs[:14] == [*range(3, 16), 1]
    assert 0 not in epochs


# --- backing table -----------------------------------------------------------------------------------------


def reopened(table: BackingTable, epoch: int = 0) -> BackingTable:
    fd = os.dup(table.fd)
    try:
        return BackingTable.open(fd, epoch)
    except InheritedStateError:
        os.close(fd)
        raise


def test_the_next_daemon_reads_the_table_as_it_was_left():
    rng = random.Random(5)  # noqa: S311
    table = BackingTable.create(0)
    model: dict[int, Any] = {}
    for _ in range(30_000):  # more than fit at first
        inode = rng.randrange(1, 12_000) << 48 | rng.randrange(1, 99)
        if rng.random() < 0.3 and model:
            gone = rng.choice(list(model)) if rng.random() < 0.01 else next(iter(model))
            table.remove(gone)
            del model[gone]
        else:
            model[inode] = rng.choice([PLAIN, rng.randrange(1, 1 << 31)])
            table.put(inode, model[inode])
    successor = reopened(table)
    assert dict(successor) == dict(table) == model
    assert len(successor) == len(model) > 4094
    for inode, backing_id in model.items():
        assert successor.get(inode) == backing_id
    assert successor.get(7) is None
    table.close()
    successor.close()


def test_a_record_cut_short_by_a_kill_counts_as_free():
    table = BackingTable.create(0)
    table.put(11, 1)
    table.put(12, 2)
    whole = content_of(table.fd)
    start = whole.index(struct.pack("<Qi", 12, 2))
    for written in range(16):
        os.pwrite(table.fd, whole[start : start + written] + bytes(16 - written), start)
        successor = reopened(table)
        assert dict(successor) == {11: 1}
        successor.put(13, 3)
        again = reopened(successor)
        assert dict(again) == {11: 1, 13: 3}
        again.close()
        successor.remove(13)
        successor.close()
    table.close()


@pytest.mark.parametrize("content", [b"", b"short", bytes(70_000), b"clfsBACK" + bytes(10)])
def test_other_content_than_a_table_is_damaged(content):
    fd = memory_file(content)
    with pytest.raises((CorruptStateError, UnknownLayoutError)):
        BackingTable.open(fd, 0)
    os.close(fd)


@pytest.mark.parametrize("position", range(16))
def test_a_record_that_was_changed_makes_the_table_damaged(position):
    table = BackingTable.create(0)
    table.put(0x0102030405060708, 0x01020304)
    whole = content_of(table.fd)
    start = whole.index(struct.pack("<Qi", 0x0102030405060708, 0x01020304))
    os.pwrite(table.fd, bytes([whole[start + position] ^ 0x80]), start + position)
    with pytest.raises(CorruptStateError, match="record 0 of"):
        reopened(table)
    table.close()


@pytest.mark.parametrize("length", [0, 16, 31, 32, 48, 32 + 16 * 4093, 32 + 16 * 4095, 32 + 16 * 3 * 4094])
def test_a_table_of_a_length_that_none_has_is_damaged(length):
    table = BackingTable.create(0)
    table.put(11, 1)
    fd = memory_file(content_of(table.fd))
    os.ftruncate(fd, length)
    with pytest.raises(CorruptStateError):
        BackingTable.open(fd, 0)
    os.close(fd)
    table.close()


def test_a_table_of_another_epoch_or_layout_is_not_used():
    table = BackingTable.create(4)
    with pytest.raises(CorruptStateError):
        reopened(table, 5)
    os.pwrite(table.fd, struct.pack("<I", 9), LAYOUT_OFFSET)
    with pytest.raises(UnknownLayoutError, match="layout 9"):
        reopened(table, 4)
    table.close()


def test_the_clocks_lead_survives_and_may_be_unknown():
    table = BackingTable.create(0)
    assert table.clock_lead_s is None
    table.record_clock_lead(1_800_000_000.25)
    table.put(7, 3)
    successor = reopened(table)
    assert (successor.clock_lead_s, successor.get(7), successor.takeovers) == (1_800_000_000.25, 3, 0)
    successor.record_clock_lead(None)
    with contextlib.closing(reopened(successor)) as third:
        assert third.clock_lead_s is None
    table.close()
    successor.close()


def test_notes_on_disks_are_read_by_the_next_daemon():
    rng = random.Random(6)  # noqa: S311
    table = BackingTable.create(0)
    files = {number << 48 | number: rng.choice([PLAIN, number]) for number in range(1, 4000)}
    for inode, backing_id in files.items():
        table.put(inode, backing_id)
    model: dict[tuple[int, int], int] = {}
    for _ in range(10_000):
        key = rng.choice([1, 2, 4095]), rng.randrange(1, 6)
        model[key] = rng.choice([0, 1, rng.randrange(1 << 32), (1 << 32) - 1])
        table.put_note(*key, model[key])
        if rng.random() < 0.3:
            table.put_note(*key, None)
            del model[key]
    successor = reopened(table)
    assert successor.notes() == table.notes() == model != {}
    assert dict(successor) == files
    assert len(successor) == len(files)
    successor.put_note(1, 1, 1 << 40)
    with contextlib.closing(reopened(successor)) as third:
        assert third.notes()[1, 1] == (1 << 32) - 1
    table.close()
    successor.close()


def test_a_note_half_replaced_by_a_kill_is_one_note():
    table = BackingTable.create(0)
    table.put_note(2, 1, 7)
    former = content_of(table.fd)
    start = former.index(struct.pack("<I", 7), 32)
    table.put_note(2, 1, 8)
    os.pwrite(table.fd, former[start : start + 16], start)  # as if it had not been taken away yet
    successor = reopened(table)
    assert successor.notes() in ({(2, 1): 7}, {(2, 1): 8})
    successor.put_note(2, 1, None)
    with contextlib.closing(reopened(successor)) as third:
        assert third.notes() == {}
    table.close()
    successor.close()


def test_a_former_version_takes_notes_for_removed_files():
    """Served plain, on no disk: it forgets them, and gives no backing id back."""
    table = BackingTable.create(0)
    table.put_note(3, 2, 1 << 31)
    (record,) = [record for record in struct.iter_unpack("<QiI", content_of(table.fd)[32:]) if any(record)]
    inode, backing_id, checksum = record
    assert backing_id == PLAIN
    assert checksum == zlib.crc32(struct.pack("<Qi", inode, backing_id))
    assert not inodes.is_of_disk(inode)
    table.close()


def test_takeovers_are_counted():
    table = BackingTable.create(0)
    assert table.takeovers == 0
    successor = reopened(table)
    successor.record_takeover()
    with contextlib.closing(reopened(successor)) as third:
        assert table.takeovers == third.takeovers == 1
    table.close()
    successor.close()
