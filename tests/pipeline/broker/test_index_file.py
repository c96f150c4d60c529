"""Index files byte for byte as RocketMQ's code makes them, and each key in the file that it belongs to."""

from datetime import UTC, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rocketmq_store import IndexFile, java_hash

from commitlogfs.pipeline.broker.index_file import IndexFileWriter, Share, file_names, pack_keys, plan_files

MS = 1_700_000_000_000
SLOTS, CAPACITY = 7, 12

Key = tuple[str, int, int]
"""Text, log offset, store time."""


def build(path: Path, keys: list[Key], before: tuple[int, int] | None = None, pieces: int = 1) -> bytes:
    with IndexFileWriter(path, SLOTS, CAPACITY, before) as writer:
        for start in range(0, len(keys), max(1, len(keys) // pieces)):
            for block in pack_keys(*columns(keys[start : start + max(1, len(keys) // pieces)])):
                writer.feed(block)
        writer.close()
    return path.read_bytes()


def columns(keys: list[Key]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hashes = np.array([java_hash(text) for text, _, _ in keys], np.int32)
    return hashes, np.array([o for _, o, _ in keys], np.int64), np.array([ms for _, _, ms in keys], np.int64)


def expected(keys: list[Key], before: tuple[int, int] = (0, 0)) -> bytes:
    file = IndexFile(SLOTS, CAPACITY, *before)
    for text, offset, ms in keys:
        file.put(text, offset, ms)
    return file.content()


texts = st.one_of(st.text(max_size=5), st.sampled_from(["polygenelubricants", "a", "b"]))  # the first: MIN_VALUE
times = st.one_of(st.integers(MS, MS + 10**7), st.integers(-5, 5), st.integers(0, 2**62))


@given(
    texts=st.lists(texts, min_size=1, max_size=CAPACITY - 1),
    data=st.data(),
    before=st.sampled_from([None, (100, MS - 12_345), (100, 0), (0, MS)]),
    pieces=st.integers(1, 3),
)
def test_any_keys_are_as_rocketmq_writes_them(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    data: st.DataObject,
    before: tuple[int, int] | None,
    pieces: int,
) -> None:
    keys = []
    offset = 1000
    for text in texts:
        keys.append((text, offset, data.draw(times)))
        offset += data.draw(st.sampled_from([0, 1, 300, 2**33]))
    found = build(tmp_path_factory.mktemp("index") / "file", keys, before, pieces)
    assert found == expected(keys, before or (0, 0))


def test_the_hash_that_has_no_positive_becomes_0(tmp_path: Path) -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    found = build(tmp_path / "file", [("polygenelubricants", 5, MS)])
    assert found[40 + 4 * SLOTS + 20 :][:4] == bytes(4)


def test_a_file_without_keys_shows_the_end_of_the_one_before_it(tmp_path: Path) -> None:
    assert build(tmp_path / "file", [], (777, MS)) == expected([], (777, MS))


def test_more_keys_than_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="12 keys"):
        build(tmp_path / "file", [("k", i, MS) for i in range(CAPACITY)])


def test_blocks_hold_what_their_numbers_can_reach() -> None:
    keys: list[Key] = [("a", 0, MS), ("b", 2**32 - 1, MS), ("c", 2**32, MS), ("d", 2**32, MS - 2**31)]
    keys += [("e", 2**32 + 1, MS + 2**31)]
    blocks = list(pack_keys(*columns(keys)))
    assert [block.keys.size for block in blocks] == [2, 2, 1]
    found = [
        (block.base_offset + int(key["offset"]), block.base_ms + int(key["time"]))
        for block in blocks
        for key in block.keys
    ]
    assert found == [(offset, ms) for _, offset, ms in keys]


@given(counts=st.lists(st.integers(0, 9), max_size=30), capacity=st.integers(2, 9))
def test_every_key_is_in_the_file_that_its_number_tells(counts: list[int], capacity: int) -> None:
    plan = plan_files(counts, capacity)
    numbered = [(block, at) for block, count in enumerate(counts) for at in range(count)]
    per_file = capacity - 1
    files: dict[int, list[tuple[int, int]]] = {}
    before: dict[int, tuple[int, int]] = {}
    for share in plan:
        if share.before:
            assert share.stop == share.start + 1
            assert share.file not in files, "comes first"
            before[share.file] = (share.block, share.start)
        else:
            files.setdefault(share.file, []).extend((share.block, at) for at in range(share.start, share.stop))
    assert [files[number] for number in range(len(files))] == [
        numbered[start : start + per_file] for start in range(0, len(numbered), per_file)
    ]
    assert before == {number: files[number - 1][-1] for number in range(1, len(files))}


def test_a_plan_by_hand() -> None:
    assert plan_files([3, 0, 5], 5) == [
        Share(0, 0, 0, 3, before=False),
        Share(0, 2, 0, 1, before=False),
        Share(1, 2, 0, 1, before=True),
        Share(1, 2, 1, 5, before=False),
    ]
    assert plan_files([], 5) == []


def test_names_are_the_times_of_the_first_entries_and_rise() -> None:
    second = 1_700_000_000_456
    assert file_names([second], UTC) == ["20231114221320456"]
    assert file_names([second, second, second + 1, second - 999_999], UTC) == [
        "20231114221320456",
        "20231114221320457",
        "20231114221320458",
        "20231114221320459",
    ]
    assert file_names([0, -5], UTC) == ["19700101000000000", "19700101000000001"]
    assert file_names([second], timezone(timedelta(hours=-8))) == ["20231114141320456"]


def test_a_store_time_beyond_the_calendar_has_a_name_and_those_behind_it_rise() -> None:
    for zone in (UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12)), None):
        names = file_names([2**60, 300_000_000_000_000, 2**63 - 1, MS, -(2**63)], zone)
        assert names == sorted(set(names))
        assert all(len(name) == 17 and name.isdigit() for name in names)
    assert file_names([2**60, MS], UTC) == ["99990101000000000", "99990101000000001"]
    assert file_names([-(2**63)], timezone(timedelta(hours=-8))) == ["19691231160000000"]
