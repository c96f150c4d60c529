"""`commitlogfs status` without a daemon of ours."""

import json
import threading
from typing import Any

import pytest
import typer
from support.waiting import PATIENCE_S
from typer.testing import CliRunner

from commitlogfs.mount.commands import status
from commitlogfs.mount.location.which_mount import Target

NAMES = ("a", "b", "c")


def test_several_mounts_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers only when all were asked."""
    asked = threading.Barrier(len(NAMES), timeout=PATIENCE_S)

    def answer(target: Target) -> dict[str, Any]:
        asked.wait()
        return {"name": target.name}

    monkeypatch.setattr(Target, "status", answer)
    monkeypatch.setattr(status, "running_targets", lambda: list(map(Target, NAMES)))
    app = typer.Typer()
    status.register(app)
    ran = CliRunner().invoke(app, ["--json"])
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["mounts"] == [{"name": name} for name in NAMES]
