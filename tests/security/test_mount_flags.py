"""Operations that the kernel refuses because of mount flags: programs, set-id bits, devices, other users."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.pools import PoolMount

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

NOBODY = 65534


def test_flags_of_the_mount(shared: PoolMount) -> None:
    entry = mountinfo.find_mount(shared.mountpoint)
    assert entry is not None
    assert {"nosuid", "nodev", "noexec"} <= set(entry.mount_options)
    assert {"default_permissions", "allow_other"} <= set(entry.super_options)
    assert entry.fstype == "fuse.commitlogfs"
    assert entry.source == shared.name


def test_no_set_id_bits_and_no_programs(shared: PoolMount) -> None:
    shared.make_segments([0])
    path = shared.path(0)
    os.chmod(path, 0o6755)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    fd = os.open(shared.path(1), os.O_CREAT | os.O_RDWR, 0o6755)
    os.close(fd)
    assert stat.S_IMODE(shared.path(1).stat().st_mode) & 0o7000 == 0
    with pytest.raises(PermissionError):
        subprocess.run([path], check=False)


def test_a_stranger_gets_what_the_mode_bits_say(shared: PoolMount) -> None:
    shared.make_segments([2])
    os.chmod(shared.path(2), 0o600)
    commands: tuple[list[str | Path], ...] = (
        ["cat", shared.path(2)],
        ["rm", "-f", shared.path(2)],
        ["touch", shared.path(9)],
        ["chmod", "777", shared.path(2)],
        ["cat", shared.mountpoint / ".commitlogfs/log"],
    )
    for command in commands:
        done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False)
        assert done.returncode != 0, command
        assert b"ermi" in done.stderr, done.stderr  # Permission denied, not permitted
    assert shared.path(2).stat().st_mode & 0o777 == 0o600
    assert not shared.path(9).exists()
