"""State that is read at a scrape, from the status document and from the live objects."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.metrics.table import BY_NAME, METRICS, Metric, Type
from commitlogfs.mount.status.moves import PHASES
from commitlogfs.store.disks import forecast
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import RebalanceMode
from commitlogfs.store.files.attributes import unpack
from commitlogfs.store.pool.commitlog import LEFT_OVER, UNLINK
from commitlogfs.store.retention import Rule
from commitlogfs.store.scrub.verdict import Kind
from commitlogfs.store.slowness.load import device_counters

_VERIFYING = "verifying"
"""Second phase of a move (mount.status.moves)."""


class Sample(NamedTuple):
    name: str
    """The name of a row of the table."""
    value: float | None
    """None for what is not known, which is not exposed."""
    labels: tuple[str, ...] = ()


class StateCollector(Collector):
    """The cost does not depend on the number of segments."""

    def __init__(self, parts: Parts, pool: str) -> None:
        self._parts = parts
        self._pool = pool
        self.document: dict[str, Any] | None = None
        """The status document of this moment; to be set before a scrape."""

    def collect(self) -> Iterable[Family]:
        if self.document is None:  # when it is registered
            return
        families: dict[str, Family] = {}
        for sample in self._samples(self.document):
            if sample.value is not None:
                row = BY_NAME[sample.name]
                family = families.setdefault(sample.name, _family(row))
                family.add_metric((self._pool, *sample.labels), sample.value)  # type: ignore[attr-defined]
        yield from (families[row.name] for row in METRICS if row.name in families)

    def _samples(self, document: dict[str, Any]) -> Iterator[Sample]:
        yield from _daemon_samples(document, self._parts)
        yield from _log_samples(document, self._parts)
        yield from _retention_samples(document, self._parts)
        for disk in self._parts.commitlog.disks.values():
            yield from _disk_samples(disk, self._parts)
        yield from _forecast_samples(document, self._parts)
        yield from _member_samples(self._parts)
        yield from _move_samples(document, self._parts)
        yield from _integrity_samples(document, self._parts)


def _family(row: Metric) -> Family:
    made = CounterMetricFamily if row.type is Type.COUNTER else GaugeMetricFamily
    return made(row.full_name, row.text, labels=row.all_labels)


def _daemon_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    daemon, backing = document["daemon"], parts.backing
    passed, _ = backing.counts()
    yield Sample("daemon_start_timestamp_seconds", daemon["since"])
    yield Sample("takeover_available", float(daemon["takeover_available"]))
    yield Sample("degraded", float(document["degraded"]))
    for alert in document["alerts"]:
        yield Sample("alert", 1.0, (alert["code"], alert["disk"] or ""))
    yield Sample("open_handles", parts.handles.statistics().files)
    yield Sample("passthrough_handles", passed)
    yield Sample("restarts_total", backing.takeovers)
    yield Sample("state_lost", float(backing.state_lost))


def _log_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    segments, catalog = document["segments"], parts.commitlog.catalog
    first, last = catalog.first, catalog.last
    yield Sample("first_offset_bytes", None if first is None else first.base_offset)
    yield Sample("last_offset_bytes", None if last is None else last.base_offset)
    yield Sample("log_end_offset_bytes", document["written_to"])
    yield Sample("ingest_bytes_per_second", document["ingest_bytes_per_second"])
    yield Sample("oldest_message_timestamp_seconds", document["oldest_message"])
    yield Sample("log_gaps", catalog.gap_count)
    yield Sample("log_accepted_gaps", segments["accepted_gaps"])


def _retention_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    retention, counters = document["retention"], parts.commitlog.counters
    shown, root = document["statfs"], document["store_root"]["used_percent"]
    yield Sample("placement_fallback", float(document["placement"]["fallback"]))
    yield Sample("statfs_used_ratio", 1 - shown["free"] / shown["blocks"])
    yield Sample("store_root_used_ratio", None if root is None else root / 100)
    yield Sample("retention_pressure_eta_seconds", retention["pressure_in_seconds"])
    yield Sample("retention_force_eta_seconds", retention["force_in_seconds"])
    yield Sample("retention_removing_segments", retention["removing"])
    yield Sample("retention_held_open_segments", retention["held_open"]["segments"])
    yield Sample("retention_held_open_bytes", retention["held_open"]["bytes"])
    yield Sample("segment_create_retries_total", counters.create_retries)
    for reason in (UNLINK, LEFT_OVER, *(rule.value for rule in Rule)):
        yield Sample("segments_removed_total", counters.removed[reason], (reason,))


def _disk_samples(disk: Disk, parts: Parts) -> Iterator[Sample]:
    log, label = parts.commitlog, (disk.path,)
    usage = log.usage(disk.number)
    if usage is not None:
        yield Sample("disk_size_bytes", usage.total_bytes, label)
        yield Sample("disk_used_bytes", usage.used_bytes, label)
        yield Sample("disk_avail_bytes", usage.available_bytes, label)
        yield Sample("disk_used_ratio", float(usage.used_ratio), label)
    yield Sample("disk_state", 1.0, (disk.path, disk.reported_state.value))
    yield Sample("disk_segments", log.catalog.count_on_disk(disk.number), label)
    yield Sample("disk_held_segments", len(log.others.moved(disk.number)), label)
    left = None if disk.drain is None else log.catalog.count_on_disk(disk.number)
    yield Sample("disk_drain_segments", left, label)
    counters = device_counters(disk.device)
    if counters is not None:
        yield Sample("disk_read_bytes_total", counters.read_bytes, label)
        yield Sample("disk_written_bytes_total", counters.write_bytes, label)
        yield Sample("disk_busy_seconds_total", counters.busy_ms / 1000, label)
    for compared in disk.operation_times:
        of_operation = (disk.path, compared.operation.value)
        yield Sample("disk_operation_seconds", compared.time_s, of_operation)
        yield Sample("disk_peers_operation_seconds", compared.peers_s, of_operation)


def _forecast_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    """Levels of the disks, and when they are reached by those that take segments."""
    eligible = {disk["number"] for disk in document["disks"] if disk["eligible"]}
    share = document["ingest_bytes_per_second"] / len(eligible) if eligible else 0.0
    for disk in parts.commitlog.disks.values():
        usage, limits = parts.commitlog.usage(disk.number), disk.thresholds
        rate = share if disk.number in eligible else 0.0
        for level, percent in (("clean", limits.clean), ("force", limits.force), ("full", limits.full)):
            labels = (disk.path, level)
            yield Sample("disk_threshold_ratio", percent / 100, labels)
            if usage is not None:
                eta_s = forecast.seconds_until(usage, percent, rate)
                yield Sample("disk_threshold_eta_seconds", eta_s, labels)


def _member_samples(parts: Parts) -> Iterator[Sample]:
    log = parts.commitlog
    yield Sample("members_generation", log.membership.generation)
    yield Sample("members_lagging", len(log.lagging()))
    yield Sample("members_missing", len(log.missed()))
    yield Sample("members_offline", len(log.offline()))
    yield Sample("members_given_up", len(log.membership.losses))


def _move_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    counters, present = parts.commitlog.counters, parts.commitlog.membership.rebalance
    yield Sample("disk_spread_ratio", parts.rebalancing.levels().spread)
    for mode in RebalanceMode:
        is_running = present is not None and present.mode is mode
        yield Sample("rebalance_running", float(is_running), (mode.value,))
    rebalance, current = document["rebalance"], document["moves"]["current"]
    yield Sample("rebalance_remaining_bytes", 0 if rebalance is None else rebalance["bytes_left"])
    yield Sample("move_remaining_bytes", 0 if current is None else _remaining(current))
    yield Sample("segments_moved_total", counters.moved)
    yield Sample("segments_moved_bytes_total", counters.moved_bytes)
    yield Sample("segments_restored_total", counters.restored)
    yield Sample("segments_repaired_total", counters.repaired)
    yield Sample("segment_move_failures_total", counters.move_failures)


def _remaining(move: dict[str, Any]) -> int:
    """Bytes of a move that are still to be copied or read back."""
    phases = 1 if move["phase"] == _VERIFYING else PHASES
    remaining: int = phases * move["size"] - move["done_bytes"]
    return remaining


def _integrity_samples(document: dict[str, Any], parts: Parts) -> Iterator[Sample]:
    log, scrub, counters = parts.commitlog, parts.scrub, parts.commitlog.counters
    for state in ("with", "without", "unread"):
        yield Sample("checksum_segments", document["checksums"][state], (state,))
    yield Sample("checksums_computed_total", counters.checksums)
    yield Sample("checksum_bytes_total", counters.checksum_bytes)
    yield Sample("checksum_mismatches_total", counters.checksum_mismatches)
    yield Sample("lost_writes_total", counters.lost_writes)
    yield Sample("scrub_running", float(scrub.is_active))
    yield Sample("scrub_bytes_total", scrub.read_bytes)
    yield Sample("scrub_completed_timestamp_seconds", scrub.completed_s())
    for number, figures in scrub.figures().items():
        yield Sample("scrub_remaining_bytes", figures.left_bytes, (log.disks[number].path,))
        yield Sample("scrub_unread_segments", figures.progress.unread, (log.disks[number].path,))
    for kind in Kind:
        yield Sample("scrub_errors_total", counters.damaged[kind.value], (kind.value,))
    waiting = parts.verdicts.not_loaded()
    for number, disk in log.disks.items():
        yield Sample("damage_known", float(number not in waiting), (disk.path,))
    damaged = Tally((segment.disk, verdict.kind) for segment, verdict in parts.verdicts.present())
    for (number, kind), count in damaged.items():
        yield Sample("damaged_segments", count, (log.disks[number].path, kind.value))
    kept = log.others.set_aside()
    for disk in log.disks.values():
        sizes = (unpack(file.attributes).allocated_bytes for file in kept if file.disk == disk.number)
        yield Sample("set_aside_bytes", sum(sizes), (disk.path,))
