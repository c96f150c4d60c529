"""The long proof of the scrub: each of many damages at random places is found, with its verdict and message."""

import random
from collections.abc import Callable

import pytest
from support import scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.pools import MIB, PoolMount
from support.records import make_sealed
from support.scrubs import Placed, records_of, scrub

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.soak]

FLIPS, BLOCKS = 1000, 100
ROUND = 100
"""Segments that are damaged at a time, one place in each."""
BLOCK = 4096


def test_all_damages_are_found_and_named(make_pool: Callable[..., PoolMount]) -> None:
    chance = random.Random(16)  # noqa: S311
    pool = make_pool(3)
    pool.start()
    scrubs.fill(pool, range(ROUND + NEWEST))
    await_checksums(pool, ROUND)
    assert scrub(pool) == {}
    kinds = ["flip"] * FLIPS + ["block"] * BLOCKS
    chance.shuffle(kinds)
    for first in range(0, len(kinds), ROUND):
        contents: dict[int, bytes] = {}
        expected: dict[str, Placed | None] = {}
        for index, kind in enumerate(kinds[first : first + ROUND]):
            content = make_sealed(index * MIB, MIB)
            contents[index] = content
            records = records_of(content, index * MIB)
            if kind == "flip":
                position, length = chance.randrange(MIB), 1
                new = bytes([content[position] ^ 1 << chance.randrange(8)])
            else:  # what is zeros already is no damage
                position, length = chance.randrange(records[-1].end // BLOCK) * BLOCK, BLOCK
                new = bytes(BLOCK)
            scrubs.damage(backing(pool, index), position, new)
            hit = [one for one in records if one.position < position + length and one.end > position]
            expected[pool.path(index).name] = hit[0] if kind == "block" or _is_checked(hit, position) else None
        found = scrub(pool)
        assert set(found) == set(expected)
        for index, name in enumerate(expected):
            _require_right(found[name], index * MIB, expected[name])
        for index, content in contents.items():
            scrubs.damage(backing(pool, index), 0, content)
        assert pool.cli("scrub", "clear", pool.name).status == 0
        assert scrub(pool) == {}


def _is_checked(hit: list[Placed], position: int) -> bool:
    """Whether the byte belongs to the chain of records, or to a body."""
    if not hit:
        return False
    at, record = position - hit[0].position, hit[0].record
    after_body = 88 + len(record.body)
    lengths = {after_body, after_body + 1 + len(record.topic), after_body + 2 + len(record.topic)}
    return at in {*range(12), *range(28, 36)} or 84 <= at < after_body or at in lengths


def _require_right(found: dict[str, object], base: int, placed: Placed | None) -> None:
    if placed is None:  # not even the record is known, except where the hosts have another length
        assert found["kind"] in ("header-or-padding", "rotted"), found
        return
    assert found["kind"] == "rotted", (found, placed)
    ranges = found["ranges"]
    assert isinstance(ranges, list)
    # A block that begins in the properties of a record leaves it right, as far as RocketMQ can tell.
    assert base + placed.position <= ranges[0][0] <= base + placed.end, (found, placed)
    if ranges[0][0] == base + placed.position and ranges[0][1] == base + placed.end:
        messages = found["messages"]
        assert isinstance(messages, list)
        assert messages[0]["queue_offset"] == placed.record.queue_offset, (found, placed)
        assert messages[0]["topic"] == placed.record.topic, (found, placed)
