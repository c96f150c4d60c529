import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import open_disk

from commitlogfs.store import layout
from commitlogfs.store.disks.identity import (
    LARGEST_DISK_NUMBER,
    DiskIdentity,
    DiskNumber,
    Member,
    RootAttributes,
    format_identity,
    format_newest,
    format_root,
    parse_identity,
    read_identity,
    read_newest,
    read_root,
)
from commitlogfs.store.errors import PoolError
from commitlogfs.store.segment import BaseOffset

DEFAULT = RootAttributes(0o700, 1, 2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def identities(draw):
    numbers = draw(st.lists(st.integers(1, LARGEST_DISK_NUMBER), min_size=1, max_size=5, unique=True))
    members = tuple(Member(DiskNumber(number), f"id{number}", draw(texts)) for number in numbers)
    own = draw(st.sampled_from(members))
    return DiskIdentity(draw(texts), own.disk_id, own.number, draw(st.integers(1, 2**31)), members)


def example() -> DiskIdentity:
    members = (Member(DiskNumber(1), "a", "/data1"), Member(DiskNumber(2), "b", "/data2"))
    return DiskIdentity("pool", "b", DiskNumber(2), 4096, members)


def changed(**changes: object) -> bytes:
    return json.dumps({**json.loads(format_identity(example())), **changes}).encode()


@given(identities())
def test_identity_survives_the_round_trip(identity):
    raw = format_identity(identity)
    assert parse_identity(raw, "/data1") == identity
    assert len(raw) < 4000, "an attribute must fit one block of ext4"


@given(st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode)))
def test_anything_else_is_damaged_and_says_where(raw):
    with pytest.raises(PoolError, match=r"^/data1: .*damaged"):
        parse_identity(raw, "/data1")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(st.sampled_from(["number", "segment_size", "members", "version"]), json_values)
def test_a_field_of_another_kind_is_refused_in_one_line(key, value):
    raw = changed(**{key: value})
    identity, refusal = None, ""
    try:
        identity = parse_identity(raw, "/data1")
    except PoolError as error:
        refusal = str(error)
    if identity is None:
        assert refusal.startswith("/data1: ")
        assert "\n" not in refusal
    else:
        assert 1 <= identity.number <= LARGEST_DISK_NUMBER
        assert identity.segment_size > 0
        assert any(m.number == identity.number and m.disk_id == identity.disk_id for m in identity.members)


@pytest.mark.parametrize(
    "raw",
    [
        changed(number=0),
        changed(number=-1),
        changed(number=LARGEST_DISK_NUMBER + 1),
        changed(number=1),  # the other disk's number
        changed(disk="c"),
        changed(segment_size=0),
        changed(segment_size=-4096),
        changed(members=[]),
        changed(members=[[2, "b"]]),
        changed(members=[[2, "a", "/data1"], [2, "b", "/data2"]]),
        changed(number="two"),
        format_identity(example()).replace(b'"number":2', b'"number":1e999'),
        format_identity(example()).replace(b'"number":2', b'"number":NaN'),
        format_identity(example())[:-1],
        b"[" * 20_000,
        b"",
        b"null",
        b"\xff\xfe",
    ],
)
def test_what_cannot_be_true_is_damaged(raw):
    with pytest.raises(PoolError, match="damaged"):
        parse_identity(raw, "/data1")


@pytest.mark.parametrize("key", ["version", "pool", "disk", "number", "segment_size", "members"])
def test_a_missing_field_is_damage(key):
    document = json.loads(format_identity(example()))
    del document[key]
    with pytest.raises(PoolError, match="damaged"):
        parse_identity(json.dumps(document).encode(), "/data1")


def test_a_later_version_asks_for_the_newer_program():
    with pytest.raises(PoolError, match=r"^/data1: has format version 2, .* use the newer commitlogfs$"):
        parse_identity(changed(version=2, number="whatever that version keeps there"), "/data1")


def test_a_directory_without_identity_has_none(workdir):
    with open_disk(workdir) as disk:
        assert read_identity(disk.dirfd, str(workdir)) is None
        assert read_newest(disk.dirfd) is None
        assert read_root(disk.dirfd, DEFAULT) == DEFAULT


def test_what_was_written_is_read(workdir):
    with open_disk(workdir) as disk:
        os.setxattr(disk.dirfd, layout.XATTR_IDENTITY, format_identity(example()))
        os.setxattr(disk.dirfd, layout.XATTR_NEWEST, format_newest(BaseOffset(81920)))
        os.setxattr(disk.dirfd, layout.XATTR_ROOT, format_root(RootAttributes(0o750, 65534, 7)))
        assert read_identity(disk.dirfd, "x") == example()
        assert read_newest(disk.dirfd) == 81920
        assert read_root(disk.dirfd, DEFAULT) == RootAttributes(0o750, 65534, 7)
        os.setxattr(disk.dirfd, layout.XATTR_NEWEST, format_newest(None))
        assert read_newest(disk.dirfd) is None


@pytest.mark.parametrize("raw", [b"x", b"755", b"755 0", b"999 0 0", b"755 a b", b"755 0 0 0", b"\xff 0 0"])
def test_damaged_root_attributes_count_as_absent(workdir, raw):
    with open_disk(workdir) as disk:
        os.setxattr(disk.dirfd, layout.XATTR_ROOT, raw)
        assert read_root(disk.dirfd, DEFAULT) == DEFAULT
