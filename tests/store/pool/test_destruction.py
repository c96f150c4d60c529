"""A destruction cut off at every step: no disk can be mounted in between, and the same command ends it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from support.cut_off import cut_off_after

from commitlogfs.store import layout
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.errors import NoIdentityError, PoolError
from commitlogfs.store.pool import birth, destruction
from commitlogfs.store.pool.open import OnMissing, open_pool, require_mountable
from commitlogfs.store.segment import BaseOffset, format_segment_name
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096
STEPS = ("setxattr", "removexattr", "unlink", "rmdir")


@pytest.fixture
def specs(workdir: Path) -> tuple[DiskSpec, ...]:
    return tuple(DiskSpec(str(workdir / f"disk{number}"), Thresholds()) for number in range(3))


def make_pool(specs: tuple[DiskSpec, ...]) -> None:
    """A pool of six segments, and one that was removed while it was open."""
    with ExitStack() as stack:
        birth.execute(birth.plan_init(specs, SIZE, RootAttributes(0o755, 0, 0), stack), specs, stack)
    for index in range(6):
        path = Path(specs[index % 3].path, format_segment_name(BaseOffset(index * SIZE)).decode())
        path.write_bytes(bytes(SIZE))
    retired = Path(specs[1].path, layout.RETIRED_DIRECTORY.decode())
    retired.mkdir()
    (retired / f"{0:020d}.0123abcd").touch()
    os.setxattr(specs[0].path, layout.XATTR_SCRUB, b"{}")


def destroy(specs: tuple[DiskSpec, ...], **options: bool) -> None:
    with ExitStack() as stack:
        plan = destruction.plan_destruction(specs, stack, **{"with_segments": True, "degraded": False, **options})
        destruction.mark(plan)
        destruction.strip(plan)


def is_mountable(specs: tuple[DiskSpec, ...], on_missing: OnMissing) -> bool:
    try:
        pool = open_pool(specs, SIZE)
    except PoolError:
        return False
    try:
        require_mountable(pool, on_missing)
    except PoolError:
        return False
    finally:
        pool.close()
    return True


def subsets(specs: tuple[DiskSpec, ...]) -> Iterator[tuple[DiskSpec, ...]]:
    for chosen in range(1, 1 << len(specs)):
        yield tuple(spec for index, spec in enumerate(specs) if chosen >> index & 1)


def records(specs: tuple[DiskSpec, ...]) -> list[str]:
    return [name for spec in specs for name in os.listxattr(spec.path) if name.startswith("user.commitlogfs.")]


def content(specs: tuple[DiskSpec, ...]) -> list[str]:
    return [name for spec in specs for name in os.listdir(spec.path)]


def test_cut_off_at_any_step_it_can_be_ended_and_nothing_is_mounted(
    specs: tuple[DiskSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = 0
    for allowed in count():
        make_pool(specs)
        with cut_off_after(monkeypatch, allowed, STEPS) as was_cut_off:
            destroy(specs)
        if not was_cut_off:
            break
        is_whole = len(content(specs)) == 7
        if allowed:
            half += 1
            assert not is_mountable(specs, OnMissing.DEGRADED), allowed
        if not is_whole:  # also if the operator leaves disks out
            assert not any(is_mountable(some, OnMissing.DEGRADED) for some in subsets(specs)), allowed
        destroy(specs)
        assert (records(specs), content(specs)) == ([], []), allowed
    assert (records(specs), content(specs)) == ([], [])
    assert half > 20


def test_a_second_one_finds_no_pool(specs: tuple[DiskSpec, ...]) -> None:
    make_pool(specs)
    destroy(specs)
    with pytest.raises(NoIdentityError, match="or its disks are not mounted"):
        destroy(specs)


def test_a_birth_that_was_cut_off_can_be_destroyed(
    specs: tuple[DiskSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_off_after(monkeypatch, 4) as was_cut_off:
        make_pool(specs)
    assert was_cut_off
    with pytest.raises(PoolError, match="missing"):
        destroy(specs)
    destroy(specs, degraded=True)
    assert records(specs[:2]) == []
