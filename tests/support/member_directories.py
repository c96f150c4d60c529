"""The directories of an unmounted pool, with any lists of members recorded on them."""

import os
from collections.abc import Set
from contextlib import ExitStack
from pathlib import Path

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import DiskIdentity, Joining, RootAttributes
from commitlogfs.store.disks.membership import DiskNumber, Membership
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.open import Pool, open_pool
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
NAME = f"{0:020d}"
"""A segment's name."""


class Directories:
    """The directories of a pool of three disks, and one more."""

    def __init__(self, workdir: Path) -> None:
        self.specs = tuple(DiskSpec(str(workdir / f"disk{number}"), Thresholds()) for number in (1, 2, 3))
        self.new = DiskSpec(str(workdir / "disk4"), Thresholds())
        for spec in (*self.specs, self.new):
            Path(spec.path).mkdir()
        with ExitStack() as stack:
            plan = birth.plan_init(self.specs, SIZE, RootAttributes(0o755, 0, 0), stack)
            birth.execute(plan, self.specs, stack)
        self.pool_id = plan.pool_id
        self.first = Membership(plan.members, 0, DiskNumber(3))

    def record(self, spec: DiskSpec, number: int, membership: Membership) -> None:
        member = membership.member(DiskNumber(number))
        assert member is not None
        own = DiskIdentity(self.pool_id, member.disk_id, member.number, SIZE, membership)
        os.setxattr(spec.path, layout.XATTR_IDENTITY, identity.format_identity(own))

    def mark(self, spec: DiskSpec, disk_id: str, pool_id: str = "") -> None:
        mark = Joining(pool_id or self.pool_id, disk_id)
        os.setxattr(spec.path, layout.XATTR_JOINING, identity.format_joining(mark))

    def open(
        self,
        *specs: DiskSpec,
        is_mounted: bool = False,
        opened: Set[tuple[DiskNumber, int]] = frozenset(),
    ) -> Pool:
        return open_pool(specs, SIZE, is_mounted=is_mounted, opened=opened)
