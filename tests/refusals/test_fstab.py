"""mount(8) and fstab, by way of mount.commitlogfs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.waiting import PATIENCE_S

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

HELPER = Path("/sbin/mount.commitlogfs")


@pytest.fixture
def pool(make_pool) -> Iterator[PoolMount]:
    made = make_pool(2)
    made.mountpoint.mkdir(parents=True)
    yield made
    made.cli("umount", made.mountpoint)


@pytest.fixture
def helper(workdir: Path) -> Iterator[None]:
    """mount(8) looks for helpers in /sbin only: one is put there for the test, unless one is installed."""
    if os.path.lexists(HELPER):
        yield
        return
    script = workdir / "mount.commitlogfs"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m commitlogfs.mount.mount_helper "$@"\n')
    script.chmod(0o755)
    HELPER.symlink_to(script)
    yield
    HELPER.unlink()


def run(pool: PoolMount, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, **pool.env},
        timeout=PATIENCE_S,
        check=False,
    )


def call_helper(pool: PoolMount, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(pool, sys.executable, "-m", "commitlogfs.mount.mount_helper", *arguments)


def test_mount_by_type(pool: PoolMount, helper: None) -> None:
    done = run(pool, "mount", "-t", "commitlogfs", pool.name, pool.mountpoint, "-o", f"config={pool.config},nofail")
    assert done.returncode == 0, done.stderr
    entry = mountinfo.find_mount(pool.mountpoint)
    assert entry is not None
    assert (entry.source, entry.fstype) == (pool.name, "fuse.commitlogfs")
    os.close(os.open(pool.path(0), os.O_CREAT | os.O_RDWR))
    assert run(pool, "umount", pool.mountpoint).returncode == 0
    assert mountinfo.find_mount(pool.mountpoint) is None


def test_mount_from_fstab(pool: PoolMount, helper: None) -> None:
    fstab = pool.workdir / "fstab"
    fstab.write_text(
        f"{pool.name} {pool.mountpoint} commitlogfs config={pool.config},_netdev,x-systemd.automount 0 0\n"
    )
    done = run(pool, "mount", "--fstab", fstab, pool.mountpoint)
    assert done.returncode == 0, done.stderr
    assert mountinfo.find_mount(pool.mountpoint) is not None


def test_all_of_fstab_twice(pool: PoolMount, helper: None) -> None:
    """With the path of the configuration in the first field, mount(8) does not know the mount again."""
    fstab = pool.workdir / "fstab"
    options = "relatime,lazytime,nodiratime,silent"
    fstab.write_text(f"{pool.config} {pool.mountpoint} commitlogfs {options} 0 0\n")
    for _ in range(2):
        done = run(pool, "mount", "--fstab", fstab, "--all")
        assert done.returncode == 0, done.stderr
        assert mountinfo.stacked_count(pool.mountpoint) == 1


def test_a_refused_mount_is_mount_failure(pool: PoolMount, helper: None) -> None:
    os.removexattr(pool.disks[0], "user.commitlogfs.identity")
    done = run(pool, "mount", "-t", "commitlogfs", pool.name, pool.mountpoint, "-o", f"config={pool.config}")
    assert done.returncode == 32
    assert f"{pool.disks[0]}: carries no identity" in done.stderr
    assert mountinfo.find_mount(pool.mountpoint) is None


def test_misuse(pool: PoolMount) -> None:
    config = f"config={pool.config}"
    elsewhere = pool.workdir / "elsewhere"
    elsewhere.mkdir()
    for arguments, status, words in (
        ((), 1, "usage: mount.commitlogfs NAME MOUNTPOINT"),
        ((pool.name,), 1, "usage"),
        ((pool.name, pool.mountpoint, "more"), 1, "usage"),
        ((pool.name, pool.mountpoint, "-z"), 1, "-z: unknown option"),
        ((pool.name, pool.mountpoint, "-o", f"{config},foo=1"), 1, "option 'foo=1': unknown"),
        ((pool.name, pool.mountpoint, "-o", f"{config},remount"), 1, "option 'remount': unknown"),
        ((pool.name, pool.mountpoint, "-o", f"{config},ro"), 1, "option 'ro': a read-only mount is not supported"),
        (
            (pool.name, elsewhere, "-o", config),
            1,
            f"{pool.config} is {pool.mountpoint}; make fstab and the configuration agree",
        ),
        ((pool.name, pool.mountpoint, "-o", "config=/nowhere.toml"), 32, "/nowhere.toml: no such file"),
        (("no-such-name", pool.mountpoint), 32, "no-such-name: no such configuration"),
    ):
        done = call_helper(pool, *arguments)
        assert done.returncode == status, (arguments, done.stderr)
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("mount.commitlogfs: ")
    assert mountinfo.find_mount(pool.mountpoint) is None
