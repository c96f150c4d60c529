"""A daemon that is killed while its notification waits for a create leaves no waiting process behind."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.versions import VersionedMount
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

CREATES_WAIT = """
import time
from pathlib import Path
from commitlogfs.store.files import allocate
reserve = allocate.reserve
def wait(*arguments):
    Path({directory!r}, "waits").touch()
    while Path({directory!r}, "hold").exists():
        time.sleep(0.01)
    return reserve(*arguments)
allocate.reserve = wait
"""


def test_a_create_under_way_is_answered_by_the_one_after_the_next(
    keep_versions: Callable[..., VersionedMount], tmp_path: Path
) -> None:
    mount = keep_versions(2)
    pool = mount.pool
    pool.make_segments([3])  # after a takeover the names before it are forgotten
    mount.before(CREATES_WAIT.format(directory=str(tmp_path)))
    mount.replace()
    (tmp_path / "hold").touch()
    made: list[int] = []
    creating = threading.Thread(
        target=lambda: made.append(os.open(pool.path(9), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
    )
    creating.start()
    eventually((tmp_path / "waits").exists)
    mount.kill()
    (tmp_path / "waits").unlink()
    assert pool.daemon is not None
    os.kill(pool.daemon.pid, signal.SIGCONT)
    eventually((tmp_path / "waits").exists)  # sent again to the next one, which has names forgotten meanwhile
    second = mount.events("daemon_started")[-1]
    pid = int(second.split(" pid=")[1].split()[0])
    eventually(lambda: is_stuck(pid))
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "hold").unlink()
    creating.join(PATIENCE_S)
    assert made
    os.close(made[0])
    mount.wait_ready(3)
    pool.make_segments([10])
    eventually(lambda: not notifiers())


def is_stuck(daemon: int) -> bool:
    return any(process.ppid() == daemon and process.status() == "disk-sleep" for process in notifiers())


def notifiers() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("send_notifications" in word for word in process.info["cmdline"] or [])
    ]
