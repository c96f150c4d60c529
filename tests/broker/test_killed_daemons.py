"""The daemon is killed and replaced again and again under a broker that flushes each message and a producer that
counts: nobody notices, nothing is lost, nothing leaks."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import background_user, faults
from support.brokers import IDLE_S, Stand, complaints, line_count, send_all, wait_until
from support.faults import FaultPlan
from support.kept import KeptMount
from support.pools import MIB
from support.waiting import eventually

from commitlogfs.bench import rocketmq
from commitlogfs.mount.linux import mountinfo

pytestmark = [
    pytest.mark.broker,
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built"),
]

SEED = 20
STEPS = 25
"""Time for a create with the growth that follows, with a margin."""
PATIENT = {"osPageCacheBusyTimeOutMills": "10000"}
"""By default a broker refuses messages once one has waited for a second. Two processors that other tests use, too,
may need that long for the next segment, which is required every 0.8 s here, is made slowly, and while daemons die.
How long a successor takes is measured by the bench; the long proofs have the default."""
SLOW_S = 0.02
"""Added before and after each step: an operation takes long enough to be met in its middle."""


class Ends:
    """The ways in which a daemon comes to its end, one after the other."""

    def __init__(self, kept: KeptMount, plan: FaultPlan) -> None:
        self._kept = kept
        self._plan = plan
        self._random = random.Random(SEED)  # noqa: S311 - to be repeated
        self.done = 0

    def kill(self) -> None:
        """At a random moment, in the middle of a slow operation, or at a random step."""
        pid = self._kept.newest_daemon()
        how = self.done % 3
        if how == 0:
            time.sleep(self._random.uniform(0, 0.3))
            os.kill(pid, signal.SIGKILL)
        elif how == 1:
            self._plan.slow_down(pid, SLOW_S)
            eventually(lambda: self._plan.steps > 0)
            time.sleep(self._random.uniform(0, 10 * SLOW_S))
            os.kill(pid, signal.SIGKILL)
        else:
            self._plan.die_at(pid, self._random.randint(1, STEPS))
        self._kept.await_successor()
        self._kept.newest_daemon()
        self._plan.disarm()
        self.done += 1

    def restart(self) -> None:
        self._kept.newest_daemon()
        # The background user's segments lie far from the broker's: a gap, which a restart refuses otherwise.
        ran = self._kept.pool.cli("restart", "--degraded", self._kept.pool.name)
        assert ran.status == 0, ran.err
        self._kept.await_successor()
        self._kept.newest_daemon()
        self.done += 1


class Site:
    """A kept mount over real disks, its broker and a background user."""

    def __init__(self, stand: Stand, kept: KeptMount, plan: FaultPlan) -> None:
        self.stand = stand
        self.kept = kept
        self.ends = Ends(kept, plan)

    def _has_standby(self) -> bool:
        """Whether the next daemon is being loaded, for which the keeper has descriptors."""
        log = self.kept.pool.log_since_start()
        return log.rfind("event=standby_started ") > log.rfind("event=ready ")

    def counts(self) -> dict[str, int]:
        """Resources that could leak. No process may use the mount meanwhile."""
        self.kept.replace()  # a descriptor may have been kept for later by the daemon that made the file
        eventually(self._has_standby)
        # A broker that stops removes the segment that it has prepared: freed within a second of its last close.
        eventually(lambda: not self.kept.pool.status()["segments"]["retired"])
        keeper = self.kept.pool.daemon
        assert keeper is not None
        used = 0
        for directory in self.stand.directories():
            st = os.statvfs(directory)
            used += (st.f_blocks - st.f_bfree) * st.f_frsize
            used -= sum(path.stat().st_blocks * 512 for path in directory.iterdir() if path.is_file())
        return {
            "daemon": fewest_descriptors(self.kept.daemon),
            "keeper": fewest_descriptors(keeper.pid),
            "disk blocks": used // MIB,
            "mounts": len(mountinfo.mounts_below(self.kept.pool.workdir)),
        }


def fewest_descriptors(pid: int) -> int:
    """Number of those that a process keeps open: each check of a disk has some for a moment."""

    def counted() -> int:
        time.sleep(0.05)
        return len(os.listdir(f"/proc/{pid}/fd"))

    return min(counted() for _ in range(20))


@pytest.fixture(params=["auto", pytest.param("off", marks=pytest.mark.soak)], ids=["passed", "plain"])
def site(new_stand: Callable[..., Stand], request: pytest.FixtureRequest, workdir: Path) -> Site:
    plan = FaultPlan(workdir)
    stand = new_stand(
        ("ext4", "xfs", "ext4"),
        segment_size=2 * MIB,
        disk_bytes=4096 * MIB,  # sparse; on a busy machine 200 ends take so long that 1 GiB fills up
        settings={"passthrough": f'"{request.param}"'},
        variables=plan.variables,
    )
    stand.pool.init()
    kept = KeptMount(stand.pool)
    kept.start()
    return Site(stand, kept, plan)


def run(
    site: Site,
    distribution: rocketmq.Distribution,
    workdir: Path,
    ends: Callable[[], None],
    settings: Mapping[str, str] | None = None,
) -> None:
    pool, names = site.kept.pool, site.stand.names
    before = site.counts()
    mount = mountinfo.find_mount(pool.mountpoint)
    acked = workdir / "acked"
    with site.stand.broker(distribution, {"flushDiskType": "SYNC_FLUSH", **(settings or {})}) as broker:
        send_all(distribution, names, "First", 100)
        sender = rocketmq.start_sender(distribution, names.address, "Kills", size_bytes=4096, rate=600, acked=acked)
        with sender, background_user.running(pool.mountpoint, pool.segment_size):
            wait_until(lambda: line_count(acked) >= 200, "sending")
            ends()
            totals = sender.stop()
        assert (totals.failed, totals.abandoned) == (0, 0), totals.last_error
        seen = rocketmq.consume(distribution, names.address, "Kills", expect=totals.sent, idle_timeout_s=IDLE_S)
        assert (seen.distinct, seen.duplicates, seen.corrupted, seen.skipped) == (totals.sent, 0, 0, 0)
        assert complaints(broker) == []
        assert mountinfo.find_mount(pool.mountpoint) == mount
        broker.stop()
    assert site.counts() == before
    assert pool.status()["daemon"]["restarts"] == site.ends.done + 2  # counts() replaces it, too
    pool.stop()
    for disk in site.stand.disks:
        disk.unmount()  # nothing in the kernel has hold of a file there


def test_nine_kills_and_two_restarts(site: Site, newest: rocketmq.Distribution, workdir: Path) -> None:
    def ends() -> None:
        for number in range(9):
            site.ends.kill()
            if number % 5 == 3:
                site.ends.restart()

    run(site, newest, workdir, ends, PATIENT)


@pytest.mark.soak
def test_two_hundred_kills(site: Site, newest: rocketmq.Distribution, workdir: Path) -> None:
    def ends() -> None:
        for _ in range(200):
            site.ends.kill()

    run(site, newest, workdir, ends)


@pytest.mark.soak
def test_two_hundred_restarts(site: Site, newest: rocketmq.Distribution, workdir: Path) -> None:
    def ends() -> None:
        for _ in range(200):
            site.ends.restart()

    run(site, newest, workdir, ends)
