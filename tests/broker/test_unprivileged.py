"""The broker as an ordinary user on a mount that root has made."""

import os
import shutil
import subprocess

import pytest
from support.brokers import check_all, complaints, send_all
from support.pools import MIB

from commitlogfs.bench import rocketmq

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

BROKER_USER = (12345, 12346)
STRANGER = 23456
COUNT = 3000


@pytest.fixture
def reachable(newest, base_directory):
    """The jars in a directory that every user may enter: the cache lies in root's home."""
    if newest.jars.is_relative_to(os.path.expanduser("~")):
        directory = base_directory / "distribution"
        shutil.copytree(newest.jars, directory / "jars")
        shutil.copytree(newest.helper, directory / "helper")
        return rocketmq.Distribution(newest.version, directory / "jars", directory / "helper")
    return newest


def test_files_belong_to_the_brokers_user_and_strangers_are_kept_out(new_stand, reachable):
    stand = new_stand(("ext4", "xfs"), segment_size=MIB)
    pool = stand.pool
    uid, gid = BROKER_USER
    pool.init("--owner", f"{uid}:{gid}")
    pool.start()
    root = os.stat(pool.mountpoint)
    assert (root.st_uid, root.st_gid, root.st_mode & 0o7777) == (uid, gid, 0o750)
    assert pool.cli("ready", pool.mountpoint).status == 0
    broker = stand.broker(reachable, user=BROKER_USER)
    broker.start()
    sent = send_all(reachable, stand.names, "Unprivileged", COUNT)
    broker.kill()
    broker.start()
    check_all(reachable, stand.names, "Unprivileged", sent)
    assert complaints(broker) == []
    names = sorted(os.listdir(pool.mountpoint))
    assert len(names) > 3
    for name in names:
        st = os.stat(pool.mountpoint / name)
        assert (st.st_uid, st.st_gid) == BROKER_USER
        assert st.st_mode & 0o7000 == 0
    for directory in stand.directories():
        assert {(p.stat().st_uid, p.stat().st_gid) for p in directory.iterdir()} == {BROKER_USER}

    for command in (
        ["ls", pool.mountpoint],
        ["cat", pool.path(0)],
        ["touch", pool.path(1000)],
        ["rm", "-f", pool.path(0)],
    ):
        done = subprocess.run(
            list(map(str, command)), user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, text=True
        )
        assert done.returncode != 0, command
        assert "Permission denied" in done.stderr
    assert sorted(os.listdir(pool.mountpoint)) == names
