from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlogfs.store.disks.losses import Loss
from commitlogfs.store.disks.membership import (
    LARGEST_DISK_NUMBER,
    Cordon,
    DiskNumber,
    Drain,
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


# --- one history of the list, or two ---------------------------------------------------------------------


def given_up(membership: Membership, number: int) -> Membership:
    return membership.giving_up(DiskNumber(number), Loss(DiskNumber(number), "/x", 1, ()), 0)


class OneHistory:
    """A pool whose list is changed by one daemon after the other. Of its disks, all, some or none record a list,
    and any of them late."""

    def __init__(self) -> None:
        self.present = Membership(
            tuple(Member(DiskNumber(n), f"id{n}", f"/data{n}") for n in (1, 2, 3)), 0, DiskNumber(3)
        )
        self.recorded = dict.fromkeys((1, 2, 3), self.present)
        """The lists on all disks there have ever been."""
        self.under_way: dict[int, Membership] = {}
        """Lists that disks are about to record: a call that hangs cannot be taken back."""

    def change(self, kind: str, number: int) -> None:
        if kind == "join":
            self.present = self.present.joined_by(f"id{self.present.last_number + 1}", "/x")
        elif kind == "cordon":
            self.present = self.present.cordoned(DiskNumber(number), Cordon(number))
        elif kind == "drain":
            self.present = self.present.draining(DiskNumber(number), Drain(number))
        elif kind == "leave":
            self.present = self.present.leaving(DiskNumber(number))
        elif kind == "stay":
            self.present = self.present.staying(DiskNumber(number))
        elif kind == "offline":
            self.present = self.present.released(DiskNumber(number), "/x", 1)
        elif kind == "online":
            self.present = self.present.taken_back({DiskNumber(number)})
        elif kind == "drop":
            member = self.present.member(DiskNumber(number))
            if member is not None and member.leaves:
                self.present = self.present.without(DiskNumber(number))
        elif kind in ("give up", "give up in vain") and self.present.member(DiskNumber(number)) is not None:
            self.give_up(number, in_vain=kind == "give up in vain")

    def give_up(self, number: int, *, in_vain: bool) -> None:
        former, self.present = self.present, given_up(self.present, number)
        if in_vain:
            for disk in self.recorded:
                self.begin_record(disk)
            self.present = former.instead_of(self.present)

    def begin_record(self, number: int) -> None:
        if self.present.member(DiskNumber(number)) is not None:
            self.under_way.setdefault(number, self.present)

    def end_record(self, number: int) -> None:
        membership = self.under_way.pop(number, None)
        if membership is not None:
            self.recorded[number] = membership

    def crash(self) -> None:
        """The next daemon knows what the disks record."""
        self.under_way.clear()
        self.present = max(self.recorded.values(), key=lambda membership: membership.generation)


CHANGES = ["join", "cordon", "drain", "leave", "stay", "offline", "online", "drop", "give up", "give up in vain"]


STEPS = [*CHANGES, "begin", "end", "end", "crash"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 5)), max_size=40))
def test_disks_that_lag_never_contradict_the_newest_list(steps):
    pool = OneHistory()
    for kind, number in steps:
        if kind == "begin":
            pool.begin_record(number)
        elif kind == "end":
            pool.end_record(number)
        elif kind == "crash":
            pool.crash()
        else:
            pool.change(kind, number)
        for recorded in pool.recorded.values():
            assert pool.present.may_follow(recorded)


@given(
    st.lists(st.tuples(st.sampled_from(["cordon", "drain", "join"]), st.integers(1, 3)), max_size=6),
    st.lists(st.tuples(st.sampled_from(["cordon", "drain", "join"]), st.integers(1, 3)), max_size=6),
)
def test_a_disk_that_was_given_up_shows_that_there_are_two_histories(given_up_by, own):
    """Disk 1 is given up while it is away, and the list is changed there, too."""
    one, other = OneHistory(), OneHistory()
    one.give_up(1, in_vain=False)
    for kind, number in given_up_by:
        one.change(kind, number)
    for kind, number in own:
        other.change(kind, number)
    earlier, newest = sorted((one.present, other.present), key=lambda membership: membership.generation)
    if newest is one.present and newest.may_follow(earlier):
        assert newest.member(DiskNumber(1)) is None
    else:
        assert not newest.may_follow(earlier)


def test_members_that_a_later_list_has_again_are_named():
    changed = FIRST.cordoned(DiskNumber(1), Cordon(1)).cordoned(DiskNumber(1), None)
    assert changed.returned_since(FIRST.without(DiskNumber(2))) == (FIRST.members[1],)
    assert changed.returned_since(FIRST) == ()
    assert changed.joined_by("c", "/data3").returned_since(FIRST) == ()


def test_a_change_in_vain_is_undone_by_the_next_generation():
    failed = given_up(FIRST, 2)
    undone = FIRST.instead_of(failed)
    assert undone.generation == 2
    assert undone.members == (FIRST.members[0], replace(FIRST.members[1], again_since=2))
    assert undone.may_follow(failed)
    assert not undone.may_follow(given_up(undone, 2))
    assert FIRST.instead_of(FIRST.cordoned(DiskNumber(2), Cordon(1))).members == FIRST.members
