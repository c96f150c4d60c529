"""Consume queue files byte for byte as RocketMQ's code makes them, from pieces of any size."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rebuilding import read_files
from support.rocketmq_store import ConsumeQueue

from commitlogfs.pipeline.broker.consume_queue import (
    BatchConsumeQueueFiles,
    ConsumeQueueFiles,
    QueueOffsetError,
    QueueSummary,
)
from commitlogfs.pipeline.log.errors import PipelineError

FILE = 100  # five entries
BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)

Wanted = tuple[int, int, int]
"""Queue offset, offset in the log, size."""


def entry(offset: int, size: int = 10, tags_code: int = -7) -> bytes:
    return struct.pack(">qiq", offset, size, tags_code)


def packed(wanted: Sequence[Wanted]) -> np.ndarray:
    return np.frombuffer(b"".join(entry(offset, size) for _, offset, size in wanted), np.uint8)


def build(directory: Path, pieces: Sequence[Sequence[Wanted]], file_size: int = FILE) -> QueueSummary:
    with ConsumeQueueFiles(directory / "queue", file_size) as files:
        for piece in pieces:
            files.feed(packed(piece), np.array([queue_offset for queue_offset, _, _ in piece], np.int64))
        return files.close()


def follow(first: int, count: int, at: int = 0) -> list[Wanted]:
    return [(first + i, at + 10 * i, 10) for i in range(count)]


def content(*entries: bytes) -> bytes:
    return b"".join(entries).ljust(FILE, b"\0")


def test_the_tail_of_a_file_is_zero_and_the_next_file_comes_when_it_is_full(tmp_path: Path) -> None:
    assert build(tmp_path, [follow(0, 5)]).files == 1
    assert build(tmp_path / "more", [follow(0, 7)]).files == 2
    assert read_files(tmp_path / "more") == {
        "queue/00000000000000000000": content(*(entry(10 * i) for i in range(5))),
        "queue/00000000000000000100": content(entry(50), entry(60)),
    }


def test_a_queue_that_begins_later_has_blanks_before_it_in_its_first_file(tmp_path: Path) -> None:
    summary = build(tmp_path, [follow(7, 1)])
    assert read_files(tmp_path) == {"queue/00000000000000000100": content(BLANK, BLANK, entry(0))}
    assert (summary.blanks, summary.written) == (2, 1)


def test_a_queue_that_begins_with_a_file_has_none(tmp_path: Path) -> None:
    build(tmp_path, [follow(10, 1)])
    assert read_files(tmp_path) == {"queue/00000000000000000200": content(entry(0))}


def test_what_the_queue_has_seen_is_left_out(tmp_path: Path) -> None:
    summary = build(tmp_path, [[(0, 0, 10), (1, 0, 10), (1, 5, 5), (1, 5, 6)]])
    assert read_files(tmp_path) == {"queue/00000000000000000000": content(entry(0), entry(5, 6))}
    assert (summary.written, summary.left_out, summary.misplaced) == (2, 2, 0)


def test_a_queue_offset_below_is_left_out_and_one_above_is_misplaced(tmp_path: Path) -> None:
    summary = build(tmp_path, [[(3, 0, 10), (2, 10, 10), (9, 20, 10), (5, 30, 10)]])
    found = content(BLANK, BLANK, BLANK, entry(0), entry(20))
    assert read_files(tmp_path) == {
        "queue/00000000000000000000": found,
        "queue/00000000000000000100": content(entry(30)),
    }
    assert (summary.written, summary.left_out, summary.misplaced) == (3, 1, 1)


def test_queue_offset_0_is_appended_wherever_the_queue_stands(tmp_path: Path) -> None:
    """A topic that was deleted and made again: the rest of it is left out until it has caught up."""
    summary = build(tmp_path, [follow(0, 3), follow(0, 6, at=100)])
    places = (0, 10, 20, 100, 140)
    assert read_files(tmp_path) == {
        "queue/00000000000000000000": content(*map(entry, places)),
        "queue/00000000000000000100": content(entry(150)),
    }
    assert (summary.written, summary.left_out, summary.misplaced) == (6, 3, 1)


def test_an_entry_that_is_left_out_behind_a_full_file_still_makes_the_next(tmp_path: Path) -> None:
    build(tmp_path, [follow(0, 5), [(2, 100, 10)]])
    assert read_files(tmp_path)["queue/00000000000000000100"] == bytes(FILE)
    build(tmp_path / "seen", [follow(0, 5), [(5, 0, 10)]])
    assert len(read_files(tmp_path / "seen")) == 1


def test_the_file_size_is_rounded_up_to_whole_entries(tmp_path: Path) -> None:
    build(tmp_path, [follow(0, 6)], file_size=81)
    assert [len(data) for data in read_files(tmp_path).values()] == [100, 100]


def test_a_queue_without_entries_has_no_directory(tmp_path: Path) -> None:
    assert build(tmp_path, [[]]) == QueueSummary(0, 0, 0, 0, 0)
    assert not (tmp_path / "queue").exists()


def test_a_first_queue_offset_below_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QueueOffsetError, match="-3"):
        build(tmp_path, [[(-3, 0, 10)]])


def test_a_very_late_beginning_takes_no_more_than_its_file(tmp_path: Path) -> None:
    build(tmp_path, [follow(2**40 + 299_999, 2)], file_size=6_000_000)
    sizes = {name: len(data) for name, data in read_files(tmp_path).items()}
    base = (2**40 + 299_999) * 20 // 6_000_000 * 6_000_000
    assert (
        sizes == {f"queue/{base:020d}": 6_000_000, f"queue/{base + 6_000_000:020d}": 6_000_000} or len(sizes) == 1
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Wanted]:
    """Mostly one after the other, now and then anything."""
    history: list[Wanted] = []
    queue_offset = draw(st.integers(0, 17))
    at = 0
    for _ in range(draw(st.integers(0, 40))):
        kind = draw(st.integers(0, 9))
        if kind == 0:
            queue_offset = draw(st.integers(0, 40))
        size = draw(st.integers(1, 12))
        history.append((queue_offset, at, size))
        queue_offset += 1
        at += size if kind != 1 else draw(st.integers(-5, 5))
        at = max(at, 0)
    return history


@given(history=histories(), cuts=st.lists(st.integers(0, 40), max_size=5), runs=st.booleans())
def test_any_history_in_any_pieces_is_as_rocketmq_writes_it(
    tmp_path_factory: pytest.TempPathFactory, history: list[Wanted], cuts: list[int], runs: bool
) -> None:
    oracle = ConsumeQueue(FILE)
    for queue_offset, offset, size in history:
        oracle.put(offset, size, -7, queue_offset)
    directory = tmp_path_factory.mktemp("history")
    borders = [0, *sorted(min(cut, len(history)) for cut in cuts), len(history)]
    with ConsumeQueueFiles(directory / "queue", FILE) as files:
        for start, stop in pairwise(borders):
            for piece in _runs(history[start:stop]) if runs else [history[start:stop]]:
                offsets = np.array([queue_offset for queue_offset, _, _ in piece], np.int64)
                files.feed(packed(piece), int(offsets[0]) if runs else offsets)
        summary = files.close()
    expected = {f"queue/{base:020d}": bytes(data) for base, data in oracle.mapped.files.items()}
    assert read_files(directory) == expected
    assert summary.written + summary.left_out == len(history)


def _runs(history: Sequence[Wanted]) -> list[list[Wanted]]:
    """Parts in which entries follow one another, in the queue and in the log."""
    parts: list[list[Wanted]] = []
    for wanted in history:
        last = parts[-1][-1] if parts else None
        if last is not None and wanted[0] == last[0] + 1 and wanted[1] + wanted[2] > last[1] + last[2]:
            parts[-1].append(wanted)
        else:
            parts.append([wanted])
    return parts


def test_batches_are_appended_in_order_and_only_once(tmp_path: Path) -> None:
    def batch(offset: int, count: int) -> bytes:
        return struct.pack(">qiqqqhii", offset, 99, 5, 1_700_000_000_000, 1000, count, -1, 0)

    with BatchConsumeQueueFiles(tmp_path / "queue", 2 * 46) as files:
        files.feed(np.frombuffer(batch(0, 3) + batch(10, 1) + batch(10, 2), np.uint8))
        files.feed(np.frombuffer(batch(5, 1) + batch(20, 1), np.uint8))
        summary = files.close()
    assert read_files(tmp_path) == {
        "queue/00000000000000000000": batch(0, 3) + batch(10, 1),
        "queue/00000000000000000092": batch(20, 1) + bytes(46),
    }
    assert (summary.files, summary.written, summary.left_out) == (2, 3, 2)


def test_a_batch_file_size_without_whole_entries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is not a multiple of 46"):
        BatchConsumeQueueFiles(tmp_path / "queue", 100)
