"""Two mounts of one name, each of a runtime directory of its own: a command never means the other one."""

import pytest
from support.pools import pool_in
from support.waiting import PATIENCE_S

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.full]


@pytest.fixture
def twins(workdir):
    with pool_in(workdir / "one", 1, name="twin") as one, pool_in(workdir / "two", 1, name="twin") as two:
        one.start()
        two.start()
        yield one, two


def test_umount_by_name_leaves_a_mount_of_the_same_name_alone(twins):
    one, two = twins
    ran = one.cli("umount", "twin")
    assert ran.status == 0, ran.err
    assert one.daemon.wait(PATIENCE_S) == 0
    one.daemon = None
    assert mountinfo.find_mount(one.mountpoint) is None
    assert one.cli("umount", "twin").status != 0
    assert one.cli("ready", "twin").status != 0
    assert mountinfo.find_mount(two.mountpoint) is not None
    assert two.cli("ready", "twin").status == 0
    assert two.status()["mountpoint"] == str(two.mountpoint)


def test_a_mountpoint_is_never_taken_for_the_daemon_of_the_same_name(twins):
    one, two = twins
    ran = one.cli("status", two.mountpoint)
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"twin on {two.mountpoint}")
    # Only the daemon itself could be asked for this: it answers in its own runtime directory.
    ran = one.cli("map", two.mountpoint)
    assert (ran.status, ran.out) == (4, "")
    assert f"has mounted it at {two.mountpoint}; " in ran.err


def test_a_dead_mount_is_found_by_its_name_and_nobody_waits_for_its_daemon(twins):
    one, two = twins
    one.kill()
    assert (one.runtime / "twin.sock").exists()
    ran = one.cli("umount", "twin")
    assert ran.status == 0, ran.err
    assert mountinfo.find_mount(one.mountpoint) is None
    assert mountinfo.find_mount(two.mountpoint) is not None
