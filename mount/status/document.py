"""The state of a running daemon as one document: `status --json`, `.commitlogfs/status.json`, control socket.

The schema is documented in docs/reference/status.md and only grows.
"""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from commitlogfs.console.version import VERSION
from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.location.store_root import measure_store_root
from commitlogfs.mount.status.alerts import find_alerts
from commitlogfs.mount.status.findings import StartupFindings, broker_findings
from commitlogfs.mount.status.growth import GrowthMeter
from commitlogfs.mount.status.moves import drain_report, held_until, moves_report
from commitlogfs.mount.status.oldest_message import OldestMessage
from commitlogfs.mount.status.rebalance import plan_report, rebalance_report
from commitlogfs.mount.status.retention import retention_report
from commitlogfs.mount.status.scrub import damage_findings, scrub_report
from commitlogfs.store.clock import Clock
from commitlogfs.store.disks import forecast
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.eligibility import Eligibility, RefusalReason
from commitlogfs.store.disks.losses import count_accepted
from commitlogfs.store.disks.membership import RebalanceMode
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.findings import Finding
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import format_segment_name
from commitlogfs.store.slowness.policy import Comparison, Slowness

SCHEMA_VERSION = 2


def _share(rate: float, eligibility: Eligibility) -> float:
    """Bytes per second of this ingest that each eligible disk gets."""
    return rate / len(eligibility.eligible) if eligibility.eligible else 0.0


async def count_accepted_gaps(log: CommitLog) -> int:
    """Number of the gaps of the log that are accepted losses."""
    gaps, losses = log.catalog.gaps(), log.membership.losses
    if not gaps or not losses:
        return 0
    return await trio.to_thread.run_sync(count_accepted, losses, gaps, log.segment_size)


class StatusReport:
    """Composes the whole document from the live objects. The cost does not depend on the number of segments.

    `why_no_takeover` returns why no successor could take the mount over at this moment, empty if one could;
    `not_taken_back` findings about disks that are back and not served.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        why_no_takeover: Callable[[], str],
        not_taken_back: Callable[[], list[Finding]],
    ) -> None:
        self._config = config
        self._parts = parts
        self._why_no_takeover = why_no_takeover
        self._not_taken_back = not_taken_back
        self._log = parts.commitlog
        self._clock = parts.commitlog.clock
        self._growth = GrowthMeter(self._log, parts.threads)
        self._oldest_message = OldestMessage(self._log, parts.threads)
        self._since = self._clock.wall()
        self._store_root_limiter = trio.CapacityLimiter(1)
        self._findings = StartupFindings(self._log)

    async def retention(self) -> dict[str, Any]:
        """The part `retention` of the document."""
        await self._parts.statfs_figures()  # measures the disks
        await self._growth.measure()
        return self._retention(_share(self._ingest_rate(), self._log.evaluate(self._clock.monotonic())))

    async def rebalance_plan(self, mode: RebalanceMode, rate: int) -> dict[str, Any]:
        """The plan of a rebalance; `rate` in bytes per second, 0 for the default."""
        await self._parts.statfs_figures()  # measures the disks
        await self._growth.measure()
        return plan_report(self._parts, mode, rate, self._ingest_rate())

    async def compose(self) -> dict[str, Any]:
        composed_at = self._clock.wall()
        figures = await self._parts.statfs_figures()
        await self._growth.measure()
        await self._oldest_message.measure()
        store_root = await self._store_root()
        log = self._log
        accepted_gaps = await count_accepted_gaps(log)
        # Nothing below waits, so all that is said of a disk is of one moment. What was measured above, as the store
        # root and the accepted gaps, is a little older.
        eligibility = log.evaluate(self._clock.monotonic())
        rate = self._ingest_rate()
        share = _share(rate, eligibility)
        catalog = log.catalog
        first, last = catalog.first_whole, catalog.last_whole
        gaps = catalog.gaps()
        missed = log.missed()
        document = {
            "schema": SCHEMA_VERSION,
            "composed_at": composed_at,
            "name": self._config.name,
            "pool": log.pool_id,
            "mountpoint": self._config.mountpoint,
            "degraded": bool(missed),
            "daemon": {
                "pid": os.getpid(),
                "version": VERSION,
                "since": self._since,
                "configuration": self._config.file,
                **self._passthrough(),
                "restarts": self._parts.backing.takeovers,
                "state_lost": self._parts.backing.state_lost,
                **self._takeover(),
            },
            "segments": {
                "count": len(catalog) - catalog.partial_count,
                "unsized": catalog.partial_count,
                "first_offset": None if first is None else first.base_offset,
                "last_offset": None if last is None else last.base_offset,
                "size": log.segment_size,
                "gaps": gaps,
                "accepted_gaps": accepted_gaps,
                "retired": len(log.retired()) - len(log.others.set_aside()),
            },
            "placement": {
                "policy": log.policy.name,
                "fallback": eligibility.fallback,
                "next_disk": self._next_disk(),
            },
            "ingest_bytes_per_second": rate,
            "written_to": self._growth.growth.written_to,
            "oldest_message": self._oldest_message.stored_s,
            "idle_since": self._growth.growth.idle_since(self._clock.wall()),
            "thresholds": asdict(self._config.thresholds),
            "statfs": {
                "trigger": self._config.retention.trigger.value,
                "blocks": figures.blocks,
                "free": figures.free,
                "used_percent": figures.shown_percent,
            },
            "retention": self._retention(share),
            "store_root": store_root,
            "disks": [
                self._disk(disk, eligibility.refusals.get(disk.number), share) for disk in log.disks.values()
            ],
            "moves": moves_report(self._parts),
            "rebalance": rebalance_report(self._parts, rate),
            "checksums": self._checksums(),
            "scrub": scrub_report(self._parts),
            "unreadable": self._parts.salvaged.present(),
            "missing_disks": missed,
            "offline_disks": offline_report(log),
            "members": {
                "generation": log.membership.generation,
                "lagging": [disk.path for disk in log.lagging()],
                "given_up": [
                    {
                        "number": loss.number,
                        "path": loss.path,
                        "since": loss.since_s,
                        "runs": [asdict(run) for run in loss.runs],
                    }
                    for loss in log.membership.losses
                ],
            },
            "findings": [
                *self._findings.present(gaps),
                *damage_findings(self._parts),
                *(finding.as_json() for finding in broker_findings(log)),
                *(finding.as_json() for finding in self._not_taken_back()),
            ],
        }
        return {**document, "alerts": find_alerts(document)}

    def _checksums(self) -> dict[str, Any]:
        counts = self._parts.checksums.counts()
        return {
            "with": counts.present,
            "without": counts.absent,
            "unread": counts.unread,
            "computing": counts.computing,
            "mismatches": [
                segment.name.decode()
                for segment, verdict in self._parts.verdicts.present()
                if verdict.kind.is_mismatch
            ],
        }

    def _retention(self, share: float) -> dict[str, Any]:
        return retention_report(self._parts.retention, self._log, share)

    def _passthrough(self) -> dict[str, Any]:
        backing = self._parts.backing
        passed, plain = backing.counts()
        why_none = backing.why_none(self._log.disks.values())
        return {
            "passthrough": "off" if why_none else "on",
            "passthrough_reason": why_none,
            "passthrough_files": passed,
            "plain_files": plain,
        }

    def _takeover(self) -> dict[str, Any]:
        reason = self._why_no_takeover()
        return {"takeover_available": not reason, "takeover_unavailable_reason": reason}

    def _disk(self, disk: Disk, refusal: RefusalReason | None, rate: float) -> dict[str, Any]:
        usage = self._log.usage(disk.number)
        following = None
        if usage is not None:
            disk_rate = rate if refusal is None else 0.0
            following = forecast.next_threshold(usage, disk.thresholds, disk_rate)
        return {
            "id": disk.disk_id,
            "number": disk.number,
            "path": disk.path,
            "filesystem": disk.filesystem.name,
            "state": disk.reported_state.value,
            "eligible": refusal is None,
            "refusal": None if refusal is None else refusal.name.lower().replace("_", "-"),
            "total_bytes": None if usage is None else usage.total_bytes,
            "available_bytes": None if usage is None else usage.available_bytes,
            "used_percent": None if usage is None else round(usage.used_percent, 2),
            "segments": self._log.catalog.whole_count_on_disk(disk.number),
            "thresholds": asdict(disk.thresholds),
            "next_threshold": None if following is None else following.name,
            "eta_seconds": None if following is None else following.eta_seconds,
            "last_error": disk.last_error,
            "operation_times": [_times(compared) for compared in disk.operation_times],
            "io": None if disk.device_rates is None else asdict(disk.device_rates),
            "slowness": None if disk.slowness is None else _slowness(disk.slowness, self._clock),
            "lost_writes": self._lost_writes(disk),
            "drain": drain_report(disk, self._parts, self._ingest_rate()),
            "held_segments": len(self._log.others.moved(disk.number)),
            "held_until": held_until(disk, self._parts, self._ingest_rate()),
            "cordon": None if disk.cordon is None else {"since": disk.cordon.since_s, "reason": disk.cordon.reason},
        }

    def _lost_writes(self, disk: Disk) -> list[dict[str, Any]]:
        return [
            {
                "segment": format_segment_name(lost.base_offset).decode(),
                "since": lost.since_s,
                "ranges": [[lost.base_offset + begin, lost.base_offset + end] for begin, end in lost.ranges],
            }
            for lost in self._parts.verdicts.lost_writes().get(disk.number, ())
        ]

    async def _store_root(self) -> dict[str, Any]:
        """The directory around the mountpoint: normally the broker's storePathRootDir, or its consumequeue or index
        if that has a fuller disk. The broker deletes segments to free space on its consumequeue's disk, too."""
        path = str(Path(self._config.mountpoint).parent)
        usage: DiskUsage | None = None
        with trio.move_on_after(self._log.timing.daemon.store_root_s), contextlib.suppress(OSError):
            # If its disk hangs, only one thread hangs with it.
            path, usage = await trio.to_thread.run_sync(
                measure_store_root, path, limiter=self._store_root_limiter, abandon_on_cancel=True
            )
        return {"path": path, "used_percent": None if usage is None else round(usage.used_percent, 2)}

    def _ingest_rate(self) -> float:
        return self._growth.growth.bytes_per_second(self._clock.monotonic(), self._clock.wall())

    def _next_disk(self) -> str | None:
        """Path of the disk that would take the next segment now; None if no disk would."""
        order = self._log.preview_next()
        return self._log.disks[order[0]].path if order else None


def _times(compared: Comparison) -> dict[str, Any]:
    return {
        "operation": compared.operation.value,
        "seconds": compared.time_s,
        "peers_seconds": compared.peers_s,
        "usual_seconds": compared.usual_s,
    }


def _slowness(slowness: Slowness, clock: Clock) -> dict[str, Any]:
    now_s, probe_at_s = clock.monotonic(), slowness.probe_at_s
    return {
        **_times(slowness.comparison),
        "since": round(clock.wall() - (now_s - slowness.since_s)),
        "probe_in_seconds": None if probe_at_s is None else max(0, round(probe_at_s - now_s)),
    }


def offline_report(log: CommitLog) -> list[dict[str, Any]]:
    """The members that an operator has released."""
    return [{"number": one.number, "path": one.path, "since": one.offline_since_s} for one in log.offline()]


def to_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"


def one_line(document: dict[str, Any]) -> str:
    """For systemd's STATUS=: disks and percents."""
    disks = ", ".join(
        f"{disk['path']} {'?' if disk['used_percent'] is None else round(disk['used_percent'])} %"
        for disk in document["disks"]
    )
    return f"{document['segments']['count']} segments on {disks}"
