#!/usr/bin/env python3
"""Generates the Grafana dashboard monitoring/grafana/commitlogfs.json.

Usage: scripts/make_dashboard.py [--check]      --check: change nothing; exit 1 if the file is not up to date

The JSON is never edited by hand: change the panels here. tests/monitoring/test_dashboard.py compares the metrics of
the panels with those that the daemon exposes.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).resolve().parent.parent / "monitoring" / "grafana" / "commitlogfs.json"
COLUMNS: Final = 24
"""Width of Grafana's grid."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SELECTED: Final = 'instance=~"$instance", pool=~"$pool"'
NOT_RW: Final = 'state!="rw"'
FORCE: Final = 'level="force"'
FULL: Final = 'level="full"'
RATE: Final = "[$__rate_interval]"
DOCUMENTS: Final = "https://commitlogfs.example/docs"

Panel = dict[str, Any]
Query = tuple[str, str]
"""An expression, and the legend of its series."""

BY_DISK: Final = "{{pool}} {{disk}}"
BY_POOL: Final = "{{instance}} {{pool}}"

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"
LOW_IS_GOOD: Final = ((None, GREEN), (1, RED))
ONE_IS_GOOD: Final = ((None, RED), (1, GREEN))
FILL: Final = ((None, GREEN), (0.75, YELLOW), (0.85, ORANGE), (0.95, RED))
"""The default thresholds of a disk."""
STATES: Final = {
    "rw": GREEN,
    "ro": BLUE,
    "cordoned": BLUE,
    "draining": BLUE,
    "joining": BLUE,
    "leaving": BLUE,
    "offline": ORANGE,
    "slow": YELLOW,
    "failed": RED,
    "unreadable": RED,
    "vanished": RED,
    "unresponsive": RED,
}

Steps = Sequence[tuple[float | None, str]]


def metric(name: str, labels: str = "", window: str = "") -> str:
    """A selector of one metric of the chosen mounts."""
    return f"commitlogfs_{name}{{{', '.join(filter(None, (SELECTED, labels)))}}}{window}"


def recorded(name: str, labels: str = "") -> str:
    """A selector of one recording rule for the chosen mounts."""
    return f"{name}{{{', '.join(filter(None, (SELECTED, labels)))}}}"


def rate(name: str, labels: str = "") -> str:
    return f"rate({metric(name, labels, RATE)})"


def total_rate(by: str, name: str, labels: str = "") -> str:
    return f"sum by ({by}) ({rate(name, labels)})"


def grown(name: str, window: str, by: str = "") -> str:
    """How much a counter has grown within a window, added up by labels."""
    increase = f"increase({metric(name, window=window)})"
    return f"sum by ({by}) ({increase})" if by else increase


def _mean(name: str, by: str) -> str:
    return f"{total_rate(by, f'{name}_sum')} / {total_rate(by, f'{name}_count')}"


CREATE_BUCKETS: Final = metric("segment_create_seconds_bucket", window="[30m]")
MEDIAN_CREATE: Final = f"histogram_quantile(0.5, sum by (pool, le) (rate({CREATE_BUCKETS})))"
MEAN_REMOVAL: Final = _mean("disk_segment_removal_seconds", "pool, disk")


# --- kinds of panels -------------------------------------------------------------------------------------


def _targets(queries: Sequence[Query], *, instant: bool, as_table: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "datasource": DATASOURCE,
            "refId": chr(ord("A") + index),
            "expr": expression,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if as_table else {}),
        }
        for index, (expression, legend) in enumerate(queries)
    ]


def _panel(
    kind: str, title: str, queries: Sequence[Query], text: str, *, instant: bool, table: bool = False
) -> Panel:
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "targets": _targets(queries, instant=instant, as_table=table),
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {},
    }


def _steps(steps: Steps) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def stat(title: str, query: Query, unit: str, text: str, steps: Steps = ((None, BLUE),), **defaults: Any) -> Panel:
    """One number, coloured by its value."""
    panel = _panel("stat", title, [query], text, instant=True)
    panel["fieldConfig"]["defaults"] = {"unit": unit, "thresholds": _steps(steps), "noValue": "-", **defaults}
    panel["options"] = {
        "colorMode": "background" if len(steps) > 1 else "value",
        "graphMode": "none",
        "justifyMode": "center",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    return panel


def lines(
    title: str, queries: Sequence[Query], unit: str, text: str, *, stack: bool = False, **defaults: Any
) -> Panel:
    """Lines over time; stacked areas with `stack`."""
    panel = _panel("timeseries", title, queries, text, instant=False)
    panel["fieldConfig"]["defaults"] = {
        "unit": unit,
        "min": 0,
        "custom": {
            "lineWidth": 1,
            "fillOpacity": 25 if stack else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        },
        **defaults,
    }
    panel["options"] = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def bars(title: str, query: Query, unit: str, text: str, steps: Steps) -> Panel:
    """A horizontal bar for each series, from 0 to 1."""
    panel = _panel("bargauge", title, [query], text, instant=True)
    panel["fieldConfig"]["defaults"] = {"unit": unit, "min": 0, "max": 1, "thresholds": _steps(steps)}
    panel["options"] = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel


def table(title: str, queries: Sequence[Query], text: str, units: dict[str, str]) -> Panel:
    """One line for each set of labels; the legends of the queries are the headings of their columns."""
    panel = _panel("table", title, queries, text, instant=True, table=True)
    headings = {f"Value #{chr(ord('A') + index)}": heading for index, (_, heading) in enumerate(queries)}
    if len(queries) == 1:
        headings = {"Value": queries[0][1]}
    empty = [column for column, heading in headings.items() if not heading]
    hidden = ("Time", "__name__", "job", *empty)
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": dict.fromkeys(hidden, True), "renameByName": headings},
        },
    ]
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in units.items()
    ]
    panel["options"] = {"showHeader": True, "cellHeight": "sm"}
    return panel


def states(title: str, queries: Sequence[Query], text: str) -> Panel:
    """A band for each disk and state, while the disk has it."""
    panel = _panel("state-timeline", title, queries, text, instant=False)
    panel["fieldConfig"]["defaults"] = {
        "custom": {"fillOpacity": 80, "lineWidth": 0},
        "color": {"mode": "fixed", "fixedColor": GREEN},
        "mappings": [{"type": "value", "options": {"1": {"text": " ", "index": 0}}}],
    }
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byRegexp", "options": f"/ {state}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for state, color in STATES.items()
    ]
    panel["options"] = {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}}
    return panel


def firing(title: str, text: str) -> Panel:
    """The alerts of monitoring/rules that fire."""
    panel = _panel("alertlist", title, [], text, instant=True)
    panel["options"] = {
        "alertInstanceLabelFilter": '{alertname=~"Commitlogfs.*"}',
        "datasource": "${datasource}",
        "groupMode": "default",
        "maxItems": 50,
        "sortOrder": 3,
        "stateFilter": {"firing": True, "pending": True, "noData": False, "normal": False, "error": True},
        "viewMode": "list",
    }
    return panel


# --- the rows --------------------------------------------------------------------------------------------

Placed = tuple[Panel, int, int]
"""A panel, its width and its height in units of the grid."""


def overview() -> list[Placed]:
    alerts = f'count(ALERTS{{alertname=~"Commitlogfs.*", alertstate="firing", {SELECTED}}}) or vector(0)'
    return [
        (
            stat(
                "Mounts up", (f"sum({metric('up')})", ""), "none", "Mounts whose daemon answers.", ((None, GREEN),)
            ),
            3,
            4,
        ),
        (
            stat(
                "Mounts away",
                (f"count({metric('up')} == 0) or vector(0)", ""),
                "none",
                "Mounts whose daemon does not answer.",
                LOW_IS_GOOD,
            ),
            3,
            4,
        ),
        (
            stat(
                "Alerts that fire",
                (alerts, ""),
                "none",
                "Of the rules in monitoring/rules; see the row Alerts.",
                LOW_IS_GOOD,
            ),
            3,
            4,
        ),
        (
            stat(
                "Disks not in use",
                (f"count({metric('disk_state', NOT_RW)} == 1) or vector(0)", ""),
                "none",
                "Disks in a state other than rw.",
                ((None, GREEN), (1, ORANGE)),
            ),
            3,
            4,
        ),
        (stat("Written", (f"sum({metric('ingest_bytes_per_second')})", ""), "Bps", "Growth of the logs."), 3, 4),
        (
            stat(
                "Fullest pool",
                (f"max({recorded('pool:commitlogfs_disk_used:ratio')})", ""),
                "percentunit",
                "Used share of all disks of the pool that has least room.",
                FILL,
            ),
            3,
            4,
        ),
        (
            stat(
                "Shortest log",
                (f"min({recorded('pool:commitlogfs_log_retained:seconds')})", ""),
                "s",
                "How far back consumers can read, at least.",
            ),
            3,
            4,
        ),
        (
            stat(
                "Oldest figures",
                (f"max({metric('figures_age_seconds')})", ""),
                "s",
                "Age of the figures that the exporter has from a daemon.",
                ((None, GREEN), (60, ORANGE), (120, RED)),
            ),
            3,
            4,
        ),
        (
            table(
                "Mounts",
                [
                    (f"max by (instance, pool) ({metric('up')})", "up"),
                    (f"max by (instance, pool) ({metric('degraded')})", "degraded"),
                    (f"max by (instance, pool) ({recorded('pool:commitlogfs_disk_used:ratio')})", "used"),
                    (f"max by (instance, pool) ({metric('ingest_bytes_per_second')})", "written"),
                    (
                        f"max by (instance, pool) ({recorded('pool:commitlogfs_log_retained:seconds')})",
                        "reaches back",
                    ),
                    (f"sum by (instance, pool) ({metric('disk_segments')})", "segments"),
                    (
                        f"max by (instance, pool) ({metric('retention_pressure_eta_seconds')})",
                        "forced deletion is triggered in",
                    ),
                    (f"max by (instance, pool) ({metric('takeover_available')})", "takeover possible"),
                    (
                        f"time() - max by (instance, pool) ({metric('daemon_start_timestamp_seconds')})",
                        "daemon runs for",
                    ),
                    (f"max by (instance, pool, version) ({metric('build_info')})", ""),
                ],
                "One line for each mount.",
                {
                    "used": "percentunit",
                    "written": "Bps",
                    "reaches back": "s",
                    "forced deletion is triggered in": "s",
                    "daemon runs for": "s",
                },
            ),
            COLUMNS,
            8,
        ),
    ]


def disks() -> list[Placed]:
    return [
        (
            bars(
                "Fullest disks",
                (f"topk(30, {metric('disk_used_ratio')})", BY_DISK),
                "percentunit",
                "At most 30. Colours: the default thresholds clean, force and full.",
                FILL,
            ),
            8,
            9,
        ),
        (
            lines(
                "Fill level over time",
                [
                    (metric("disk_used_ratio"), BY_DISK),
                    (f"max by (level) ({metric('disk_threshold_ratio')})", "{{level}}"),
                ],
                "percentunit",
                "With the thresholds of the disks, the highest of each level.",
                max=1,
            ),
            8,
            9,
        ),
        (
            table(
                "Disks",
                [
                    (f"max by (instance, pool, disk) ({metric('disk_size_bytes')})", "size"),
                    (f"max by (instance, pool, disk) ({metric('disk_used_bytes')})", "used"),
                    (f"max by (instance, pool, disk) ({metric('disk_avail_bytes')})", "available"),
                    (
                        f"max by (instance, pool, disk) ({recorded('disk:commitlogfs_disk_headroom:ratio')})",
                        "room up to full",
                    ),
                    (f"max by (instance, pool, disk) ({metric('disk_segments')})", "segments"),
                    (f"max by (instance, pool, disk) ({metric('disk_held_segments')})", "moved, still open"),
                    (f"max by (instance, pool, disk) ({metric('disk_threshold_eta_seconds', FORCE)})", "force in"),
                    (f"max by (instance, pool, disk) ({metric('disk_threshold_eta_seconds', FULL)})", "full in"),
                ],
                "Times until a threshold at the present rate; empty for a disk that gets no data.",
                {
                    "size": "bytes",
                    "used": "bytes",
                    "available": "bytes",
                    "room up to full": "percentunit",
                    "force in": "s",
                    "full in": "s",
                },
            ),
            8,
            9,
        ),
        (
            states(
                "States",
                [(metric("disk_state"), "{{pool}} {{disk}} {{state}}")],
                "Green: takes segments. Blue: an operator has decided so. Yellow and red: trouble.",
            ),
            COLUMNS,
            7,
        ),
        (
            lines(
                "Read from the devices",
                [(rate("disk_read_bytes_total"), BY_DISK)],
                "Bps",
                "Of the whole block device, by all programs.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Written to the devices",
                [(rate("disk_written_bytes_total"), BY_DISK)],
                "Bps",
                "Of the whole block device, by all programs.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Utilisation of the devices",
                [(rate("disk_busy_seconds_total"), BY_DISK)],
                "percentunit",
                "Share of the time with a request under way.",
                max=1,
            ),
            8,
            8,
        ),
        (
            lines(
                "Time of an operation, and its peers'",
                [
                    (metric("disk_operation_seconds"), BY_DISK + " {{op}}"),
                    (f"max by (op) ({metric('disk_peers_operation_seconds')})", "peers {{op}}"),
                ],
                "s",
                "A disk that needs much longer than its peers becomes slow.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Errors of the disks",
                [
                    (
                        grown("disk_io_errors_total", "[5m]", "pool, disk, op, errno"),
                        BY_DISK + " {{op}} {{errno}}",
                    )
                ],
                "none",
                "Errors and missed deadlines within five minutes.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Members",
                [
                    (metric("members_missing"), BY_POOL + " missing"),
                    (metric("members_lagging"), BY_POOL + " lagging"),
                    (metric("members_offline"), BY_POOL + " offline"),
                    (metric("members_given_up"), BY_POOL + " given up"),
                ],
                "none",
                "Disks that are not there, or do not record the list of members.",
            ),
            8,
            8,
        ),
    ]


def log_and_retention() -> list[Placed]:
    return [
        (
            lines(
                "How far back the log reaches",
                [(f"time() - {metric('oldest_message_timestamp_seconds')}", BY_POOL)],
                "s",
                "Age of the oldest message.",
            ),
            8,
            8,
        ),
        (lines("Growth", [(metric("ingest_bytes_per_second"), BY_POOL)], "Bps", "Bytes written to the log."), 8, 8),
        (
            lines(
                "Size of the log",
                [
                    (f"{metric('last_offset_bytes')} - {metric('first_offset_bytes')}", BY_POOL + " segments"),
                    (f"{metric('log_end_offset_bytes')} - {metric('first_offset_bytes')}", BY_POOL + " written"),
                ],
                "bytes",
                "From the oldest segment to the newest, and to the last byte written.",
            ),
            8,
            8,
        ),
        (
            lines(
                "What the broker sees",
                [
                    (metric("statfs_used_ratio"), BY_POOL + " statfs"),
                    (metric("store_root_used_ratio"), BY_POOL + " store root"),
                ],
                "percentunit",
                "The broker deletes by these two.",
                max=1,
            ),
            8,
            8,
        ),
        (
            lines(
                "Removed segments",
                [
                    (
                        grown("segments_removed_total", "[5m]", "pool, reason"),
                        "{{pool}} {{reason}}",
                    )
                ],
                "none",
                "unlink: by the broker. The others are rules of forced deletion.",
                stack=True,
            ),
            8,
            8,
        ),
        (
            lines(
                "Time until forced deletion",
                [
                    (metric("retention_pressure_eta_seconds"), BY_POOL + " triggered"),
                    (metric("retention_force_eta_seconds"), BY_POOL + " removes"),
                ],
                "s",
                "At the present rate; no line if it is not expected.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Due and held segments",
                [
                    (metric("retention_removing_segments"), BY_POOL + " due"),
                    (metric("retention_held_open_segments"), BY_POOL + " removed, still open"),
                ],
                "none",
                "Segments that rules remove now, and those that a process keeps.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Space of held segments",
                [(metric("retention_held_open_bytes"), BY_POOL)],
                "bytes",
                "Removed segments that are still open use it.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Gaps",
                [(metric("log_gaps"), BY_POOL + " all"), (metric("log_accepted_gaps"), BY_POOL + " accepted")],
                "none",
                "Consumers skip a gap silently.",
            ),
            8,
            8,
        ),
        (
            lines(
                "New segments",
                [
                    (
                        grown("segment_creates_total", "[5m]", "pool, result"),
                        "{{pool}} {{result}}",
                    ),
                    (
                        grown("segment_create_retries_total", "[5m]"),
                        "{{pool}} refused by one disk",
                    ),
                ],
                "none",
                "Creates within five minutes, by result.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Time of a create",
                [
                    (recorded("pool:commitlogfs_segment_create_seconds:p99_30m"), BY_POOL + " p99"),
                    (
                        MEDIAN_CREATE,
                        "{{pool}} median",
                    ),
                ],
                "s",
                "The broker warns above 10 ms.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Where new segments go",
                [
                    (
                        grown("disk_segment_create_seconds_count", "[1h]", "pool, disk"),
                        BY_DISK,
                    )
                ],
                "none",
                "Segments made on each disk within an hour.",
                stack=True,
            ),
            8,
            8,
        ),
        (
            lines(
                "Disks passed over",
                [
                    (
                        grown("placement_skips_total", "[1h]", "pool, reason"),
                        "{{pool}} {{reason}}",
                    ),
                    (metric("placement_fallback"), "{{pool}} every disk is above force"),
                ],
                "none",
                "Why a disk did not get a segment, within an hour.",
            ),
            12,
            8,
        ),
        (
            lines(
                "Time of a removal",
                [
                    (
                        MEAN_REMOVAL,
                        BY_DISK,
                    )
                ],
                "s",
                "Mean of the removals on each disk.",
            ),
            12,
            8,
        ),
    ]


def moves_and_scrub() -> list[Placed]:
    return [
        (
            lines(
                "Moved",
                [(rate("segments_moved_bytes_total"), BY_POOL)],
                "Bps",
                "Segments that were moved to other disks.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Left to move",
                [
                    (metric("move_remaining_bytes"), BY_POOL + " this segment"),
                    (metric("rebalance_remaining_bytes"), BY_POOL + " rebalance"),
                ],
                "bytes",
                "Of the segment under way, and of the rebalance.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Drains",
                [(metric("disk_drain_segments"), BY_DISK)],
                "none",
                "Segments that a drain has still to take away.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Moves",
                [
                    (grown("segments_moved_total", "[5m]"), BY_POOL + " moved"),
                    (grown("segments_restored_total", "[5m]"), BY_POOL + " restored"),
                    (grown("segments_repaired_total", "[5m]"), BY_POOL + " repaired"),
                    (grown("segment_move_failures_total", "[5m]"), BY_POOL + " failed"),
                ],
                "none",
                "Segments within five minutes.",
            ),
            8,
            8,
        ),
        (
            lines(
                "How equally full the disks are",
                [
                    (metric("disk_spread_ratio"), BY_POOL),
                    (metric("rebalance_running"), "{{pool}} rebalance {{mode}}"),
                ],
                "percentunit",
                "Difference between the fullest and the emptiest disk; 2 % counts as equal.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Scrub: read",
                [
                    (rate("scrub_bytes_total"), BY_POOL + " scrub"),
                    (rate("checksum_bytes_total"), BY_POOL + " checksums"),
                ],
                "Bps",
                "Bytes read by scrubs and for new checksums.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Scrub: left",
                [(metric("scrub_remaining_bytes"), BY_DISK)],
                "bytes",
                "Bytes that the scrub under way has still to read.",
            ),
            8,
            8,
        ),
        (
            stat(
                "Last complete scrub",
                (f"max(time() - ({metric('scrub_completed_timestamp_seconds')} > 0))", ""),
                "s",
                "The longest time since then, of all mounts.",
                ((None, GREEN), (1209600, YELLOW), (3024000, RED)),
            ),
            4,
            4,
        ),
        (stat("Scrubs under way", (f"sum({metric('scrub_running')})", ""), "none", "Running or paused."), 4, 4),
        (
            lines(
                "Damage",
                [
                    (f"sum by (pool, disk, kind) ({metric('damaged_segments')})", BY_DISK + " {{kind}}"),
                    (metric("scrub_unread_segments"), BY_DISK + " unread"),
                    (f"1 - {metric('damage_known')}", BY_DISK + " not known yet"),
                    (
                        grown("scrub_errors_total", "[1h]", "pool, kind"),
                        "{{pool}} found: {{kind}}",
                    ),
                ],
                "none",
                "Segments with a verdict, those that a scrub could not read, and those found within an hour; "
                "1 for a disk that has not answered since the start.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Checksums",
                [
                    (metric("checksum_segments"), "{{pool}} {{state}}"),
                    (grown("checksums_computed_total", "[5m]"), "{{pool}} computed"),
                ],
                "none",
                "Sealed segments by what is known of their checksums.",
                stack=True,
            ),
            8,
            8,
        ),
        (
            lines(
                "Lost writes and mismatches",
                [
                    (grown("lost_writes_total", "[1h]"), BY_POOL + " lost writes"),
                    (grown("checksum_mismatches_total", "[1h]"), BY_POOL + " mismatches"),
                    (metric("set_aside_bytes"), BY_DISK + " bytes set aside"),
                ],
                "none",
                "Within an hour; and bytes of damaged files that repairs have set aside.",
            ),
            8,
            8,
        ),
    ]


def fuse() -> list[Placed]:
    return [
        (
            lines(
                "Requests",
                [(recorded("pool_op:commitlogfs_fuse_ops:rate5m"), "{{pool}} {{op}}")],
                "reqps",
                "Answered by the daemon. Reads and writes of segments are served by the kernel.",
                stack=True,
            ),
            8,
            8,
        ),
        (
            lines(
                "Time of a request (p99)",
                [(recorded("pool_op:commitlogfs_fuse_op_seconds:p99_5m"), "{{pool}} {{op}}")],
                "s",
                "One of a hundred takes this long or longer.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Errors",
                [(total_rate("pool, op, errno", "fuse_ops_total", 'errno!~"OK|0|"'), "{{pool}} {{op}} {{errno}}")],
                "reqps",
                "Answers with an errno. ENOENT and EEXIST are usual.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Open segments",
                [
                    (metric("open_handles"), BY_POOL + " open"),
                    (metric("passthrough_handles"), BY_POOL + " served by the kernel"),
                ],
                "none",
                "A segment that is open and not served by the kernel costs time of the daemon.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Served by the daemon",
                [(total_rate("pool, reason", "passthrough_fallbacks_total"), "{{pool}} {{reason}}")],
                "reqps",
                "Opens without passthrough although it is on.",
            ),
            8,
            8,
        ),
        (
            lines(
                "Takeovers",
                [
                    (grown("restarts_total", "[1h]"), BY_POOL + " takeovers"),
                    (
                        grown("resent_requests_total", "[1h]"),
                        BY_POOL + " requests sent again",
                    ),
                    (metric("state_lost"), BY_POOL + " state lost"),
                ],
                "none",
                "Within an hour.",
            ),
            8,
            8,
        ),
    ]


def alerts() -> list[Placed]:
    return [
        (firing("Alerts of Prometheus", "Firing and pending alerts of monitoring/rules."), 12, 10),
        (
            table(
                "Alerts of the daemons",
                [(metric("alert"), "present")],
                "Every alert that a daemon reports; docs/troubleshooting.md has the codes.",
                {},
            ),
            12,
            10,
        ),
    ]


ROWS: Final = (
    ("Overview", overview, False),
    ("Disks", disks, False),
    ("Log and retention", log_and_retention, False),
    ("Moves and scrub", moves_and_scrub, True),
    ("FUSE requests", fuse, True),
    ("Alerts", alerts, False),
)
"""Title, panels, and whether the row is closed at first."""


def place(panels: Sequence[Placed], top: int) -> Iterator[Panel]:
    """The panels from left to right, in lines."""
    x = y = height = 0
    for panel, width, tall in panels:
        if x + width > COLUMNS:
            x, y, height = 0, y + height, 0
        height = max(height, tall)
        yield {**panel, "gridPos": {"x": x, "y": top + y, "w": width, "h": tall}}
        x += width


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    panels: list[Panel] = []
    top = 0
    for title, make, is_closed in ROWS:
        placed = list(place(make(), top + 1))
        row = {
            "type": "row",
            "title": title,
            "collapsed": is_closed,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        }
        panels += [{**row, "panels": placed}] if is_closed else [{**row, "panels": []}, *placed]
        top = top + 1 if is_closed else max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in placed)
    number = 0
    for panel in panels:
        for one in (panel, *panel.get("panels", ())):
            number += 1
            one["id"] = number
    return {
        "uid": "commitlogfs",
        "title": "commitlogfs",
        "description": "Mounts of commitlogfs: disks, log and retention, moves and scrub, requests, alerts.",
        "tags": ["commitlogfs", "rocketmq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [{"type": "link", "title": "Runbooks", "url": f"{DOCUMENTS}/monitoring.md", "targetBlank": True}],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                },
                variable("instance", "Machine", "label_values(commitlogfs_up, instance)"),
                variable("pool", "Mount", 'label_values(commitlogfs_up{instance=~"$instance"}, pool)'),
            ]
        },
        "annotations": {
            "list": [
                annotation("Takeovers", f"changes({metric('restarts_total', window='[1m]')}) > 0", ORANGE),
                annotation(
                    "Changes of the disks", f"changes({metric('members_generation', window='[1m]')}) > 0", BLUE
                ),
            ]
        },
        "panels": panels,
    }


def annotation(name: str, expression: str, color: str) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expression,
        "iconColor": color,
        "step": "60s",
        "titleFormat": name,
        "tagKeys": "instance,pool",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the Grafana dashboard.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the file is not up to date")
    check = parser.parse_args().check
    text = json.dumps(dashboard(), indent=1) + "\n"
    if check:
        return int(not FILE.exists() or FILE.read_text() != text)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
