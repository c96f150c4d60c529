"""The control verbs of `commitlogfs restore`. The command finds and checks files; the daemon takes them in."""

from functools import partial
from typing import Any, Final

import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.moves.restores import Repairable, Restores, RestoreState
from commitlogfs.mount.linux.mountinfo import local_filesystem
from commitlogfs.mount.location import control_socket, request_fields
from commitlogfs.store.errors import PoolError
from commitlogfs.store.segment import BaseOffset, format_segment_name

_DIGEST_BYTES: Final = 16


def restore_verbs(parts: Parts) -> dict[str, control_socket.Answer]:
    """A PoolError refuses a request: {"refused": why}, and nothing has changed."""
    requests = _Requests(parts)
    verbs: dict[str, control_socket.Request] = {
        "restore-plan": requests.plan,
        "restore-segment": requests.begin,
        "restore-state": requests.state,
        "restore-cancel": requests.cancel,
    }
    return {verb: partial(control_socket.answer_or_refuse, method) for verb, method in verbs.items()}


class _Requests:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._restores: Restores = parts.restores

    async def plan(self, request: dict[str, Any]) -> dict[str, Any]:
        """The missing ranges of log offsets, the log's first offset, the damaged segments, the disks of which these
        are not known yet, and the number of segments that there is room for. Ranges before the first offset have to
        be restored newest first, without a gap. `segments`, if given, are the base offsets of the only segments
        that matter."""
        wanted = request_fields.numbers(request, "segments")
        unknown = await self._restores.unknown()
        damaged = await self._restores.damaged()
        bases = {one.segment.base_offset for one in damaged}
        await self._parts.drains.measure_targets()
        first = self._parts.commitlog.catalog.first
        return {
            "first_offset": 0 if first is None else first.base_offset,
            "segment_size": self._parts.commitlog.segment_size,
            "missing": [] if wanted is not None and bases.issuperset(wanted) else self._restores.missing(),
            "damaged": [self._describe(one) for one in damaged],
            "unknown": unknown,
            "room": self._restores.room(),
        }

    def _describe(self, damaged: Repairable) -> dict[str, Any]:
        return {
            "base_offset": damaged.segment.base_offset,
            "disk": self._parts.commitlog.disk_of(damaged.segment).path,
            "kind": damaged.kind.value,
            "reason": damaged.reason,
            "xxh3": None if damaged.checksum is None else damaged.checksum.hex(),
            "needs_chain": damaged.needs_chain,
            "equal": damaged.equal,
        }

    async def begin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin with one segment; the file comes as a descriptor. `repairs`: it is damaged, not missing."""
        base_offset, mtime_ns = self._base_offset(request), request_fields.number(request, "mtime_ns")
        digest = request_fields.digest(request, "xxh3", _DIGEST_BYTES)
        rate = request_fields.number(request, "rate", 0)
        token, repairs = request_fields.text(request, "token", ""), request_fields.flag(request, "repairs")
        descriptor: int | None = request.get(control_socket.DESCRIPTOR)
        if descriptor is None:
            raise PoolError("the request brings no file; correct the request")
        if await trio.to_thread.run_sync(local_filesystem, descriptor) is None:
            name = format_segment_name(base_offset).decode()
            raise PoolError(
                f"{name}: its file is not on a local filesystem, and the daemon reads no other; copy it to a local "
                "disk first"
            )
        if repairs:
            await self._restores.require_verdicts()
        self._restores.begin(base_offset, descriptor, mtime_ns, digest, rate, token, repairs=repairs)
        return {}

    async def state(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far the restore of one segment is. Its state is "absent" if this daemon has not begun it, or has
        begun another one since; also if it has ended, and the segment is missing or damaged again."""
        base_offset, repairs = self._base_offset(request), request_fields.flag(request, "repairs")
        if repairs:
            await self._restores.require_verdicts()
            is_done = self._restores.is_repaired(base_offset)
        else:
            is_done = self._parts.commitlog.catalog.get(base_offset) is not None
        latest = self._restores.latest
        if latest is not None and latest.base_offset != base_offset:
            latest = None
        has_failed = latest is not None and latest.state is RestoreState.FAILED
        if is_done and not (repairs and has_failed):
            return {"state": "done", "reason": "", "done_bytes": 0}
        if latest is None or latest.state is RestoreState.DONE:
            return {"state": "absent", "reason": "", "done_bytes": 0}
        progress, size = self._parts.mover.progress, self._parts.commitlog.segment_size
        done = 0
        if progress is not None and progress.name == format_segment_name(latest.base_offset):
            done = progress.done_bytes + (size if progress.phase == "verifying" else 0)
        return {"state": latest.state.value, "reason": latest.reason, "done_bytes": done}

    async def cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """Cancel a restore, if it is the one under way and `token` is that of its begin."""
        base_offset, token = self._base_offset(request), request_fields.text(request, "token")
        return {"cancelled": self._restores.cancel(base_offset, token)}

    def _base_offset(self, request: dict[str, Any]) -> BaseOffset:
        """Raises FieldError, PoolError."""
        base_offset = request_fields.number(request, "base_offset")
        if base_offset % self._parts.commitlog.segment_size:
            raise PoolError(f"{base_offset:020d}: no segment of this log begins there; correct the request")
        return BaseOffset(base_offset)
