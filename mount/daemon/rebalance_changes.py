"""The control verbs that begin and end a rebalance."""

import logging
from functools import partial
from typing import Any

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.daemon.member_changes import answer, record
from commitlogfs.mount.location import control_socket, request_fields
from commitlogfs.mount.status.document import StatusReport
from commitlogfs.store.disks.membership import Rebalance, RebalanceMode
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)


class RebalanceChanges:
    """Answers one request after the other. A PoolError refuses it: {"refused": why}, and nothing has changed."""

    def __init__(self, parts: Parts, report: StatusReport) -> None:
        self._parts = parts
        self._commitlog = parts.commitlog
        self._report = report

    def verbs(self) -> dict[str, control_socket.Answer]:
        changes: dict[str, control_socket.Request] = {
            "rebalance-start": self._start,
            "rebalance-cancel": self._cancel,
        }
        return {verb: partial(answer, self._parts, change) for verb, change in changes.items()}

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Once more in the same mode, it changes the rate."""
        dry_run = request_fields.flag(request, "dry_run")
        mode, rate = (
            request_fields.choice(request, "mode", RebalanceMode),
            request_fields.number(request, "rate", 0),
        )
        plan = await self._report.rebalance_plan(mode, rate)
        present = self._commitlog.membership.rebalance
        self._require_possible(present, mode, plan)
        wanted = Rebalance(round(self._commitlog.clock.wall()) if present is None else present.since_s, mode, rate)
        changed = wanted != present and (present is not None or not plan["balanced"])
        lagging: list[str] = []
        if changed:
            membership = self._commitlog.membership.rebalancing(wanted)
            lagging = await record(self._parts, membership, dry_run=dry_run)
        if changed and not dry_run:
            self._parts.drains.announce()
            log_event(log, logging.WARNING, "rebalance_began", mode=mode.value, rate=rate or None)
        since_s = wanted.since_s if changed or present is not None else None
        return {
            **plan,
            "running": present is not None,
            "since": since_s,
            "changed": changed,
            "lagging": lagging,
        }

    def _require_possible(self, present: Rebalance | None, mode: RebalanceMode, plan: dict[str, Any]) -> None:
        """Raises PoolError."""
        if present is not None and present.mode is not mode:
            other = "by placement" if present.mode is RebalanceMode.PLACEMENT else "by copying"
            raise PoolError(f"a rebalance {other} runs already; `rebalance cancel` ends it")
        if len(self._parts.rebalancing.levels().levels) < 2:
            raise PoolError(
                "fewer than two disks take new segments, so there is nothing to balance; uncordon or repair a "
                "disk, or add one"
            )
        if present is None and mode is RebalanceMode.COPY and not plan["segments"] and not plan["balanced"]:
            raise PoolError(
                "no segment can be moved that would make the disks more equal: the fuller disks hold other data or "
                "only the newest segments, or the emptier ones have no room; see `rebalance plan --copy`"
            )

    async def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """The rebalance ends; moved segments stay where they are."""
        dry_run = request_fields.flag(request, "dry_run")
        present = self._commitlog.membership.rebalance
        if present is None:
            return {"mode": None, "changed": False, "lagging": []}
        membership = self._commitlog.membership.rebalancing(None)
        lagging = await record(self._parts, membership, dry_run=dry_run)
        if not dry_run:
            log_event(log, logging.WARNING, "rebalance_cancelled", mode=present.mode.value)
            await self._parts.drains.announce_end()
        return {"mode": present.mode.value, "changed": True, "lagging": lagging}
