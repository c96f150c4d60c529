"""`commitlogfs restart` takes a changed configuration, and leaves the daemon alone if that is not usable."""

from collections.abc import Callable
from typing import Any

import pytest
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


@pytest.mark.parametrize("by", ["name", "file"])
def test_forced_it_steps_back_all_the_same(keep: Callable[..., KeptMount], by: str) -> None:
    """As systemd's units have to: requests wait, and the next try after it is put right goes on."""
    kept = keep(2)
    pool = kept.pool
    usable = pool.config.read_text()
    pool.retention["reserved"] = '"72h"'
    pool.write_config()
    former = kept.daemon
    ran = pool.cli("restart", pool.name if by == "name" else pool.config, "--timeout", "1", "--force")
    pool.config.write_text(usable)
    assert ran.status == 1, ran.err
    eventually(lambda: pool.cli("status", pool.name).status == 0, 30)
    assert pool.status()["daemon"]["pid"] != former
