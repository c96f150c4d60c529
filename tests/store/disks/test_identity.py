import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import open_disk

from commitlogfs.store import layout
from commitlogfs.store.disks.identity import (
    LARGEST_IDENTITY_BYTES,
    DiskIdentity,
    RootAttributes,
    format_identity,
    format_newest,
    format_root,
    parse_identity,
    read_identity,
    read_newest,
    read_root,
    require_recordable,
)
from commitlogfs.store.disks.membership import (
    LARGEST_DISK_NUMBER,
    Cordon,
    DiskNumber,
    Member,
    Membership,
    Rebalance,
    RebalanceMode,
)
from commitlogfs.store.errors import PoolError
from commitlogfs.store.segment import BaseOffset

DEFAULT = RootAttributes(0o700, 1, 2)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def identities(draw):
    numbers = draw(st.lists(st.integers(1, LARGEST_DISK_NUMBER), min_size=1, max_size=5, unique=True))
    generation = draw(st.integers(0, 2**40))
    cordons = st.none() | st.builds(Cordon, st.integers(0, 2**40), texts) if generation else st.none()
    leaves = st.booleans() if generation else st.just(False)
    offline = st.none() | st.integers(0, 2**40) if generation else st.none()
    members = tuple(
        Member(
            DiskNumber(number),
            f"id{number}",
            draw(texts),
            draw(cordons),
            draw(leaves),
            offline_since_s=draw(offline),
            again_since=draw(st.integers(0, 2**40)) if generation else 0,
        )
        for number in numbers
    )
    last = draw(st.integers(max(numbers), LARGEST_DISK_NUMBER)) if generation else max(numbers)
    own = draw(st.sampled_from(members))
    rebalances = st.none() | st.builds(
        Rebalance, st.integers(0, 2**40), st.sampled_from(RebalanceMode), st.integers(0, 2**40)
    )
    rebalance = draw(rebalances) if generation else None
    removed_before = draw(st.integers(0, 2**62)) if generation else 0
    membership = Membership(members, generation, DiskNumber(last), (), rebalance, removed_before)
    return DiskIdentity(draw(texts), own.disk_id, own.number, draw(st.integers(1, 2**31)), membership)


def example() -> DiskIdentity:
    members = (Member(DiskNumber(1), "a", "/data1"), Member(DiskNumber(2), "b", "/data2"))
    return DiskIdentity("pool", "b", DiskNumber(2), 4096, Membership(members, last_number=DiskNumber(2)))


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


@given(
    st.sampled_from(
        [
            *("number", "segment_size", "members", "version", "generation"),
            *("last_number", "cordons", "rebalance", "removed_before", "offline"),
        ]
    ),
    json_values,
)
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
        assert any(
            m.number == identity.number and m.disk_id == identity.disk_id for m in identity.membership.members
        )


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


def test_an_identity_without_generations_is_generation_0():
    """As every version wrote it before members could change."""
    raw = format_identity(example())
    assert "generation" not in json.loads(raw)
    assert parse_identity(raw, "/data1").membership == Membership(
        example().membership.members, generation=0, last_number=DiskNumber(2)
    )


def test_former_versions_find_the_members_of_any_generation():
    """They read three fields of each member."""
    cordoned = example().membership.cordoned(DiskNumber(1), Cordon(1, "old")).joined_by("c", "/data3")
    document = json.loads(format_identity(replace(example(), membership=cordoned)))
    assert document["members"] == [[1, "a", "/data1"], [2, "b", "/data2"], [3, "c", "/data3"]]


def test_a_list_of_a_former_version_has_no_rebalance():
    rebalancing = example().membership.rebalancing(Rebalance(1, RebalanceMode.COPY, 5))
    document = json.loads(format_identity(replace(example(), membership=rebalancing)))
    assert document.pop("rebalance") == [1, "copy", 5]
    assert parse_identity(json.dumps(document).encode(), "/data1").membership == replace(
        rebalancing, rebalance=None
    )
    ended = rebalancing.rebalancing(None)
    assert "rebalance" not in json.loads(format_identity(replace(example(), membership=ended)))


def test_too_many_members_for_the_attributes_of_a_directory_are_refused():
    membership = example().membership
    while True:
        identity = replace(example(), membership=membership)
        if len(format_identity(identity)) > LARGEST_IDENTITY_BYTES:
            break
        require_recordable(identity, 4096)
        membership = membership.joined_by("c" * 36, "/a/directory")
    with pytest.raises(PoolError, match=r"^the list of members would have 3,[67]\d\d bytes, and .* shorter paths"):
        require_recordable(identity, 4096)


def test_small_blocks_of_ext4_have_room_for_few_members():
    membership = example().membership
    for _ in range(12):
        membership = membership.joined_by("c" * 36, "/a/directory")
    with pytest.raises(PoolError, match=r"and a disk can record 848; .*`mkfs.ext4 -b 4096`"):
        require_recordable(replace(example(), membership=membership), 1024)


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
