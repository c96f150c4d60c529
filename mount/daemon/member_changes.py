"""Common parts of the control verbs that change the list of members: one change at a time, recorded or refused."""

from dataclasses import replace
from typing import Any

from commitlogfs.fusefs.disks.member_records import RECORD_PATIENCE_S
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.mount.location.control_socket import Request, answer_or_refuse
from commitlogfs.store.disks.disk import DiskState
from commitlogfs.store.disks.membership import Membership
from commitlogfs.store.errors import PoolError


async def answer(operations: CommitLogOperations, change: Request, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request. A PoolError refuses it: {"refused": why}, and nothing has changed."""
    async with operations.member_records.changing:
        return await answer_or_refuse(change, request)


async def record(operations: CommitLogOperations, membership: Membership, *, dry_run: bool) -> list[str]:
    """Let the list take effect. Returns the paths of writable disks that lag. Raises PoolError, with the former
    list back, if no disk can record it."""
    commitlog = operations.commitlog
    former = commitlog.membership
    commitlog.require_recordable(membership)
    if dry_run:
        return []
    lagging = await operations.member_records.change(membership, RECORD_PATIENCE_S)
    if membership.generation in commitlog.recorded.values():
        return [disk.path for disk in lagging if disk.state is DiskState.RW]
    again = replace(former, generation=membership.generation + 1)
    await operations.member_records.change(again, 0.0)
    raise PoolError("no disk could record the change within 2 s; see `dmesg`, and repeat the command")
