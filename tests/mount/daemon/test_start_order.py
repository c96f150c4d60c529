"""Checks that come before a mount changes anything."""

import pytest
from support.command_line import run_cli

pytestmark = pytest.mark.mounted


def test_a_too_deep_runtime_directory_changes_nothing(make_pool, workdir):
    pool = make_pool(1)
    deep = workdir / ("d" * 100)
    ran = run_cli("mount", pool.config, env={"COMMITLOGFS_RUNTIME_DIR": str(deep)})
    assert ran.status == 2
    assert "too long for a socket" in ran.err
    assert not pool.mountpoint.exists()
    assert not deep.exists()
