"""Verdicts: what the two witnesses mean, and the form in the attribute."""

import json
import os
import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store import layout
from commitlogfs.store.scrub import verdict as verdicts
from commitlogfs.store.scrub.verdict import (
    Damage,
    Evidence,
    Kind,
    Message,
    Range,
    Verdict,
    combine,
    decide,
    format_verdict,
    limit_ranges,
    parse_verdict,
    whole_verdict,
)

SIZE, NOW_S = 1 << 20, 1_800_000_000
MESSAGE = Message(4096, "TopicTest", 3, 42)
DAMAGE = Damage(Range(4096, 5000), "the checksum of the message is wrong", MESSAGE)


def evidence(
    *,
    differs: bool = False,
    unreadable: tuple[Range, ...] = (),
    damages: tuple[Damage, ...] = (),
    has_end: bool = True,
) -> Evidence:
    return Evidence(differs, unreadable, damages, has_end, 900_000, SIZE)


def test_two_witnesses_make_one_verdict() -> None:
    assert decide(evidence(), NOW_S) is None
    assert decide(evidence(has_end=False), NOW_S) is None
    rotted = decide(evidence(differs=True, damages=(DAMAGE,)), NOW_S)
    assert rotted == Verdict(Kind.ROTTED, NOW_S, (Range(4096, 5000),), (MESSAGE,), 1)
    broken = decide(evidence(damages=(DAMAGE,)), NOW_S)
    assert broken is not None
    assert (broken.kind, broken.kind.is_mismatch) == (Kind.WRITTEN_BROKEN, False)
    header = decide(evidence(differs=True), NOW_S)
    assert header == Verdict(Kind.HEADER_OR_PADDING, NOW_S, (Range(0, SIZE),), is_located=False)
    unreadable = decide(evidence(differs=True, unreadable=(Range(8192, 12288),)), NOW_S)
    assert unreadable == Verdict(Kind.UNREADABLE, NOW_S, (Range(8192, 12288),))


def test_a_changed_segment_without_its_end_has_lost_messages() -> None:
    assert decide(evidence(differs=True, has_end=False), NOW_S) == Verdict(
        Kind.ROTTED, NOW_S, (Range(900_000, SIZE),)
    )


def test_a_damaged_blank_record_is_no_damaged_message() -> None:
    blank = Damage(Range(900_000, SIZE), "the blank record is damaged", is_blank=True)
    found = decide(evidence(differs=True, damages=(blank,), has_end=False), NOW_S)
    assert found == Verdict(Kind.HEADER_OR_PADDING, NOW_S, (Range(900_000, SIZE),))
    both = decide(evidence(differs=True, damages=(DAMAGE, blank), has_end=False), NOW_S)
    assert both is not None
    assert both.kind is Kind.ROTTED
    broken = decide(evidence(damages=(blank,), has_end=False), NOW_S)
    assert broken == Verdict(Kind.WRITTEN_BROKEN, NOW_S, (Range(900_000, SIZE),))


def test_what_was_found_before_stays() -> None:
    first = Verdict(Kind.ROTTED, 1, (Range(0, 10),), (Message(0, "a", 0, 1),), 1)
    second = Verdict(Kind.HEADER_OR_PADDING, 2, (Range(0, SIZE),), is_located=False)
    assert combine(None, first) == first
    assert combine(first, second) == first
    assert combine(second, first) == Verdict(Kind.ROTTED, 2, first.ranges, first.messages, 1)
    third = Verdict(Kind.UNREADABLE, 3, (Range(90, 99),), (Message(90, "b", 0, 1),), 1)
    both = combine(first, third)
    assert (both.kind, both.since_s, both.ranges) == (Kind.ROTTED, 1, (Range(0, 10), Range(90, 99)))
    assert (both.messages, both.message_count) == ((*first.messages, *third.messages), 2)
    assert combine(both, third) == both
    assert combine(whole_verdict(Kind.ROTTED, SIZE, 1), first) == first
    assert combine(whole_verdict(Kind.UNKNOWN, SIZE, 1), first) == first
    closer = combine(whole_verdict(Kind.ROTTED, SIZE, 1), second)
    assert (closer.kind, closer.since_s) == (Kind.HEADER_OR_PADDING, 1)


def test_what_rotted_is_not_written_broken_without_its_checksum() -> None:
    broken = Verdict(Kind.WRITTEN_BROKEN, 3, (Range(90, 99),), (Message(90, "b", 0, 1),), 1)
    for kind in (Kind.ROTTED, Kind.HEADER_OR_PADDING):
        both = combine(whole_verdict(kind, SIZE, 1), broken)
        assert both == Verdict(Kind.ROTTED, 1, broken.ranges, broken.messages, 1)
    for kind in (Kind.UNREADABLE, Kind.WRITE_LOST):
        assert combine(whole_verdict(kind, SIZE, 1), broken).kind is kind


@pytest.mark.parametrize("kind", [Kind.ROTTED, Kind.UNREADABLE, Kind.WRITE_LOST])
def test_what_was_sealed_broken_stays_known_beside_later_damage(kind: Kind) -> None:
    broken, later = Verdict(Kind.WRITTEN_BROKEN, 1, (Range(0, 10),)), Verdict(kind, 2, (Range(90, 99),))
    both = combine(broken, later)
    assert (both.kind, both.ranges, both.was_sealed_broken) == (kind, (Range(0, 10), Range(90, 99)), True)
    assert combine(both, later) == both
    assert parse_verdict(format_verdict(both)) == both
    assert not combine(later, broken).was_sealed_broken  # it may have been damaged before it lost its checksum
    assert combine(broken, broken) == broken


def test_only_the_present_checksum_shows_that_content_was_sealed_broken() -> None:
    later = Verdict(Kind.UNREADABLE, 1, (Range(90, 99),))
    for is_as_sealed in (False, True):
        broken = decide(replace(evidence(damages=(DAMAGE,)), is_as_sealed=is_as_sealed), NOW_S)
        assert broken is not None
        assert combine(later, broken).was_sealed_broken == is_as_sealed


def test_an_attribute_of_a_former_version_says_nothing_of_the_sealed_content() -> None:
    verdict = make_verdict([1], "TopicTest")
    assert b"sealed_broken" not in format_verdict(verdict)
    assert parse_verdict(format_verdict(verdict)) == verdict


def test_the_nearest_ranges_become_one() -> None:
    assert limit_ranges([Range(50, 60), Range(0, 10), Range(12, 20)], 2) == ((0, 20), (50, 60))
    assert limit_ranges([Range(0, 10), Range(5, 20), Range(20, 30)], 9) == ((0, 30),)


def make_verdict(numbers: list[int], topic: str) -> Verdict:
    ranges = tuple(Range(2 * n, 2 * n + 1) for n in sorted(set(numbers)))[: verdicts.MOST_RANGES] or (Range(0, 1),)
    messages = tuple(Message(n, topic, n % 8, 2**62 + n) for n in numbers)[: verdicts.MOST_MESSAGES]
    return Verdict(Kind.ROTTED, NOW_S, ranges, messages, len(numbers))


@given(st.lists(st.integers(0, 2**31), max_size=30), st.text(max_size=127))
def test_the_attribute_has_a_bounded_size(numbers: list[int], topic: str) -> None:
    verdict = make_verdict(numbers, topic)
    raw = format_verdict(verdict)
    assert len(raw) <= verdicts.MOST_BYTES + 5
    parsed = parse_verdict(raw)
    assert parsed is not None
    assert (parsed.kind, parsed.since_s, parsed.message_count) == (verdict.kind, verdict.since_s, len(numbers))
    assert parsed.messages == verdict.messages[: len(parsed.messages)]
    assert parsed.ranges[0].begin == verdict.ranges[0].begin
    assert parsed.ranges[-1].end == verdict.ranges[-1].end


def test_a_short_verdict_is_kept_as_it_is() -> None:
    verdict = make_verdict([1, 2, 3], "TopicTest")
    assert parse_verdict(format_verdict(verdict)) == verdict


@given(st.binary(max_size=200))
def test_a_damaged_value_counts_as_absent(raw: bytes) -> None:
    assert parse_verdict(raw) is None
    good = bytearray(format_verdict(make_verdict([1], "t")))
    good[len(raw) % len(good)] ^= 1
    assert parse_verdict(bytes(good)) is None


def with_head(body: bytes) -> bytes:
    """The attribute with this JSON, whose CRC is right."""
    return struct.pack("<BI", verdicts.FORMAT_VERSION, zlib.crc32(body)) + body


def document(**fields: Any) -> dict[str, Any]:
    plain = {"kind": "rotted", "since": 1, "ranges": [[0, 5]], "messages": [[0, "t", 1, 2]], "count": 1}
    return {**plain, "located": True, **fields}


def require_usable(verdict: Verdict) -> None:
    """All that is done with a verdict on a file."""
    assert verdict.ranges
    assert all(0 <= begin <= end for begin, end in verdict.ranges)
    raw = format_verdict(verdict)
    assert len(raw) <= verdicts.MOST_BYTES + 5
    assert parse_verdict(raw) is not None
    assert parse_verdict(format_verdict(combine(verdict, whole_verdict(Kind.ROTTED, SIZE, 1)))) is not None
    assert parse_verdict(format_verdict(combine(whole_verdict(Kind.UNREADABLE, SIZE, 1), verdict))) is not None
    datetime.fromtimestamp(verdict.since_s, UTC).isoformat()
    assert all(message.topic.encode().decode() == message.topic for message in verdict.messages)


ODD: list[tuple[str, Any]] = [
    ("kind", "other"),
    ("kind", []),
    ("since", float("inf")),
    ("since", float("nan")),
    ("since", 1.5),
    ("since", True),
    ("since", -1),
    ("since", 10**30),
    ("ranges", []),
    ("ranges", [[]]),
    ("ranges", ["ab"]),
    ("ranges", [[-1, 5]]),
    ("ranges", [[5, 0]]),
    ("ranges", [[0, 5], [3, 9]]),
    ("ranges", [[0, 1 << 63]]),
    ("ranges", [[0, float("inf")]]),
    ("ranges", [[False, True]]),
    ("ranges", [[2 * n, 2 * n + 1] for n in range(verdicts.MOST_RANGES + 1)]),
    ("messages", [[0, 1, 1, 2]]),
    ("messages", [[0, "\ud800", 1, 2]]),
    ("messages", [[0, "t", 1 << 31, 2]]),
    ("messages", [[0, "t", 1, 1 << 63]]),
    ("messages", [[-1, "t", 1, 2]]),
    ("messages", [[0, "t", 1]]),
    ("messages", [[0, "t", 1, 2]] * (verdicts.MOST_MESSAGES + 1)),
    ("count", 0),
    ("count", "1"),
    ("count", 1 << 63),
    ("located", 1),
    ("located", "yes"),
    ("sealed_broken", 1),
    ("sealed_broken", None),
]


@pytest.mark.parametrize(("field", "value"), ODD)
def test_an_odd_field_counts_as_absent(field: str, value: Any) -> None:
    assert parse_verdict(with_head(json.dumps(document()).encode())) is not None
    assert parse_verdict(with_head(json.dumps(document(**{field: value})).encode())) is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1e999", b'"kind"', b"null", b"[" * 100_000, b'{"since":' + b"9" * 5000]
)
def test_another_document_counts_as_absent(body: bytes) -> None:
    assert parse_verdict(with_head(body)) is None


NUMBERS = st.integers() | st.integers(0, 99) | st.sampled_from([10**400, 1 << 63, (1 << 63) - 1, 1 << 37])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=9) | st.sampled_from(["\ud800", *Kind]),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(sorted(document()))


@given(st.dictionaries(FIELDS, VALUES, max_size=3), st.sets(FIELDS, max_size=1))
def test_any_document_is_a_usable_verdict_or_none(fields: dict[str, Any], absent: set[str]) -> None:
    found = {name: value for name, value in document(**fields).items() if name not in absent}
    verdict = parse_verdict(with_head(json.dumps(found, default=lambda kind: kind.value).encode()))
    if verdict is not None:
        require_usable(verdict)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4)
)
def test_any_numbers_are_a_usable_verdict_or_none(
    ranges: list[tuple[int, int]], messages: list[tuple[int, int, int]]
) -> None:
    named = [(at, "t", queue, offset) for at, queue, offset in messages]
    verdict = parse_verdict(
        with_head(json.dumps(document(ranges=ranges, messages=named, count=len(named))).encode())
    )
    if verdict is not None:
        require_usable(verdict)


@given(st.lists(st.tuples(st.integers(0), st.binary(max_size=4), st.integers(0, 4)), min_size=1, max_size=5))
def test_any_changed_bytes_are_a_usable_verdict_or_none(changes: list[tuple[int, bytes, int]]) -> None:
    body = bytearray(format_verdict(make_verdict([1, 2, 3], "TopicTest"))[5:])
    for place, new, removed in changes:
        at = place % (len(body) + 1)
        body[at : at + removed] = new
    verdict = parse_verdict(with_head(bytes(body)))
    if verdict is not None:
        require_usable(verdict)


def test_the_records_of_a_disk_are_found(workdir: os.PathLike[str]) -> None:
    from commitlogfs.store.scrub.recorded import find_recorded, remove_verdict, write_verdict

    names = [b"one", b"two"]
    dirfd = os.open(workdir, os.O_RDONLY)
    try:
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=dirfd))
        verdict = make_verdict([1, 2], "TopicTest")
        ino = os.stat(b"two", dir_fd=dirfd).st_ino
        write_verdict(dirfd, b"two", ino, verdict)
        found, unread = find_recorded(dirfd, [*names, b"absent"])
        assert ([(one.name, one.verdict) for one in found], unread) == ([(b"two", verdict)], [])
        for _ in range(2):
            remove_verdict(dirfd, b"two", ino, binds_checksum=True)
        assert find_recorded(dirfd, names) == ([], [])
        os.setxattr(f"/proc/self/fd/{dirfd}/one", layout.XATTR_UNREADABLE, b"[[0, 4096]]")
        (one,), unread = find_recorded(dirfd, names)
        assert (one.name, one.verdict, one.unreadable.ranges, unread) == (b"one", None, [(0, 4096)], [])
    finally:
        os.close(dirfd)
