"""Logs of a mount in the background are rotated by the real logrotate, with the file that the project ships."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.freezing import frozen
from support.loop_disks import DiskFarm
from support.pools import PoolMount
from support.processes import has_ended
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import logs

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("logrotate", path="/usr/sbin:/usr/bin") is None, reason="no logrotate"),
]

SHIPPED = Path(__file__).parents[2] / "systemd/commitlogfs.logrotate"


class Background:
    """A pool mounted by `mount --daemon`; its log lies in the runtime directory."""

    def __init__(self, pool: PoolMount, *options: str) -> None:
        self.pool = pool
        ran = pool.cli("mount", "--daemon", *options, pool.config)
        assert ran.status == 0, ran.err
        found = re.search(r"(?:keeper|daemon) (\d+), log (\S+)\n", ran.out)
        assert found is not None, ran.out
        self.first, self.log = int(found[1]), Path(found[2])

    @property
    def renamed(self) -> Path:
        return self.log.with_name(f"{self.log.name}.1")

    def daemon(self) -> int:
        return int(self.pool.status()["daemon"]["pid"])

    def writers(self) -> set[int]:
        """The keeper and all that it has started."""
        children = Path(f"/proc/{self.first}/task/{self.first}/children").read_text().split()
        return {self.first, *map(int, children)}

    def logs_of(self) -> set[Path]:
        return {Path(os.readlink(f"/proc/{pid}/fd/2")) for pid in self.writers()}

    def rotate(self, command: str) -> None:
        """As cron does, with another path of the log and of the command."""
        text = SHIPPED.read_text().replace("/var/log/commitlogfs/*.log", f"{self.log.parent}/*.log")
        assert text.count("/usr/local/bin/commitlogfs ") == 1
        settings = self.pool.workdir / "rotation"
        settings.write_text(text.replace("/usr/local/bin/commitlogfs ", f"{command} "))
        done = subprocess.run(
            ["/usr/sbin/logrotate", "--force", "--state", self.pool.workdir / "state", settings],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.pool.env},
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def background(make_pool: Callable[..., PoolMount]) -> Iterator[Callable[..., Background]]:
    pools: list[PoolMount] = []

    def make(*options: str) -> Background:
        pools.append(make_pool(1))
        return Background(pools[-1], *options)

    yield make
    for pool in pools:
        pool.cli("umount", pool.mountpoint)


@pytest.fixture
def command(workdir: Path) -> str:
    script = workdir / "commitlogfs"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m commitlogfs.mount.cli "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_logrotate_moves_keeper_and_daemon_to_a_new_file(
    background: Callable[..., Background], command: str
) -> None:
    mount = background()
    eventually(lambda: len(mount.writers()) == 3)  # one stands by
    with mount.pool.path(0).open("wb") as held:
        held.write(bytes(mount.pool.segment_size))
        mount.rotate(command)
        eventually(lambda: mount.logs_of() == {mount.log})
        assert "event=ready" in mount.renamed.read_text()
        before = mount.renamed.read_bytes()
        former = mount.daemon()
        os.kill(former, signal.SIGKILL)
        eventually(lambda: "event=ready" in mount.log.read_text())
        eventually(lambda: "event=daemon_died" in mount.log.read_text())
        assert mount.renamed.read_bytes() == before
        assert mount.daemon() != former
        assert mount.log.stat().st_mode & 0o777 == 0o640


def test_a_daemon_alone_opens_its_log_anew(background: Callable[..., Background], command: str) -> None:
    mount = background("--no-keeper")
    mount.rotate(command)
    eventually(lambda: mount.logs_of() == {mount.log})
    assert mount.pool.cli("umount", mount.pool.mountpoint).status == 0
    eventually(lambda: has_ended(mount.first))
    eventually(lambda: "event=unmounted" in mount.log.read_text())


def test_sighup_in_the_foreground_stops_nothing(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(1)
    pool.start()
    assert pool.daemon is not None
    pool.daemon.send_signal(signal.SIGHUP)
    pool.make_segments([0])
    assert pool.status()["daemon"]["pid"] == pool.daemon.pid
    assert "stop_requested" not in pool.log_since_start()


def test_a_log_that_cannot_be_opened_stops_no_takeover(background: Callable[..., Background]) -> None:
    """A process that opens a FIFO for writing waits for a reader."""
    mount = background("--no-standby")
    mount.log.rename(mount.renamed)
    os.mkfifo(mount.log)
    former = mount.daemon()
    assert mount.pool.cli("restart", "--timeout", f"{PATIENCE_S:g}", mount.pool.config).status == 0
    assert mount.daemon() != former
    mount.log.unlink()


@pytest.mark.alone
def test_a_hung_log_disk_does_not_hold_up_a_start(disk_farm: DiskFarm) -> None:
    """A new log file cannot be made there; the daemon has to take the mount over all the same."""
    disk = disk_farm.add()
    script = "from commitlogfs.mount.linux import logs; logs.catch_hangup(); print('started', flush=True)"
    with frozen(disk, 2 * PATIENCE_S):
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env={**os.environ, logs.FILE_VARIABLE: str(disk.path / "new.log")},
        )
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    process.communicate(timeout=PATIENCE_S)
    assert readable
