"""A birth cut off at every step: never a pool with half of its members, and the same verb again finishes it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
from support.cut_off import cut_off_after

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.open import OnMissing, open_pool, require_mountable, sweep
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096


@pytest.fixture
def specs(workdir) -> tuple[DiskSpec, ...]:
    return tuple(DiskSpec(str(workdir / f"disk{number}"), Thresholds()) for number in range(3))


def be_born(specs: tuple[DiskSpec, ...]) -> str:
    with ExitStack() as stack:
        plan = birth.plan_init(specs, SIZE, RootAttributes(0o755, 0, 0), stack)
        birth.execute(plan, specs, stack)
        return plan.pool_id


def is_pool(specs: tuple[DiskSpec, ...]) -> bool:
    try:
        pool = open_pool(specs, SIZE)
    except PoolError:
        return False
    try:
        require_mountable(pool, OnMissing.REFUSE)
    except PoolError:
        return False
    finally:
        pool.close()
    return True


def steps(monkeypatch: pytest.MonkeyPatch, specs: tuple[DiskSpec, ...]) -> Iterator[int]:
    """Cut a birth off before its 1st, 2nd, ... change of an attribute, until it gets through."""
    for allowed in count():
        for spec in specs:
            if os.path.isdir(spec.path):
                os.rmdir(spec.path)
        with cut_off_after(monkeypatch, allowed) as was_cut_off:
            be_born(specs)
        if not was_cut_off:
            return
        yield allowed


def marks(specs: tuple[DiskSpec, ...]) -> list[bool]:
    return [layout.XATTR_BIRTH in os.listxattr(spec.path) for spec in specs]


def test_cut_off_at_any_step_it_can_be_finished_or_is_done(specs, monkeypatch):
    done = finished = 0
    for _ in steps(monkeypatch, specs):
        if is_pool(specs):
            done += 1
            pool = open_pool(specs, SIZE)
            sweep(pool)
            pool.close()
        else:
            finished += 1
            pool_id = be_born(specs)
            first = os.open(specs[0].path, os.O_RDONLY)
            found = identity.read_identity(first, specs[0].path)
            os.close(first)
            assert found is not None
            assert found.pool_id == pool_id
        assert is_pool(specs)
        assert marks(specs) == [False] * 3
    assert done == 3
    assert finished == 12


def test_in_the_place_of_an_empty_pool_it_can_be_cut_off_at_any_step(specs, monkeypatch):
    cut_off = 0
    for allowed in count():
        former = be_born(specs)
        with cut_off_after(monkeypatch, allowed) as was_cut_off:
            be_born(specs)
        if not was_cut_off:
            break
        cut_off += 1
        pool_id = be_born(specs)
        assert pool_id != former
        found = open_pool(specs, SIZE)
        assert found.pool_id == pool_id
        found.close()
        assert is_pool(specs)
        assert marks(specs) == [False] * 3
    assert cut_off == 15


def test_a_birth_that_ended_leaves_no_mark(specs):
    be_born(specs)
    assert marks(specs) == [False] * 3


def test_a_new_pool_continues_no_scrub_of_a_former_one(specs):
    be_born(specs)
    for spec in specs:
        os.setxattr(spec.path, layout.XATTR_SCRUB, b"position in another log")
        os.removexattr(spec.path, layout.XATTR_IDENTITY)
    be_born(specs)
    assert [layout.XATTR_SCRUB in os.listxattr(spec.path) for spec in specs] == [False] * 3
