"""The ring of slots: what was written whole is found, newest first, and nothing else."""

from pathlib import Path

import pytest

from commitlogfs.mount.journal import ring
from commitlogfs.mount.journal.file import open_journal, read_journal

POOL = "0b7e6f0a-4d5c-4f0e-9d67-0123456789ab"
LONG = bytes(range(256)) * 5
"""Takes three slots."""


def payloads(content: bytes) -> list[bytes]:
    return [record.payload for record in ring.newest_first(content)]


def written(path: Path, *entries: bytes) -> bytearray:
    journal = open_journal(path, POOL)
    for entry in entries:
        journal.append(entry)
    journal.close()
    return bytearray(path.read_bytes())


def test_entries_are_found_newest_first(tmp_path: Path) -> None:
    content = written(tmp_path / "j", b"one", LONG, b"", b"four")
    assert payloads(bytes(content)) == [b"four", b"", LONG, b"one"]
    assert [record.sequence for record in ring.newest_first(bytes(content))] == [5, 4, 1, 0]


def test_the_ring_keeps_the_newest_entries(tmp_path: Path) -> None:
    count = ring.SLOTS + 100
    content = written(tmp_path / "j", *(b"%d" % number for number in range(count)))
    assert len(content) == ring.FILE_BYTES
    assert payloads(bytes(content)) == [b"%d" % number for number in reversed(range(100, count))]


def test_an_entry_of_which_a_part_was_overwritten_is_left_out(tmp_path: Path) -> None:
    content = written(tmp_path / "j", LONG, *(b"%d" % number for number in range(ring.SLOTS - 2)))
    found = payloads(bytes(content))
    assert LONG not in found
    assert len(found) == ring.SLOTS - 2


def test_an_entry_wraps_around_the_end_of_the_ring(tmp_path: Path) -> None:
    content = written(tmp_path / "j", *[b"x"] * (ring.SLOTS - 1), LONG, b"last")
    assert payloads(bytes(content))[:2] == [b"last", LONG]


@pytest.mark.parametrize("place", [0, 4, 13, 20, ring.SLOT_BYTES - 1])
def test_a_torn_slot_costs_only_its_entry(tmp_path: Path, place: int) -> None:
    content = written(tmp_path / "j", b"one", LONG, b"three")
    content[ring.position(2) + place] ^= 0xFF  # the second part of LONG
    assert payloads(bytes(content)) == [b"three", b"one"]


def test_a_successor_continues_after_an_entry_that_was_written_in_part(tmp_path: Path) -> None:
    path = tmp_path / "j"
    content = written(path, b"one", LONG)
    content[ring.position(3) : ring.position(3) + ring.SLOT_BYTES] = bytes(ring.SLOT_BYTES)
    path.write_bytes(content)
    assert payloads(bytes(written(path, b"two"))) == [b"two", b"one"]


def test_a_successor_continues_a_ring_that_has_wrapped(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, *(b"%d" % number for number in range(ring.SLOTS + 7)))
    content = written(path, b"next")
    assert payloads(bytes(content))[:2] == [b"next", b"%d" % (ring.SLOTS + 6)]
    assert len(payloads(bytes(content))) == ring.SLOTS


@pytest.mark.parametrize("damage", ["short", "empty", "header", "long", "foreign"])
def test_a_file_that_is_not_a_journal_is_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "j"
    content = written(path, b"former")
    content[20] ^= damage == "header"
    damaged = {"short": content[:-1], "empty": b"", "long": content + b"x", "foreign": b"\0" * len(content)}
    path.write_bytes(bytes(damaged.get(damage, content)))
    assert payloads(bytes(written(path, b"new"))) == [b"new"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_journal_of_another_pool_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, b"former")
    open_journal(path, "another").close()
    assert payloads(path.read_bytes()) == []


def test_what_is_not_a_journal_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "j"
    assert read_journal(path) is None
    path.write_bytes(b"x" * 600)
    assert read_journal(path) is None
    path.write_bytes(b"")
    assert read_journal(path) is None


def test_a_short_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(written(path, b"one", b"two", b"three")[: ring.position(2) + 5])
    content = read_journal(path)
    assert content is not None
    assert payloads(content) == [b"two", b"one"]


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "j").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        open_journal(tmp_path / "j", POOL)
    assert not (tmp_path / "other").exists()


def test_a_payload_that_is_too_long_is_refused(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "j", POOL)
    with pytest.raises(ValueError, match="at most"):
        journal.append(b"x" * (ring.MAX_PAYLOAD_BYTES + 1))
    journal.append(b"x" * ring.MAX_PAYLOAD_BYTES)
    assert payloads(journal.read()) == [b"x" * ring.MAX_PAYLOAD_BYTES]
    journal.close()
