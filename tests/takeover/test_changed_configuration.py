"""`commitlogfs restart` takes a changed configuration, and leaves the daemon alone if that is not usable."""

from collections.abc import Callable
from typing import Any

import pytest
from support.command_line import Ran
from support.kept import KeptMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def rules(kept: KeptMount) -> dict[str, Any]:
    """Those in force, as the running daemon says."""
    status = kept.pool.status()
    assert status["daemon"]["configuration"] == str(kept.pool.config)
    assert status["statfs"]["trigger"] == status["retention"]["trigger"]
    return {key: status["retention"][key] for key in ("mode", "trigger", "force_after_seconds")}


def test_rules_of_deletion_change_at_a_restart(keep: Callable[..., KeptMount]) -> None:
    kept = keep(2)
    pool = kept.pool
    assert rules(kept) == {"mode": "cooperative", "trigger": "all", "force_after_seconds": 30}
    pool.settings["trigger"] = '"any"'
    pool.retention |= {"mode": '"off"', "force_after": '"90s"'}
    pool.write_config()
    ran = pool.cli("restart", pool.name)
    assert ran.status == 0, ran.err
    assert rules(kept) == {"mode": "off", "trigger": "any", "force_after_seconds": 90}


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["restart", "dry-run"])
def test_a_configuration_that_is_not_usable_leaves_the_daemon_alone(
    keep: Callable[..., KeptMount], options: list[str]
) -> None:
    """Its successor would be refused again and again, and every request would wait for somebody to put it right."""
    kept = keep(2)
    pool = kept.pool
    usable = pool.config.read_text()
    pool.retention["reserved"] = '"72h"'
    pool.write_config()
    ran = pool.cli("restart", pool.name, "--timeout", "1", *options)
    status = pool.status() if ran.status == 2 else None
    pool.config.write_text(usable)  # before anything is asserted: a mount without a daemon would hold up the tests
    assert ran.status == 2, ran.err
    assert "retention.reserved: has no effect with mode = 'cooperative'" in ran.err
    assert status is not None
    assert status["daemon"]["pid"] == kept.daemon


@pytest.mark.parametrize("by", ["name", pytest.param("file", marks=pytest.mark.full)])
def test_forced_it_hands_over_all_the_same(keep: Callable[..., KeptMount], by: str) -> None:
    """As with systemd's units: requests wait, and the next try after the correction takes over."""
    kept = keep(2)
    pool = kept.pool
    usable = pool.config.read_text()
    pool.retention["reserved"] = '"72h"'
    pool.write_config()
    former = kept.daemon
    ran = pool.cli("restart", pool.name if by == "name" else pool.config, "--timeout", "1", "--force")
    pool.config.write_text(usable)
    assert ran.status == 1, ran.err
    eventually(lambda: pool.cli("status", pool.name).status == 0)
    assert pool.status()["daemon"]["pid"] != former


def test_passthrough_that_a_running_mount_lacks_is_refused(keep: Callable[..., KeptMount]) -> None:
    """The next mount would have it, and nothing is missing."""
    kept = keep(1, settings={"passthrough": '"off"'})
    kept.pool.settings["passthrough"] = '"required"'
    kept.pool.write_config()
    ran = kept.pool.cli("restart", kept.pool.name)
    assert ran.status == 4
    assert "the running mount passes nothing through (off in the configuration)" in ran.err
    assert "unmount and mount again" in ran.err
    assert "--degraded" not in ran.err


@pytest.fixture
def striped(keep: Callable[..., KeptMount]) -> KeptMount:
    """A kept mount of three disks with seven segments, of an operator who wants no degraded mount."""
    kept = keep(3, settings={"on_missing": '"refuse"'})
    kept.pool.make_segments(range(7))
    return kept


def restarted(kept: KeptMount, *options: str) -> Ran:
    kept.pool.write_config()
    return kept.pool.cli("restart", kept.pool.name, *options)


@pytest.mark.full
def test_an_unknown_disk_is_refused(striped: KeptMount) -> None:
    """Its successor would not use it, and the next boot would fail."""
    pool = striped.pool
    unknown = pool.workdir / "disk9"
    unknown.mkdir()
    pool.disks = [*pool.disks, unknown]
    for options in ((), ("--dry-run",)):
        ran = restarted(striped, *options)
        assert ran.status == 4, options
        assert f"{unknown}: carries no identity" in ran.err
        assert "--degraded" in ran.err
    assert pool.status()["daemon"]["pid"] == striped.daemon
    # Nobody asks at the death of a daemon: a broker waits.
    striped.replace()
    assert pool.status()["segments"]["count"] == 7
    ran = restarted(striped, "--degraded")
    assert ran.status == 0, ran.err


def test_a_disk_left_out_is_refused(striped: KeptMount) -> None:
    pool = striped.pool
    left_out, pool.disks = pool.disks[2], pool.disks[:2]
    ran = restarted(striped)
    assert ran.status == 4
    assert f"{left_out}: disk 3 of the pool is not in the configuration" in ran.err
    assert pool.status()["daemon"]["pid"] == striped.daemon
    assert pool.status()["segments"]["count"] == 7
    ran = restarted(striped, "--degraded")
    assert ran.status == 0, ran.err
    assert pool.status()["segments"]["count"] == 5


def test_a_degraded_configuration_may_leave_a_disk_out(striped: KeptMount) -> None:
    striped.pool.settings["on_missing"] = '"degraded"'
    striped.pool.disks = striped.pool.disks[:2]
    ran = restarted(striped)
    assert ran.status == 0, ran.err


def test_an_option_of_the_mount_itself_is_refused(striped: KeptMount) -> None:
    striped.pool.settings["allow_other"] = "false"
    ran = restarted(striped)
    assert ran.status == 4
    assert "changes allow_other from true to false" in ran.err
