"""The long proof of the scrub: each of many damages at random places is found, with its verdict and message."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


SYS_FLAG_AT, BODY_AT = 36, 88
"""Positions in a record. The flags say how long the hosts are; queue and log offset are before them."""


@dataclass(frozen=True)
class Damage:
    """A place that was damaged."""

    position: int
    content: bytes
    record: Placed | None
    """The first record that it is in; None for the end of the segment."""

    @property
    def is_block(self) -> bool:
        return len(self.content) == BLOCK

    @property
    def at(self) -> int:
        """Position in the record; -1 without one."""
        return -1 if self.record is None else self.position - self.record.position

    def is_checked(self) -> bool:
        """Whether a byte belongs to the chain of records, or to a body."""
        if self.record is None:
            return False
        after_body = BODY_AT + len(self.record.record.body)
        lengths = {after_body, after_body + 1 + len(self.record.record.topic)}
        lengths.add(max(lengths) + 1)
        return self.at in {*range(12), *range(28, 36), *lengths} or 84 <= self.at < after_body


def _choose(chance: random.Random, content: bytes, base: int, *, is_block: bool) -> Damage:
    records = records_of(content, base)
    if is_block:  # what is zeros already is no damage
        position, new = chance.randrange(records[-1].end // BLOCK) * BLOCK, bytes(BLOCK)
    else:
        position = chance.randrange(MIB)
        new = bytes([content[position] ^ 1 << chance.randrange(8)])
    hit = [one for one in records if one.position < position + len(new) and one.end > position]
    return Damage(position, new, hit[0] if hit else None)


def test_all_damages_are_found_and_named(make_pool: Callable[..., PoolMount]) -> None:
    chance = random.Random(16)  # noqa: S311
    pool = make_pool(3)
    pool.start()
    scrubs.fill(pool, range(ROUND + NEWEST))
    await_checksums(pool, ROUND)
    assert scrub(pool) == {}
    are_blocks = [False] * FLIPS + [True] * BLOCKS
    chance.shuffle(are_blocks)
    for first in range(0, len(are_blocks), ROUND):
        chosen = dict[str, tuple[int, Damage]]()
        contents = [make_sealed(index * MIB, MIB) for index in range(ROUND)]
        for index, is_block in enumerate(are_blocks[first : first + ROUND]):
            damage = _choose(chance, contents[index], index * MIB, is_block=is_block)
            scrubs.damage(backing(pool, index), damage.position, damage.content)
            chosen[pool.path(index).name] = index * MIB, damage
        found = scrub(pool)
        assert found.keys() == chosen.keys()
        for name, (base, damage) in chosen.items():
            _require_right(found[name], base, damage)
        for index, content in enumerate(contents):
            scrubs.damage(backing(pool, index), 0, content)
        assert pool.cli("scrub", "clear", pool.name).status == 0
        assert scrub(pool) == {}


def _require_right(found: dict[str, Any], base: int, damage: Damage) -> None:
    """The verdict has the kind of the damage, its place, and its message as far as the record still tells."""
    placed = damage.record
    if placed is None or not (damage.is_block or damage.is_checked()):
        kinds = {"header-or-padding"} | ({"rotted"} if 0 <= damage.at - SYS_FLAG_AT < 4 else set())
        assert found["kind"] in kinds, (found, damage)
        return
    assert found["kind"] == "rotted", (found, damage)
    begin, end = found["ranges"][0]
    if damage.is_block and begin == base + placed.end:
        return  # it begins in the properties of a record, and leaves that right, as far as RocketMQ can tell
    assert begin == base + placed.position, (found, damage)
    assert damage.is_block or end == base + placed.end, (found, damage)
    if damage.is_block and damage.at < SYS_FLAG_AT:
        return
    message, record = found["messages"][0], placed.record
    named = (message["log_offset"], message["queue_id"], message["queue_offset"])
    assert named == (begin, record.queue_id, record.queue_offset), (found, damage)
    assert message["topic"] == record.topic or (damage.is_block and message["topic"] is None), (found, damage)
