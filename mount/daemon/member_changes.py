"""Common parts of the control verbs that change the list of members: one change at a time, recorded or refused."""

from typing import Any

import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.location.control_socket import Request, answer_or_refuse
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import Membership
from commitlogfs.store.errors import PoolError


async def answer(parts: Parts, change: Request, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. A PoolError refuses it: {"refused": why}, and nothing has changed."""
    async with parts.member_records.changing:
        return await answer_or_refuse(change, request)


async def record(parts: Parts, membership: Membership, *, dry_run: bool) -> list[str]:
    """Let the list take effect. Returns the paths of writable disks that lag. Raises PoolError, with the former
    list back, if no disk can record it, or if the peer might not wait for that: it would report a failure."""
    commitlog = parts.commitlog
    former = commitlog.membership
    commitlog.require_recordable(membership)
    if dry_run:
        return []
    timing = commitlog.timing.members
    if trio.current_effective_deadline() - trio.current_time() < timing.record_s + timing.answer_s:
        raise PoolError("the disks have answered too late; nothing has changed; repeat the command")
    lagging = await parts.member_records.change(membership, timing.record_s)
    if membership.generation in commitlog.recorded.values():
        return [disk.path for disk in lagging if disk.state is DiskState.RW]
    await parts.member_records.change(former.instead_of(membership), 0.0)
    raise PoolError("no disk could record the change within 2 s; see `dmesg`, and repeat the command")
