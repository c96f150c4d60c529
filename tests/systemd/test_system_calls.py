"""The unit permits the system calls that the daemon makes by number: no library makes them, and systemd's sets may
lack a new one. A call outside of them fails as on an older kernel."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "commitlogfs@.service"
SOURCES = [ROOT / "store" / "_syscalls.c", ROOT / "fusefs" / "kernel" / "_passthrough.c"]

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def members_of(name: str) -> set[str]:
    """The system calls of a set of systemd, or a single one."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], check=True, capture_output=True, text=True
    ).stdout
    found: set[str] = set()
    for line in listed.splitlines()[1:]:
        if not line.strip().startswith("#"):
            found |= members_of(line.strip())
    return found


def permitted() -> set[str]:
    names = " ".join(re.findall(r"^SystemCallFilter=(.+)$", UNIT.read_text(), re.MULTILINE)).split()
    return set().union(*map(members_of, names))


def test_the_unit_permits_each_call_made_by_number() -> None:
    made = set().union(*(re.findall(r"\bSYS_(\w+)", path.read_text()) for path in SOURCES))
    assert {"openat2", "cachestat"} <= made
    assert made <= permitted()


def test_systemd_knows_each_call_of_the_unit() -> None:
    verified = subprocess.run(["systemd-analyze", "verify", UNIT], check=False, capture_output=True, text=True)
    assert "system call" not in verified.stdout + verified.stderr
