"""The mount namespace of a test process."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.bare_mounts import cover, unmount

_ENTER = """
from support import mount_namespace
from commitlogfs.mount.linux import mountinfo

refused = mount_namespace.enter()
assert not refused, refused
for entry in mountinfo.read_mounts():
    print(entry.mountpoint)
"""


@pytest.mark.mounted
@pytest.mark.root
def test_mounts_of_other_runs_are_not_held(workdir: Path) -> None:
    """A mount of a demo or of another run ends although tests have begun meanwhile."""
    cover(workdir)
    try:
        command = [sys.executable, "-c", _ENTER]
        seen = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    finally:
        unmount(workdir)
    assert "/proc" in seen.stdout.splitlines()
    assert str(workdir) not in seen.stdout.splitlines()
