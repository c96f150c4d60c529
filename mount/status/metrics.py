"""Prometheus metrics of one daemon (names in docs/reference/metrics.md)."""

import os
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from commitlogfs.console.version import VERSION
from commitlogfs.fusefs.integrity.checksums import Checksums
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.moves.rebalancing import Rebalancing
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import RebalanceMode
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.pool.commitlog import LEFT_OVER, UNLINK, CommitLog
from commitlogfs.store.retention import Rule
from commitlogfs.store.scrub.verdict import Kind

_CREATE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
_OP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 1.0, 10.0)


class Metrics:
    """Counts what the request handlers report (fusefs.kernel.observer.Observer), and renders it with the state of
    the log."""

    def __init__(self, on_first_answer: Callable[[], None] | None = None) -> None:
        """`on_first_answer` is called once, right before the first request is answered."""
        self._on_first_answer = on_first_answer
        self.registry = CollectorRegistry()
        self._ops = Counter(
            "commitlogfs_fuse_ops", "FUSE requests answered", ("op", "errno"), registry=self.registry
        )
        self._op_seconds = Histogram(
            "commitlogfs_fuse_op_seconds",
            "Time to answer a FUSE request",
            ("op",),
            buckets=_OP_BUCKETS,
            registry=self.registry,
        )
        self._creates = Counter(
            "commitlogfs_segment_creates", "Creates of segments and copies", ("result",), registry=self.registry
        )
        self._create_seconds = Histogram(
            "commitlogfs_segment_create_seconds",
            "Time to create a segment, reservation included",
            buckets=_CREATE_BUCKETS,
            registry=self.registry,
        )
        self._disk_errors = Counter(
            "commitlogfs_disk_io_errors",
            "Errors and missed deadlines of disks",
            ("disk", "op", "errno"),
            registry=self.registry,
        )
        self._skips = Counter(
            "commitlogfs_placement_skips",
            "Disks passed over when a segment was placed",
            ("reason",),
            registry=self.registry,
        )
        self._plain_opens = Counter(
            "commitlogfs_passthrough_fallbacks",
            "Files served by the daemon although passthrough is on",
            ("reason",),
            registry=self.registry,
        )
        self._resent = Counter(
            "commitlogfs_resent_requests",
            "Requests that a former daemon had taken and not answered",
            registry=self.registry,
        )
        Info("commitlogfs_build", "Version", registry=self.registry).info({"version": VERSION})

    def operation(self, op: str, errno_name: str, seconds: float) -> None:
        if self._on_first_answer is not None:
            on_first_answer, self._on_first_answer = self._on_first_answer, None
            on_first_answer()
        self._ops.labels(op, errno_name).inc()
        self._op_seconds.labels(op).observe(seconds)

    def request_resent(self) -> None:
        self._resent.inc()

    def segment_created(self, result: str, seconds: float) -> None:
        self._creates.labels(result).inc()
        if result == "ok":
            self._create_seconds.observe(seconds)

    def disk_error(self, disk: str, op: str, errno_name: str) -> None:
        self._disk_errors.labels(disk, op, errno_name).inc()

    def placement_skipped(self, reason: str) -> None:
        self._skips.labels(reason).inc()

    def passthrough_refused(self, reason: str) -> None:
        self._plain_opens.labels(reason).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class LogCollector(Collector):
    """Gauges read from the log at the moment of a scrape."""

    def __init__(self, commitlog: CommitLog, pool: str) -> None:
        self._commitlog = commitlog
        self._pool = pool
        self._devices = {disk.number: _device_name(disk.device) for disk in commitlog.disks.values()}

    def collect(self) -> Iterable[Metric]:
        log = self._commitlog
        size = _gauge("disk_size_bytes", "Size of the disk's filesystem", "disk")
        used = _gauge("disk_used_bytes", "Used bytes, removed but open segments not counted", "disk")
        available = _gauge("disk_avail_bytes", "Bytes available to segments", "disk")
        ratio = _gauge("disk_used_ratio", "used / (used + available)", "disk")
        state = _gauge("disk_state", "1 for the disk's present state", "disk", "state")
        segments = _gauge("disk_segments", "Segments on the disk", "disk")
        held = _gauge("disk_held_segments", "Moved to other disks, but still open here", "disk")
        read = _counter("disk_read_bytes", "Read from the block device since boot", "disk")
        written = _counter("disk_written_bytes", "Written to the block device since boot", "disk")
        devices = _device_counters()
        for disk in log.disks.values():
            usage = log.usage(disk.number)
            if usage is not None:
                size.add_metric([self._pool, disk.path], usage.total_bytes)
                used.add_metric([self._pool, disk.path], usage.used_bytes)
                available.add_metric([self._pool, disk.path], usage.available_bytes)
                ratio.add_metric([self._pool, disk.path], float(usage.used_ratio))
            for possible in DiskState:
                state.add_metric([self._pool, disk.path, possible.value], float(disk.reported_state is possible))
            segments.add_metric([self._pool, disk.path], log.catalog.count_on_disk(disk.number))
            held.add_metric([self._pool, disk.path], len(log.others.moved(disk.number)))
            counters = devices.get(self._devices[disk.number])
            if counters is not None:
                read.add_metric([self._pool, disk.path], counters[0])
                written.add_metric([self._pool, disk.path], counters[1])
        yield from (size, used, available, ratio, state, segments, held, read, written)
        first, last = log.catalog.first, log.catalog.last
        if first is not None and last is not None:
            yield _single("first_offset_bytes", "Base offset of the oldest segment", self._pool, first.base_offset)
            yield _single("last_offset_bytes", "Base offset of the newest segment", self._pool, last.base_offset)
        yield _single("log_gaps", "Gaps in the log", self._pool, log.catalog.gap_count)
        removed = _counter(
            "segments_removed", "Segments removed: through the mount (unlink), or by which rule", "reason"
        )
        for reason in (UNLINK, LEFT_OVER, *(rule.value for rule in Rule)):
            removed.add_metric([self._pool, reason], log.counters.removed[reason])
        yield removed
        retries = _counter("segment_create_retries", "Creates that a disk refused, so that the next disk was tried")
        retries.add_metric([self._pool], log.counters.create_retries)
        yield retries
        for name, text, value in (
            ("segments_moved", "Segments moved to another disk", log.counters.moved),
            ("segments_moved_bytes", "Bytes of segments moved to another disk", log.counters.moved_bytes),
            ("segments_restored", "Missing segments that have come back from elsewhere", log.counters.restored),
            ("segments_repaired", "Damaged segments that were replaced by a right copy", log.counters.repaired),
            ("segment_move_failures", "Moves that failed; they are tried again", log.counters.move_failures),
            ("checksums_computed", "Checksums computed for sealed segments", log.counters.checksums),
            ("checksum_bytes", "Bytes read to compute checksums", log.counters.checksum_bytes),
            (
                "checksum_mismatches",
                "Segments that differ from their checksums",
                log.counters.checksum_mismatches,
            ),
            ("lost_writes", "Writes that a disk has refused after they were done", log.counters.lost_writes),
        ):
            counter = _counter(name, text)
            counter.add_metric([self._pool], value)
            yield counter


class MountCollector(Collector):
    """Values that outlive the daemon, read at the moment of a scrape."""

    def __init__(self, backing: Backing, pool: str) -> None:
        self._backing = backing
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        passed, _ = self._backing.counts()
        restarts = _counter("restarts", "Takeovers of this mount")
        restarts.add_metric([self._pool], self._backing.takeovers)
        yield restarts
        yield _single("passthrough_handles", "Files that the kernel serves by itself", self._pool, passed)
        lost = float(self._backing.state_lost)
        yield _single("state_lost", "1 if files opened before a restart are stale since", self._pool, lost)


class MembersCollector(Collector):
    """The list of members and what it records, read at the moment of a scrape."""

    def __init__(self, commitlog: CommitLog, pool: str) -> None:
        self._commitlog = commitlog
        self._pool = pool
        self.accepted_gaps = 0
        """To be counted before a scrape: with many gaps, that takes longer than a create may."""

    def collect(self) -> Iterable[Metric]:
        log, pool = self._commitlog, self._pool
        yield _single("log_accepted_gaps", "Gaps in the log that are accepted losses", pool, self.accepted_gaps)
        yield _single("members_generation", "Generation of the list of members", pool, log.membership.generation)
        yield _single("members_lagging", "Disks that do not record this list yet", pool, len(log.lagging()))
        yield _single(
            "members_missing", "Disks that this mount is without, and not offline", pool, len(log.missed())
        )
        yield _single("members_offline", "Disks that an operator has released", pool, len(log.offline()))
        yield _single("members_given_up", "Disks that were given up", pool, len(log.membership.losses))


class OperationTimesCollector(Collector):
    """Times of a read and a write on the disks' devices, read at the moment of a scrape."""

    def __init__(self, commitlog: CommitLog, pool: str) -> None:
        self._commitlog = commitlog
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        own = _gauge("disk_operation_seconds", "Time of one operation in the latest 10 s", "disk", "op")
        peers = _gauge("disk_peers_operation_seconds", "The same, median of the disk's peers", "disk", "op")
        for disk in self._commitlog.disks.values():
            for compared in disk.operation_times:
                labels = [self._pool, disk.path, compared.operation.value]
                own.add_metric(labels, compared.time_s)
                if compared.peers_s is not None:
                    peers.add_metric(labels, compared.peers_s)
        yield from (own, peers)


class RebalanceCollector(Collector):
    """How equally full the disks are, read at the moment of a scrape."""

    def __init__(self, rebalancing: Rebalancing, commitlog: CommitLog, pool: str) -> None:
        self._rebalancing = rebalancing
        self._commitlog = commitlog
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        spread = self._rebalancing.levels().spread
        yield _single(
            "disk_spread_ratio", "Difference between the fullest and the emptiest disk", self._pool, spread
        )
        running = _gauge("rebalance_running", "1 while a rebalance of this mode runs", "mode")
        present = self._commitlog.membership.rebalance
        for mode in RebalanceMode:
            running.add_metric([self._pool, mode.value], float(present is not None and present.mode is mode))
        yield running


class ChecksumCollector(Collector):
    """How many segments have a checksum, read at the moment of a scrape."""

    def __init__(self, checksums: Checksums, pool: str) -> None:
        self._checksums = checksums
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        counts = self._checksums.counts()
        family = _gauge("checksum_segments", "Sealed segments, by what is known of their checksums", "state")
        for state, value in (("with", counts.present), ("without", counts.absent), ("unread", counts.unread)):
            family.add_metric([self._pool, state], value)
        yield family


class ScrubCollector(Collector):
    """The scrub and what it has found, read at the moment of a scrape."""

    def __init__(self, operations: CommitLogOperations, pool: str) -> None:
        self._scrub = operations.scrub
        self._verdicts = operations.verdicts
        self._commitlog = operations.commitlog
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        scrub, pool = self._scrub, self._pool
        read = _counter("scrub_bytes", "Bytes that scrubs have read")
        read.add_metric([pool], scrub.read_bytes)
        yield read
        errors = _counter("scrub_errors", "Segments that were found to be damaged", "kind")
        damaged = _gauge("damaged_segments", "Segments with a verdict that was not cleared", "disk", "kind")
        present = Counts((segment.disk, verdict.kind) for segment, verdict in self._verdicts.present())
        for kind in Kind:
            errors.add_metric([pool, kind.value], self._commitlog.counters.damaged[kind.value])
            for disk in self._commitlog.disks.values():
                damaged.add_metric([pool, disk.path, kind.value], present[disk.number, kind])
        yield errors
        yield damaged
        aside = _gauge("set_aside_bytes", "Bytes of damaged files of repaired segments", "disk")
        kept = self._commitlog.others.set_aside()
        for disk in self._commitlog.disks.values():
            sizes = (unpack(file.attributes).allocated_bytes for file in kept if file.disk == disk.number)
            aside.add_metric([pool, disk.path], sum(sizes))
        yield aside
        remaining = _gauge("scrub_remaining_bytes", "Bytes that the scrub under way has still to read", "disk")
        for number, figures in scrub.figures().items():
            remaining.add_metric([pool, self._commitlog.disks[number].path], figures.left_bytes)
        yield remaining
        unread = _gauge("scrub_unread_segments", "Segments that the present or latest scrub has not read", "disk")
        for number, figures in scrub.figures().items():
            unread.add_metric([pool, self._commitlog.disks[number].path], figures.progress.unread)
        yield unread
        yield _single("scrub_running", "1 while a scrub is under way, or paused", pool, float(scrub.is_active))
        yield _single(
            "scrub_completed_timestamp_seconds",
            "When the last complete scrub has ended; 0 if there was none",
            pool,
            scrub.completed_s(),
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"commitlogfs_{name}", text, labels=["pool", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"commitlogfs_{name}", text, labels=["pool", *labels])


def _single(name: str, text: str, pool: str, value: float) -> GaugeMetricFamily:
    family = _gauge(name, text)
    family.add_metric([pool], value)
    return family


def _device_name(device: int) -> str:
    """Block device of this number, named as in /proc/diskstats; "" for a filesystem without one."""
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    return link.resolve().name if link.exists() else ""


def _device_counters() -> dict[str, tuple[int, int]]:
    """Bytes read and written per block device name, from the kernel's own counters."""
    counters = psutil.disk_io_counters(perdisk=True) or {}
    return {name: (io.read_bytes, io.write_bytes) for name, io in counters.items()}
