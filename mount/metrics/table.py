"""The table of all metrics: the only home of their names, types, labels and texts. Pure.

docs/reference/metrics.md has a row for each. Names and units follow Prometheus' rules: base units, `_total` for
counters, and no more than SERIES_PER_DISK series for a disk.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

PREFIX: Final = "commitlogfs_"
POOL: Final = "pool"
"""First label of every metric: the mount's name."""
SERIES_PER_DISK: Final = 40

CREATE_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
OPERATION_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 1.0, 10.0)
DISK_BUCKETS: Final = (0.01, 0.1, 1.0)
"""Few, as there is such a histogram for each disk. A broker warns about a create that took more than 0.01 s."""


class Type(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. `name` is as exposed, without PREFIX and the suffixes of a histogram's series."""

    name: str
    type: Type
    text: str
    labels: tuple[str, ...] = ()
    """Without POOL."""
    buckets: tuple[float, ...] = ()
    """Upper bounds in seconds."""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (POOL, *self.labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Type.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Type.COUNTER, text, labels)


METRICS: Final = (
    # the daemon and its mount
    Metric("build_info", Type.INFO, "Version of the daemon", ("version",)),
    _gauge("daemon_start_timestamp_seconds", "When the serving daemon has started, in epoch seconds"),
    _gauge("takeover_available", "1 if a successor could take the mount over"),
    _gauge("degraded", "1 while the mount is served without some of its disks"),
    _gauge("alert", "1 for each alert that is present", "code", "disk"),
    _gauge("open_handles", "Segments that are open through the mount"),
    _gauge("passthrough_handles", "Files that the kernel serves by itself"),
    _counter("passthrough_fallbacks_total", "Files served by the daemon although passthrough is on", "reason"),
    _counter("restarts_total", "Takeovers of this mount"),
    _counter("resent_requests_total", "Requests that a former daemon had taken and not answered"),
    _gauge("state_lost", "1 if files opened before a restart are stale since"),
    _counter("fuse_ops_total", "FUSE requests answered", "op", "errno"),
    Metric("fuse_op_seconds", Type.HISTOGRAM, "Time to answer a FUSE request", ("op",), OPERATION_BUCKETS),
    # the log
    _gauge("first_offset_bytes", "Base offset of the oldest segment"),
    _gauge("last_offset_bytes", "Base offset of the newest segment"),
    _gauge("log_end_offset_bytes", "Log offset after the last byte written"),
    _gauge("ingest_bytes_per_second", "Growth of the log over the latest two minutes"),
    _gauge("oldest_message_timestamp_seconds", "Store time of the oldest message, in epoch seconds"),
    _gauge("log_gaps", "Gaps in the log"),
    _gauge("log_accepted_gaps", "Gaps in the log that are accepted losses"),
    # placement
    _counter("segment_creates_total", "Creates of segments and copies", "result"),
    Metric(
        "segment_create_seconds",
        Type.HISTOGRAM,
        "Time to create a segment, reservation included",
        buckets=CREATE_BUCKETS,
    ),
    _counter("segment_create_retries_total", "Creates that a disk refused, so that the next disk was tried"),
    _counter("placement_skips_total", "Disks passed over when a segment was placed", "reason"),
    _gauge("placement_fallback", "1 while every disk is above force, so that they are used anyway"),
    # retention
    _gauge("statfs_used_ratio", "Used share that statfs shows to the broker"),
    _gauge("store_root_used_ratio", "Used share of the filesystem around the mount"),
    _gauge("retention_pressure_eta_seconds", "Time until forced deletion is triggered, at the present rate"),
    _gauge("retention_force_eta_seconds", "Time until forced deletion begins; 0 while it removes segments"),
    _gauge("retention_removing_segments", "Segments that are due for removal by rule now"),
    _gauge("retention_held_open_segments", "Segments that were removed by rule and are still open"),
    _gauge("retention_held_open_bytes", "Bytes of these segments"),
    _counter("segments_removed_total", "Segments removed: through the mount (unlink), or by which rule", "reason"),
    # disks
    _gauge("disk_size_bytes", "Size of the disk's filesystem", "disk"),
    _gauge("disk_used_bytes", "Used bytes, removed but open segments not counted", "disk"),
    _gauge("disk_avail_bytes", "Bytes available to segments", "disk"),
    _gauge("disk_used_ratio", "used / (used + available)", "disk"),
    _gauge("disk_threshold_ratio", "Used share at which the disk reaches a threshold", "disk", "level"),
    _gauge("disk_threshold_eta_seconds", "Time until it does at the present rate", "disk", "level"),
    _gauge("disk_state", "1, with the disk's present state as label", "disk", "state"),
    _gauge("disk_segments", "Segments on the disk", "disk"),
    _gauge("disk_held_segments", "Moved to other disks, but still open here", "disk"),
    _gauge("disk_drain_segments", "Segments that a drain has still to take from the disk", "disk"),
    Metric(
        "disk_segment_create_seconds",
        Type.HISTOGRAM,
        "Time to create a segment on the disk; their number is its share of the placement",
        ("disk",),
        DISK_BUCKETS,
    ),
    Metric(
        "disk_segment_removal_seconds",
        Type.HISTOGRAM,
        "Time to remove a segment from the disk",
        ("disk",),
        DISK_BUCKETS,
    ),
    _counter("disk_read_bytes_total", "Read from the block device since boot", "disk"),
    _counter("disk_written_bytes_total", "Written to the block device since boot", "disk"),
    _counter("disk_busy_seconds_total", "Time since boot with a request under way at the block device", "disk"),
    _gauge("disk_operation_seconds", "Time of one operation in the latest 10 s", "disk", "op"),
    _gauge("disk_peers_operation_seconds", "The same, median of the disk's peers", "disk", "op"),
    _counter("disk_io_errors_total", "Errors and missed deadlines of disks", "disk", "op", "errno"),
    # members, and segments that move between them
    _gauge("members_generation", "Generation of the list of members"),
    _gauge("members_lagging", "Disks that do not record this list yet"),
    _gauge("members_missing", "Disks that this mount is without, and not offline"),
    _gauge("members_offline", "Disks that an operator has released"),
    _gauge("members_given_up", "Disks that were given up"),
    _gauge("disk_spread_ratio", "Difference between the fullest and the emptiest disk"),
    _gauge("rebalance_running", "1 while a rebalance of this mode runs", "mode"),
    _gauge("rebalance_remaining_bytes", "Bytes that a rebalance has still to move, or the broker to write"),
    _gauge("move_remaining_bytes", "Bytes of the segment under way that are still to be copied and read back"),
    _counter("segments_moved_total", "Segments moved to another disk"),
    _counter("segments_moved_bytes_total", "Bytes of segments moved to another disk"),
    _counter("segments_restored_total", "Missing segments that have come back from elsewhere"),
    _counter("segments_repaired_total", "Damaged segments that were replaced by a right copy"),
    _counter("segment_move_failures_total", "Moves that failed; they are tried again"),
    # integrity
    _gauge("checksum_segments", "Sealed segments, by what is known of their checksums", "state"),
    _counter("checksums_computed_total", "Checksums computed for sealed segments"),
    _counter("checksum_bytes_total", "Bytes read to compute checksums"),
    _counter("checksum_mismatches_total", "Segments that differ from their checksums"),
    _counter("lost_writes_total", "Writes that a disk has refused after they were done"),
    _gauge("scrub_running", "1 while a scrub is under way, or paused"),
    _counter("scrub_bytes_total", "Bytes that scrubs have read"),
    _gauge("scrub_remaining_bytes", "Bytes that the scrub under way has still to read", "disk"),
    _gauge("scrub_unread_segments", "Segments that the present or latest scrub has not read", "disk"),
    _gauge(
        "scrub_completed_timestamp_seconds",
        "When the last complete scrub has ended; 0 if there was none, or while a disk is missing",
    ),
    _counter("scrub_errors_total", "Segments that were found to be damaged", "kind"),
    _gauge("damage_known", "1 once the disk has answered which of its segments have a verdict", "disk"),
    _gauge("damaged_segments", "Segments with a verdict that was not cleared", "disk", "kind"),
    _gauge("set_aside_bytes", "Bytes of damaged files of repaired segments", "disk"),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
