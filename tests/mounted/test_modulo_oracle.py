"""Our `modulo` against RocketMQ's own MultiPathMappedFileQueue, from the jar of 5.5.0."""

import random
import shutil
from dataclasses import dataclass
from pathlib import PurePath

import pytest

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq.multipath import MultiPathOracle
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.eligibility import DiskView, evaluate
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.placement.base import Candidate, PlacementRequest
from commitlogfs.store.placement.modulo import Modulo
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.thresholds import Thresholds

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

CASES = 400
GIB = 1 << 30
WORDS = [
    "data",
    "Data",
    "d",
    "d1",
    "d10",
    "d2",
    "disk-a",
    "disk_a",
    "zebra",
    "é",
    "ÿ",
    "日本",
    "ﬀ",
    "𝒳",  # noqa: RUF001
    "a b",
    "~x",
]
"""Case, digits, prefixes of each other, and characters whose UTF-16 order is not their code point order."""


@dataclass(frozen=True)
class Case:
    segment_size: int
    paths: tuple[str, ...]
    readonly: frozenset[str]
    full: frozenset[str]
    offset: int


def random_case(rng: random.Random) -> Case:
    size = rng.choice([1 << 20, GIB, 4096, 100 * 4096])
    count = rng.randint(1, 9)
    paths: set[str] = set()
    while len(paths) < count:
        paths.add("/" + "/".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3))))
    shuffled = rng.sample(sorted(paths), count)
    # One at least stays writable: with none RocketMQ divides by zero, we have no candidate.
    readonly = frozenset(rng.sample(shuffled, rng.randint(0, count - 1)))
    full = frozenset(rng.sample(shuffled, rng.randint(0, count)))
    return Case(size, tuple(shuffled), readonly, full, rng.randrange(0, 2**62 // size) * size)


def our_order(case: Case, offset: int) -> list[str]:
    """As a mounted pool decides it: eligibility first, with the fall-back where all are full, then the policy."""
    gone, plenty = DiskUsage(1000 * GIB, 130 * GIB, 130 * GIB), DiskUsage(1000 * GIB, 900 * GIB, 900 * GIB)
    numbers = {DiskNumber(number): path for number, path in enumerate(case.paths, start=1)}
    views = tuple(
        DiskView(
            number,
            DiskState.RO if path in case.readonly else DiskState.RW,
            gone if path in case.full else plenty,
            Thresholds(),
        )
        for number, path in numbers.items()
    )
    eligible = evaluate(views, case.segment_size, frozenset()).eligible
    candidates = tuple(Candidate(number, "", numbers[number], 1.0, GIB) for number in eligible)
    request = PlacementRequest(BaseOffset(offset), case.segment_size, None, tuple(numbers))
    return [numbers[number] for number in Modulo().rank(request, candidates)]


def test_modulo_chooses_as_rocketmq_does() -> None:
    rng = random.Random(20260703)  # noqa: S311 - the same cases in every run
    fallbacks = 0
    with MultiPathOracle(rocketmq.fetch("5.5.0")) as oracle:
        for number in range(CASES):
            case = random_case(rng)
            theirs = oracle.choose(
                case.paths,
                case.offset,
                segment_size_bytes=case.segment_size,
                readonly=case.readonly,
                full=case.full,
            )
            here, ahead = case.offset, case.offset + case.segment_size
            ours = [
                PurePath(our_order(case, offset)[0], format_segment_name(offset).decode())
                for offset in (here, ahead)
            ]
            assert [PurePath(theirs.next_file), PurePath(theirs.next_next_file)] == ours, f"{number}: {case}"
            fallbacks += case.full >= set(case.paths) - case.readonly
    assert fallbacks > CASES // 20, "the cases hardly ever fall back: they prove less than they say"
