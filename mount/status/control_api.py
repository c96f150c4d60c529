"""The control API: the verbs of the control socket that read the daemon's state and change nothing."""

import contextlib
import dataclasses
import functools
import itertools
from typing import Any, Final

import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.journal.entries import Kind
from commitlogfs.mount.journal.recorder import Journal
from commitlogfs.mount.journal.selection import Selection, answer
from commitlogfs.mount.location import control_socket, request_fields
from commitlogfs.mount.status.composed import Composed
from commitlogfs.mount.status.document import StatusReport, offline_report
from commitlogfs.mount.status.locate import locate, parse_target
from commitlogfs.mount.status.retention import foresee
from commitlogfs.store.disks.losses import Loss, is_accepted
from commitlogfs.store.disks.membership import RebalanceMode
from commitlogfs.store.errors import DiskError, SegmentNotFoundError
from commitlogfs.store.gaps import gaps_between
from commitlogfs.store.pool.commitlog import CommitLog

LISTED_AT_ONCE: Final = 1000
DECISIONS_AT_ONCE: Final = 100
MOST_DECISIONS: Final = 1000


class ControlApi:
    """Every answer includes everything that happened before the question; at the status socket, up to a second
    before."""

    def __init__(
        self,
        name: str,
        commitlog: CommitLog,
        parts: Parts,
        report: StatusReport,
        status: Composed[dict[str, Any]],
        metrics_text: Composed[bytes],
        journal: Journal,
    ) -> None:
        self._name = name
        self._commitlog = commitlog
        self._parts = parts
        self._report = report
        self._status_document = status
        self._metrics_text = metrics_text
        self._journal = journal
        self._one_reader = trio.CapacityLimiter(1)  # however many peers ask: requests need the processor, too

    def verbs(self) -> dict[str, control_socket.Answer]:
        return {
            "status": self._status,
            "segments": self._segments,
            "locate": self._locate,
            "metrics": self._metrics,
            "decisions": self._decisions,
            "retention": self._retention,
            "rebalance-plan": self._rebalance_plan,
        }

    def status_verbs(self) -> dict[str, control_socket.Answer]:
        """The verbs of the status socket. What they cost does not depend on the request."""
        return {
            "status": self._recent_status,
            "segments": self._segments,
            "metrics": self._recent_metrics,
            "decisions": self._decisions,
        }

    async def _recent_status(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._status_document.recent()

    async def _recent_metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"text": (await self._metrics_text.recent()).decode()}

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._status_document.current()

    async def _segments(self, request: dict[str, Any]) -> dict[str, Any]:
        size, losses = self._commitlog.segment_size, self._commitlog.membership.losses
        segments = await self._list_segments()
        return {
            "name": self._name,
            "segment_size": size,
            "missing_disks": self._commitlog.missed(),
            "offline_disks": offline_report(self._commitlog),
            "disks": [{"number": disk.number, "path": disk.path} for disk in self._commitlog.disks.values()],
            "segments": segments,
            "accepted_gaps": await trio.to_thread.run_sync(_accepted_gaps, segments, losses, size),
        }

    async def _list_segments(self) -> list[tuple[int, int]]:
        """In parts, with FUSE requests served in between: 60,000 segments take longer than a create may wait."""
        listed: list[tuple[int, int]] = []
        while True:
            last = listed[-1][0] if listed else -1
            part = list(itertools.islice(self._commitlog.listed_after(last), LISTED_AT_ONCE))
            if not part:
                return listed
            listed += [(segment.base_offset, segment.disk) for segment in part]
            await trio.lowlevel.checkpoint()

    async def _locate(self, request: dict[str, Any]) -> dict[str, Any]:
        location = locate(self._commitlog, parse_target(str(request.get("target", ""))))
        segment = self._commitlog.catalog.find(location.offset)
        if location.present and segment is not None:
            # A disk that hangs or fails must not delay it.
            with contextlib.suppress(OSError, DiskError, SegmentNotFoundError):
                state = await self._parts.segment_state(segment, self._commitlog.timing.daemon.state_s)
                location = dataclasses.replace(location, state=state.value)
        return dataclasses.asdict(location)

    async def _metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"text": (await self._metrics_text.current()).decode()}

    async def _decisions(self, request: dict[str, Any]) -> dict[str, Any]:
        """Entries of the journal, newest first."""
        fields = {key: value for key, value in request.items() if value is not None}
        selection = Selection(
            request_fields.text(fields, "segment") if "segment" in fields else None,
            request_fields.text(fields, "disk") if "disk" in fields else None,
            request_fields.choice(fields, "kind", Kind) if "kind" in fields else None,
        )
        limit = min(request_fields.number(fields, "limit", DECISIONS_AT_ONCE), MOST_DECISIONS)
        read = functools.partial(self._read_decisions, selection, limit)
        return {"name": self._name, **await trio.to_thread.run_sync(read, limiter=self._one_reader)}

    def _read_decisions(self, selection: Selection, limit: int) -> dict[str, Any]:
        """In a thread: the conversion of a full journal takes longer than a create may."""
        try:
            content = self._journal.read()
        except OSError:
            content = b""
        return answer(content, selection, limit)

    async def _retention(self, request: dict[str, Any]) -> dict[str, Any]:
        retention = await self._report.retention()
        foreseen = foresee(self._parts.retention, self._commitlog)
        return {"name": self._name, "retention": retention, "would_remove": foreseen}

    async def _rebalance_plan(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._report.rebalance_plan(
            request_fields.choice(request, "mode", RebalanceMode), request_fields.number(request, "rate", 0)
        )


def _accepted_gaps(segments: list[tuple[int, int]], losses: tuple[Loss, ...], size: int) -> list[tuple[int, int]]:
    """The gaps [start, end) of disks that were given up. Thousands of gaps take tens of milliseconds."""
    return [gap for gap in gaps_between([base for base, _ in segments], size) if is_accepted(losses, *gap, size)]
