"""The list of members without a disk that is given up."""

from commitlogfs.store.disks.giving_up import plan_giving_up
from commitlogfs.store.disks.losses import Loss, Run
from commitlogfs.store.disks.membership import DiskNumber, Member, Membership
from commitlogfs.store.segment import BaseOffset

SIZE = 4096
MEMBERS = tuple(Member(DiskNumber(number), f"id{number}", f"/data{number}") for number in (1, 2, 3))


def others(*indexes: int) -> list[BaseOffset]:
    return [BaseOffset(index * SIZE) for index in indexes]


def test_what_no_other_disk_holds_is_an_accepted_loss():
    plan = plan_giving_up(Membership(MEMBERS, 4), MEMBERS[1], others(0, 2, 3, 5), None, SIZE, 7)
    assert plan.lost == ((SIZE, 2 * SIZE), (4 * SIZE, 5 * SIZE))
    assert plan.membership.members == (MEMBERS[0], MEMBERS[2])
    assert plan.membership.losses == (Loss(2, "/data2", 7, (Run(1, 1, 3, 2),)),)


def test_losses_become_spans_if_the_disks_cannot_record_them_otherwise():
    former = Loss(4, "/data4", 6, (Run(1, 1, 2, 2), Run(10, 2, 5, 3)))
    membership = Membership(MEMBERS, 4, losses=(former,))
    plan = plan_giving_up(
        membership,
        MEMBERS[1],
        others(0, 2, 3, 5),
        None,
        SIZE,
        7,
        is_recordable=lambda one: not one.losses[0].runs[1:],
    )
    assert plan.membership.losses == (
        Loss(4, "/data4", 6, (Run(1, 21, 21, 1),)),
        Loss(2, "/data2", 7, (Run(1, 4, 4, 1),)),
    )
    assert plan.lost == ((SIZE, 2 * SIZE), (4 * SIZE, 5 * SIZE))
