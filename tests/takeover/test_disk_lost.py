"""`commitlogfs disk remove --lost`: a dead disk is given up, and the log goes on without it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kept import KeptMount
from support.pools import MIB, PoolMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def hide(pool: PoolMount, index: int) -> Path:
    """The disk is gone: its directory has another name."""
    directory = pool.disks[index]
    hidden = directory.with_name(f"{directory.name}.hidden")
    directory.rename(hidden)
    return hidden


def end(kept: KeptMount) -> None:
    """Unmount; the keeper ends with it."""
    pool = kept.pool
    assert pool.cli("umount", pool.mountpoint).status == 0
    assert pool.daemon is not None
    pool.daemon.wait(30)
    pool.daemon = None


def give_up(pool: PoolMount, disk: object, *options: str) -> str:
    ran = pool.cli("disk", "remove", disk, pool.config, "--lost", *options)
    assert ran.status == 0, ran.err
    return ran.out


def without(pool: PoolMount, index: int) -> None:
    """So that `start` writes the same configuration."""
    assert str(pool.disks[index]) not in pool.config.read_text()
    pool.disks = [disk for number, disk in enumerate(pool.disks) if number != index]


def indexes(pool: PoolMount) -> list[int]:
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    """Nine segments in turn on three disks: the last one, on the third disk, is the newest."""
    kept = keep(3)
    kept.pool.make_segments(range(9))
    return kept


def test_the_newest_segment_is_lost_while_nothing_is_mounted(kept: KeptMount) -> None:
    """A machine that boots without the disk: no mount is possible until it is given up."""
    pool = kept.pool
    end(kept)
    hidden = hide(pool, 2)
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "[newest-segment-missing]" in refused.err
    shown = give_up(pool, 3, "--dry-run")
    assert f"disk 3 ({pool.disks[2]}) is given up, with 3.0 MiB of the log, in 3 ranges of offsets:\n" in shown
    assert "  2,097,152 to 3,145,728\n" in shown
    assert "a broker that is started anew gives log offsets from 8,388,608 on to other messages" in shown
    assert pool.cli("mount", pool.config).status == 4
    out = give_up(pool, pool.disks[2], "--yes")
    assert out == f"test: disk 3 ({pool.disks[2]}) is given up, and its gaps are accepted losses; mount it\n"
    lost = pool.disks[2]
    without(pool, 2)
    pool.start("--watchdog", "0")
    status = pool.status()
    assert indexes(pool) == [0, 1, 3, 4, 6, 7]
    assert (status["degraded"], status["segments"]["accepted_gaps"], len(status["segments"]["gaps"])) == (
        False,
        2,
        2,
    )
    assert [given["path"] for given in status["members"]["given_up"]] == [str(lost)]
    assert "with 2 gaps of disks that were given up" in pool.cli("status", pool.name).out
    checked = pool.cli("check", pool.name).out
    assert "[accepted-loss]" in checked
    assert "[gap]" not in checked
    pool.make_segments([8, 9])  # as a broker that begins again with the first lost offset
    pool.cli("umount", pool.mountpoint)
    hidden.rename(lost)
    pool.disks = [*pool.disks, lost]
    pool.write_config()
    returned = pool.cli("mount", pool.config)
    assert returned.status == 4
    assert f"{lost}: is no member of the pool any longer" in returned.err
    assert "[disk-removed]" in returned.err


def test_a_missing_disk_of_a_degraded_mount(kept: KeptMount) -> None:
    pool = kept.pool
    pool.make_segments([9, 10])
    end(kept)
    hide(pool, 2)
    pool.settings["on_missing"] = '"degraded"'
    pool.start("--watchdog", "0")
    assert pool.status()["degraded"]
    held = os.open(pool.path(0), os.O_RDONLY)
    out = give_up(pool, 3, "--yes", "--json")
    assert '"lost": [[2097152, 3145728], [5242880, 6291456], [8388608, 9437184]], "used_again_from": null' in out
    os.close(held)
    without(pool, 2)
    status = pool.status()
    assert (status["degraded"], status["missing_disks"], status["segments"]["accepted_gaps"]) == (False, [], 3)
    pool.make_segments([11, 12])
    del pool.settings["on_missing"]
    pool.cli("umount", pool.mountpoint)
    assert pool.daemon is not None
    pool.daemon.wait(30)
    pool.start("--watchdog", "0")
    assert indexes(pool) == [0, 1, 3, 4, 6, 7, 9, 10, 11, 12]


def test_another_gap_still_refuses_a_mount(kept: KeptMount) -> None:
    pool = kept.pool
    end(kept)
    hide(pool, 2)
    give_up(pool, 3, "--yes")
    (pool.disks[0] / pool.path(3).name).unlink()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "[gap]" in refused.err


def test_a_disk_that_works_is_not_given_up(kept: KeptMount) -> None:
    pool = kept.pool
    before = (pool.config.read_text(), pool.status()["members"])
    ran = pool.cli("disk", "remove", 1, pool.name, "--lost", "--yes")
    assert ran.status == 4
    assert f"{pool.disks[0]}: is rw, not lost; cordon it" in ran.err
    assert (pool.config.read_text(), pool.status()["members"]) == before
    end(kept)
    ran = pool.cli("disk", "remove", 1, pool.config, "--lost", "--yes")
    assert ran.status == 4
    assert f"{pool.disks[0]}: is there and can be read, so it is not lost" in ran.err
    assert pool.config.read_text() == before[0]


def test_nobody_is_asked_without_a_terminal(kept: KeptMount) -> None:
    pool = kept.pool
    end(kept)
    hide(pool, 2)
    ran = pool.cli("disk", "remove", 3, pool.config, "--lost")
    assert ran.status == 2
    assert "add --yes" in ran.err
    assert pool.cli("mount", pool.config).status == 4


def test_repeated_after_the_configuration_was_changed(kept: KeptMount) -> None:
    """As by a command that was killed before the disks recorded the change."""
    pool = kept.pool
    end(kept)
    hide(pool, 2)
    lost = pool.disks[2]
    pool.disks = pool.disks[:2]
    pool.write_config()
    assert pool.cli("mount", pool.config).status == 4
    assert "is given up" in give_up(pool, lost, "--yes")
    pool.start("--watchdog", "0")
    eventually(lambda: not pool.status()["degraded"])
