import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.membership import (
    LARGEST_DISK_NUMBER,
    Cordon,
    DiskNumber,
    Member,
    Membership,
    Rebalance,
    RebalanceMode,
)

FIRST = Membership((Member(DiskNumber(1), "a", "/data1"), Member(DiskNumber(2), "b", "/data2")), 0, DiskNumber(2))


def test_a_disk_joins_under_the_next_number():
    joined = FIRST.joined_by("c", "/data3")
    assert joined.members == (*FIRST.members, Member(DiskNumber(3), "c", "/data3"))
    assert (joined.generation, joined.last_number) == (1, 3)
    assert joined.with_id("c") == joined.member(DiskNumber(3))
    assert joined.with_id("d") is None


def test_a_number_is_not_given_out_again():
    used = Membership(FIRST.members, 7, DiskNumber(9))
    assert used.joined_by("c", "/data3").last_number == 10


def test_numbers_end():
    with pytest.raises(ValueError, match="all 4095 disk numbers"):
        Membership(FIRST.members, 7, DiskNumber(LARGEST_DISK_NUMBER)).joined_by("c", "/data3")


def test_a_cordon_comes_and_goes():
    cordon = Cordon(1_700_000_000, "noisy")
    cordoned = FIRST.cordoned(DiskNumber(2), cordon)
    assert [member.cordon for member in cordoned.members] == [None, cordon]
    freed = cordoned.cordoned(DiskNumber(2), None)
    assert freed.members == FIRST.members
    assert freed.generation == 2


def test_a_disk_is_released_and_taken_back():
    released = FIRST.released(DiskNumber(2), "/mnt/data2", 1_700_000_000)
    assert [(member.path, member.offline_since_s) for member in released.members] == [
        ("/data1", None),
        ("/mnt/data2", 1_700_000_000),
    ]
    assert released.offline() == (released.members[1],)
    assert released.generation == 1
    back = released.taken_back({DiskNumber(2)})
    assert (back.offline(), back.generation) == ((), 2)


def test_a_leaving_disk_keeps_its_cordon_and_can_stay():
    cordoned = FIRST.cordoned(DiskNumber(2), Cordon(1))
    leaving = cordoned.leaving(DiskNumber(2))
    assert leaving.member(DiskNumber(2)) == Member(DiskNumber(2), "b", "/data2", Cordon(1), leaves=True)
    assert leaving.staying(DiskNumber(2)).members == cordoned.members


def test_a_change_of_its_cordon_does_not_keep_a_leaving_disk():
    """Its entry may be gone from the configuration already: the next daemon would miss it."""
    leaving = FIRST.leaving(DiskNumber(2))
    for cordon in (Cordon(1), None):
        changed = leaving.cordoned(DiskNumber(2), cordon).member(DiskNumber(2))
        assert changed == Member(DiskNumber(2), "b", "/data2", cordon, leaves=True)


def test_a_rebalance_comes_and_goes():
    rebalancing = FIRST.rebalancing(Rebalance(1_700_000_000))
    assert (rebalancing.generation, rebalancing.rebalance) == (
        1,
        Rebalance(1_700_000_000, RebalanceMode.PLACEMENT, 0),
    )
    assert rebalancing.joined_by("c", "/data3").rebalance == rebalancing.rebalance
    ended = rebalancing.rebalancing(None)
    assert (ended.generation, ended.rebalance, ended.members) == (2, None, FIRST.members)


def test_a_disk_that_has_left_leaves_its_number():
    rest = FIRST.without(DiskNumber(2))
    assert rest == Membership(FIRST.members[:1], 1, DiskNumber(2))
    assert rest.joined_by("c", "/data3").last_number == 3


@given(st.lists(st.sampled_from(["join", "cordon", "uncordon", "leave"]), max_size=20))
def test_every_change_makes_the_next_generation_and_keeps_the_order(changes):
    membership = FIRST
    for number, change in enumerate(changes, start=1):
        if change == "join":
            membership = membership.joined_by(f"id{number}", "/x")
        elif change == "leave":
            membership = membership.leaving(DiskNumber(1))
        else:
            membership = membership.cordoned(DiskNumber(1), Cordon(number) if change == "cordon" else None)
        assert membership.generation == number
    numbers = [member.number for member in membership.members]
    assert numbers == sorted(set(numbers))
    assert membership.last_number == max(numbers)
