"""Properties found in raw bytes, wherever they lie in the buffer: what one record's own decoder says."""

import numpy as np
import pytest

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.properties import Texts, find_property, parse_all
from commitlogfs.pipeline.arrays.raw_bytes import MARKS
from commitlogfs.pipeline.broker.dispatch_properties import NAMES, find_dispatch_properties
from commitlogfs.store.record import parse_properties

ALPHABET = [
    b"\x01",
    b"\x02",
    b"\x00",
    b"a",
    b"bc",
    b"KEYS",
    b"TAGS\x01",
    b"UNIQ_KEY\x01",
    b"\x7f",
    b"x" * 31,
    b"y" * 33,
]


def random_texts(seed: int, count: int) -> list[bytes]:
    chosen = np.random.default_rng(seed)
    lengths = chosen.integers(0, 24, count)
    return [b"".join(ALPHABET[index] for index in chosen.integers(0, len(ALPHABET), n)) for n in lengths]


def laid_out(texts: list[bytes], behind: int) -> tuple[Bytes, Longs, Longs]:
    """Texts one after the other with one byte between, and `behind` bytes after them."""
    data = np.frombuffer(b"\x01".join([b"", *texts]) + b"\x02" * behind, np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    return data, np.cumsum(lengths + 1) - lengths, lengths


def cut(texts: Texts) -> list[str]:
    raw = texts.data.tobytes()
    return [raw[begin:end].decode() for begin, end in zip(texts.offsets[:-1], texts.offsets[1:], strict=True)]


@pytest.mark.parametrize("behind", [0, 1, MARKS - 1, MARKS, 3 * MARKS])
@pytest.mark.parametrize("seed", range(8))
def test_all_of_many_records(seed: int, behind: int) -> None:
    texts = random_texts(seed, 300)
    data, starts, lengths = laid_out(texts, behind)
    found = parse_all(data, starts, lengths)
    names, values = cut(found.names), cut(found.values)
    for row, text in enumerate(texts):
        first, end = found.offsets[row], found.offsets[row + 1]
        assert dict(zip(names[first:end], values[first:end], strict=True)) == parse_properties(text), text
        assert len(set(names[first:end])) == end - first


@pytest.mark.parametrize("behind", [0, 1, MARKS - 1, MARKS, 3 * MARKS])
@pytest.mark.parametrize("seed", range(8))
def test_one_of_many_records(seed: int, behind: int) -> None:
    texts = random_texts(100 + seed, 300)
    data, starts, lengths = laid_out(texts, behind)
    of_dispatch = find_dispatch_properties(data, starts, lengths)
    for number, name in enumerate(NAMES):
        at, size = find_property(data, starts, lengths, name)
        for row, text in enumerate(texts):
            value = parse_properties(text).get(name.decode())
            assert (data[at[row] :][: size[row]].tobytes().decode() if size[row] >= 0 else None) == value, text
            assert of_dispatch.text(data, number, row) == (value or ""), text
            assert (of_dispatch.length[number, row] >= 0) == (value is not None)


def test_none_at_all() -> None:
    nothing = np.empty(0, np.int64)
    assert len(parse_all(np.empty(0, np.uint8), nothing, nothing).names.offsets) == 1
    one = np.zeros(1, np.int64)
    assert parse_all(np.empty(0, np.uint8), one, one).offsets.tolist() == [0, 0]
