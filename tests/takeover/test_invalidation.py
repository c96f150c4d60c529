"""Names whose files have changed: the kernel drops them, also if the daemon that has to tell it is killed."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support import repairs, scrubs
from support.checksums import NEWEST, await_checksums
from support.versions import VersionedMount
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

COUNT = 9
INDEX = 3

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
    """A daemon that is killed while its notification waits for a create leaves no waiting process behind."""
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


TELLS_NOTHING = """
from commitlogfs.fusefs.kernel.invalidation import Invalidation
Invalidation.invalidate = lambda self, name, inode: None
"""


@pytest.fixture
def silent(keep_versions: Callable[..., VersionedMount]) -> VersionedMount:
    """Its daemon behaves as one that is always killed before the kernel learns of what has changed."""
    mount = keep_versions(3)
    mount.before(TELLS_NOTHING)
    mount.replace()
    mount.before("")
    return mount


def test_a_moved_file_is_freed_if_the_mover_was_killed(silent: VersionedMount) -> None:
    pool = silent.pool
    pool.make_segments(range(COUNT))
    with pool.path(INDEX).open("rb"):
        assert pool.cli("disk", "drain", 1, pool.name, "--rate", scrubs.FAST).status == 0
        eventually(lambda: pool.disk_of(INDEX) != 0)
        silent.replace()
    pool.make_segments(range(COUNT, COUNT + 3))  # the newest three stay
    eventually(lambda: pool.ask("disk-content", disk="1")["segments"] == 0)
    eventually(lambda: pool.ask("disk-content", disk="1")["other_files"] == 0)


def test_a_damaged_file_does_not_come_back_if_its_repairer_was_killed(
    silent: VersionedMount, workdir: Path
) -> None:
    """Although the log is cut behind it: nobody has the damaged file open, as the one that had it is gone."""
    pool = silent.pool
    scrubs.fill(pool, range(COUNT))
    await_checksums(pool, COUNT - NEWEST)
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    with pool.path(INDEX).open("rb"):
        repairs.rot(pool, INDEX)
        repairs.restore(pool, "--from", slave)
        silent.replace()
    eventually(lambda: silent.events("names_forgotten"))
    for index in range(COUNT - 1, INDEX, -1):
        pool.path(index).unlink()
    assert pool.path(INDEX).read_bytes() == repairs.content(pool, INDEX)
    assert len(repairs.set_aside(pool)) == 1


def is_stuck(daemon: int) -> bool:
    return any(process.ppid() == daemon and process.status() == "disk-sleep" for process in notifiers())


def notifiers() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("send_notifications" in word for word in process.info["cmdline"] or [])
    ]
