"""A real pool, exporter, Prometheus and Alertmanager: faults of disks and daemon become alerts, and end as such."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import prometheus, scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.filling import FOREIGN, fill_to
from support.freezing import frozen
from support.loop_disks import MIB, DiskFarm, LoopDisk, commitlog_directories, loop_available
from support.monitoring import alert_rules, dashboard_expressions, seconds
from support.pools import PoolMount
from support.prometheus import FASTER, INTERVAL_S, Stack, sped_up
from support.timings import SOON_CHECKED
from support.waiting import eventually

from commitlogfs.bench import sweep
from commitlogfs.mount.metrics.table import METRICS, Type

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.full,
    pytest.mark.alone,  # a disk is frozen
    pytest.mark.skipif(bool(prometheus.lacking()), reason=prometheus.lacking()),
]

PATIENCE_S = 60.0
MARGIN_S = 3.0
"""Time that a busy machine may need longer than the stated time."""
EXPECTED = {
    "CommitlogfsStoreRootFull",  # the disk of the machine
    "CommitlogfsNoTakeover",  # a keeper would end a hung daemon
}
"""Alerts about what surrounds the test."""
DISKS = 3
SEGMENTS = 12
pool_indexes = itertools.count(SEGMENTS)
"""Numbers of segments that are not there yet."""
NEEDS_AN_EVENT = {
    "changes(commitlogfs_restarts_total": "a takeover, which needs a keeper",
}
"""Parts of expressions of the dashboard that this test has no data for, and what is missing."""
BASE = "https://commitlogfs.example/"


@dataclass
class Incident:
    """A fault, the alert that it has to cause, and what was seen of both."""

    alert: str
    disk: str
    fault: Callable[[], AbstractContextManager[None]]
    found: dict[str, Any] = field(default_factory=dict)
    """The alert as Alertmanager had it; empty if it never came."""
    shown_at: float = 0.0
    """When a scrape first had the condition."""
    others: list[str] = field(default_factory=list)
    """Everything that fired then."""
    left: list[str] = field(default_factory=list)
    """Alerts that still fired some time after the end of the fault."""


@dataclass
class Story:
    stack: Stack
    pool: PoolMount
    incidents: dict[str, Incident]
    before: list[str]
    """Alerts before the first incident."""
    turned: dict[str, Any]
    """The alert about a disk that has become read-only, which only a new mount would end."""


@pytest.fixture(scope="module")
def story(base_directory: Path) -> Iterator[Story]:
    """All incidents, one after the other, on one pool."""
    if lack := loop_available():
        pytest.skip(lack)
    directory = base_directory / "alerts"
    directory.mkdir(mode=0o755)
    with ExitStack() as stack:
        stack.callback(sweep.remove_tree, directory)
        farm = stack.enter_context(DiskFarm(directory / "disks"))
        disks = [farm.add() for _ in range(DISKS)]
        pool = PoolMount(
            directory, commitlog_directories(*disks), variables=SOON_CHECKED, retention={"interval": '"1s"'}
        )
        stack.callback(pool.abandon)
        pool.init()
        pool.start()
        scrubs.fill(pool, range(SEGMENTS))
        programs = stack.enter_context(prometheus.running(directory / "programs", pool))
        live(pool, programs)
        before = await_silence(programs)
        incidents = {name: make() for name, make in the_incidents(pool, disks).items()}
        for incident in incidents.values():
            happen(incident, programs)
        turned = turn_read_only(pool, disks[0], programs)
        yield Story(programs, pool, incidents, before, turned)


def live(pool: PoolMount, stack: Stack) -> None:
    """The usual work of a mount: writes, reads, removals, a drain, a scrub, a request that fails."""
    ran = pool.cli("disk", "drain", pool.disks[1], pool.name, "--by-expiry")
    assert ran.status == 0, ran.err
    await_checksums(pool, SEGMENTS - NEWEST)
    assert scrubs.scrub(pool) == {}
    for index in (0, 1):
        pool.path(index).unlink()
    for index in range(SEGMENTS - NEWEST):
        if pool.path(index).exists():
            os.close(os.open(pool.path(index), os.O_RDONLY))
    with pytest.raises(FileNotFoundError):
        os.open(pool.path(0), os.O_RDONLY)
    write_for(pool, 4.0)
    for disk in pool.disks:
        fill_to(disk.parent, 87)
    eventually(lambda: stack.query("commitlogfs_retention_force_eta_seconds"))
    for disk in pool.disks:
        (disk.parent / FOREIGN).unlink()
    ran = pool.cli("disk", "cancel", pool.disks[1], pool.name)
    assert ran.status == 0, ran.err


def write_for(pool: PoolMount, seconds: float) -> None:
    """A log that grows for a while: the daemon measures its rate."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        index = next(pool_indexes)
        pool.make_segments([index], fill=False)
        fd = os.open(pool.path(index), os.O_RDWR)
        try:
            for position in range(0, MIB, MIB // 4):
                os.pwrite(fd, b"x" * (MIB // 4), position)
                os.fsync(fd)
                time.sleep(0.25)
        finally:
            os.close(fd)


def the_incidents(pool: PoolMount, disks: list[LoopDisk]) -> dict[str, Callable[[], Incident]]:
    paths = [str(path) for path in pool.disks]

    @contextmanager
    def filled() -> Iterator[None]:
        fill_to(disks[0].path, 97)
        pool.make_segments([next(pool_indexes)])
        try:
            yield
        finally:
            (disks[0].path / FOREIGN).unlink()

    @contextmanager
    def frozen_disk() -> Iterator[None]:
        with frozen(disks[1], PATIENCE_S + 20):
            yield

    @contextmanager
    def hung() -> Iterator[None]:
        assert pool.daemon is not None
        pool.daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            pool.daemon.send_signal(signal.SIGCONT)

    @contextmanager
    def lost() -> Iterator[None]:
        device = disks[2].device
        disks[2].detach()
        try:
            yield
        finally:
            subprocess.run(["mount", device, disks[2].path], check=True)

    @contextmanager
    def damaged() -> Iterator[None]:
        pool.cli("scrub", "clear", pool.name)
        index = next(i for i in range(2, SEGMENTS - NEWEST) if pool.disk_of(i) == 0)
        scrubs.flip(backing(pool, index), 1000)
        assert scrubs.scrub(pool)
        try:
            yield
        finally:
            assert pool.cli("scrub", "clear", pool.name).status == 0

    return {
        "damage": lambda: Incident("CommitlogfsDamagedSegment", paths[0], damaged),
        "full disk": lambda: Incident("CommitlogfsDiskFull", paths[0], filled),
        "frozen disk": lambda: Incident("CommitlogfsDiskUnresponsive", paths[1], frozen_disk),
        "hung daemon": lambda: Incident("CommitlogfsDown", "", hung),
        "lost disk": lambda: Incident("CommitlogfsDiskVanished", paths[2], lost),
    }


def turn_read_only(pool: PoolMount, disk: LoopDisk, stack: Stack) -> dict[str, Any]:
    """The last incident. A segment of that disk is opened, too: the daemon serves it."""
    segment = next(index for index in range(2, SEGMENTS) if pool.disk_of(index) == 0)
    disk.turn_read_only()
    found = eventually(
        lambda: find(stack, "CommitlogfsDiskFailed"),
        PATIENCE_S,
        lambda: f"{stack.firing()}\n{pool.log_since_start()[-3000:]}",
    )
    os.close(os.open(pool.path(segment), os.O_RDONLY))
    eventually(lambda: stack.query("commitlogfs_passthrough_fallbacks_total"))
    time.sleep(3 * INTERVAL_S)  # a rate needs two scrapes
    return found


def happen(incident: Incident, stack: Stack) -> None:
    begun = time.time()
    with incident.fault():
        try:
            incident.found = eventually(lambda: find(stack, incident.alert))
        except AssertionError:
            return
        finally:
            incident.others = stack.firing()
        incident.shown_at = first_shown(stack, incident.alert, begun)
    incident.left = await_silence(stack)


def find(stack: Stack, name: str) -> dict[str, Any] | None:
    return next((alert for alert in stack.alerts() if alert["labels"]["alertname"] == name), None)


def first_shown(stack: Stack, name: str, begun: float) -> float:
    """Time of the first evaluation, after `begun`, at which the condition of an alert held."""
    expression = sped_up(alert_rules()[name]["expr"])
    (series, *_) = stack.query_range(expression, begun)
    return float(series["values"][0][0])


def await_silence(stack: Stack) -> list[str]:
    """The alerts that fire until they end; what is left after a while."""

    def present() -> list[str]:
        return [name for name in stack.firing() if name.split()[0] not in EXPECTED]

    try:
        eventually(lambda: not present())
    except AssertionError:
        return present()
    return []


INCIDENTS = ("damage", "full disk", "frozen disk", "hung daemon", "lost disk")


def test_a_sound_mount_is_silent(story: Story) -> None:
    assert story.before == []


@pytest.mark.parametrize("name", INCIDENTS)
def test_a_fault_reaches_alertmanager_with_its_disk_and_runbook(story: Story, name: str) -> None:
    incident = story.incidents[name]
    assert incident.found, f"no {incident.alert}; fired: {incident.others}\n{story.pool.log_since_start()[-3000:]}"
    labels = incident.found["labels"]
    assert (labels["pool"], labels.get("disk", "")) == ("test", incident.disk)
    runbook = incident.found["annotations"]["runbook_url"]
    assert (ROOT / runbook.removeprefix(BASE)).exists()
    others = {alert.partition(" ")[2] for alert in incident.others}
    assert others <= {"", incident.disk}, "an alert names another disk"


@pytest.mark.timing
@pytest.mark.parametrize("name", INCIDENTS)
def test_an_alert_fires_within_the_stated_time(story: Story, name: str) -> None:
    incident = story.incidents[name]
    assert incident.found
    rule = alert_rules()[incident.alert]
    waits_s = seconds(rule.get("for", "0s")) / FASTER
    fired_at = datetime.fromisoformat(incident.found["startsAt"]).timestamp()
    assert fired_at - incident.shown_at <= waits_s + 2 * INTERVAL_S + MARGIN_S


@pytest.mark.parametrize("name", INCIDENTS)
def test_everything_is_silent_after_the_fault(story: Story, name: str) -> None:
    assert story.incidents[name].left == []


def test_a_disk_that_turns_read_only_counts_as_failed(story: Story) -> None:
    assert story.turned["labels"]["disk"] == str(story.pool.disks[0])


def test_every_metric_of_the_table_was_scraped(story: Story) -> None:
    suffix = {Type.HISTOGRAM: "_bucket"}
    names = {row.full_name + suffix.get(row.type, "") for row in METRICS}
    assert names - story.stack.metric_names() == set()


def test_every_expression_of_the_dashboard_had_data(story: Story) -> None:
    def asked(expression: str) -> str:
        chosen = expression.replace("$instance", ".*").replace("$pool", ".*").replace("$__rate_interval", "5m")
        # A window of a minute has one scrape or two when all is FASTER: none, when the machine is busy.
        return sped_up(chosen, FASTER // 4)

    without = [expression for expression in dashboard_expressions() if not story.stack.had_data(asked(expression))]
    assert [expression for expression in without if not any(name in expression for name in NEEDS_AN_EVENT)] == []
