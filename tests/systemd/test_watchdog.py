"""Effect of our notifications on a real systemd, where its manual is not clear."""

import sys
from pathlib import Path

import pytest
from support.booted import booted, why_not
from support.waiting import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.timing,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be booted"),
]

SILENT = """
import sys, time
from commitlogfs.mount.linux import notify
notify.ready()
if sys.argv[1:] == ["alone"]:
    notify.watch_no_longer()
time.sleep(600)
"""
UNIT = "[Service]\nType=notify\nWatchdogSec=1\nExecStart={python} /shared/silent.py {how}\n"


def test_a_daemon_that_wants_no_watchdog_is_not_killed_by_it(workdir: Path) -> None:
    (workdir / "shared").mkdir()
    (workdir / "shared/silent.py").write_text(SILENT)
    units = {f"{how}.service": UNIT.format(python=sys.executable, how=how) for how in ("alone", "watched")}
    with booted(workdir, units) as system:
        system.systemctl("start", "alone")
        system.systemctl("start", "watched")
        eventually(lambda: system.show("watched", "Result") == "watchdog", 20)  # started last, killed all the same
        assert system.show("alone", "ActiveState") == "active"
