"""The control verbs that change the disks of the pool: cordons, and the preparation of a new disk.

A disk joins, or leaves, by a hand-over: the daemon that starts next opens the disks that the configuration names
(store/pool/joining.py). So no other part of a running daemon has to follow such a change.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import trio

from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.preflight.fstab import unmounted_above
from commitlogfs.store.disks.directories import first_entry
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.identity import require_recordable
from commitlogfs.store.disks.membership import Cordon, Member, Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool import joining
from commitlogfs.store.pool.giving_up import find_member, plan_giving_up

log = logging.getLogger(__name__)

T = TypeVar("T")

RECORD_PATIENCE_S: Final = 2.0
"""How long a verb waits for one step on a disk. Two of them fit into the patience of a command."""
LONGEST_REASON: Final = 80
"""Characters."""


_NO_OTHER: Final = (
    "no other disk takes new segments now, so the broker could not write; "
    "uncordon or repair another disk, free space there, or add one"
)


_NOT_RECORDED: Final = "no disk could record the change within 2 s; see `dmesg`, and repeat the command"
_DETACH: Final = 'detach it first (docs/operating.md, "A disk has died")'


class DiskChanges:
    """Answers one change after the other. A refusal is {"refused": why}, and nothing has changed then."""

    def __init__(self, operations: CommitLogOperations) -> None:
        self._operations = operations
        self._commitlog = operations.commitlog
        self._changing = trio.Lock()

    def verbs(self) -> dict[str, control_socket.Answer]:
        return {
            "disk-cordon": self._cordon,
            "disk-uncordon": self._uncordon,
            "disk-leave": self._leave,
            "disk-stay": self._stay,
            "disk-give-up": self._give_up,
            "disk-content": self._content,
            "disk-prepare": self._prepare,
            "disk-forget": self._forget,
        }

    # --- cordons -------------------------------------------------------------------------------------

    async def _cordon(self, request: dict[str, Any]) -> dict[str, Any]:
        reason = str(request.get("reason", ""))
        if len(reason) > LONGEST_REASON or not reason.isprintable():
            return {"refused": f"the reason: give at most {LONGEST_REASON} printable characters"}
        async with self._changing:
            disk = self._find(str(request["disk"]))
            if isinstance(disk, str):
                return {"refused": disk}
            if not self._others_take_segments(disk):
                return {"refused": f"{disk.path}: {_NO_OTHER}"}
            if disk.cordon is not None and disk.cordon.reason == reason:
                return self._unchanged(disk)
            since_s = round(time.time()) if disk.cordon is None else disk.cordon.since_s
            return await self._set(disk, Cordon(since_s, reason), dry_run=bool(request.get("dry_run")))

    async def _uncordon(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._changing:
            disk = self._find(str(request["disk"]))
            if isinstance(disk, str):
                return {"refused": disk}
            if disk.cordon is None and not disk.is_leaving:
                return self._unchanged(disk)
            return await self._set(disk, None, dry_run=bool(request.get("dry_run")))

    async def _set(self, disk: Disk, cordon: Cordon | None, *, dry_run: bool) -> dict[str, Any]:
        lagging: list[str] | None = []
        membership = self._commitlog.membership.cordoned(disk.number, cordon)
        try:
            require_recordable(replace(self._commitlog.identity_of(disk), membership=membership))
        except PoolError as error:
            return {"refused": str(error)}
        if not dry_run:
            lagging = await self._record(membership)
            if lagging is None:
                return {"refused": _NOT_RECORDED}
            if cordon is None:
                log_event(log, logging.WARNING, "uncordoned", disk=disk.path)
            else:
                log_event(log, logging.WARNING, "cordoned", disk=disk.path, reason=cordon.reason)
        return {**self._describe(disk), "changed": True, "lagging": lagging}

    async def _record(self, membership: Membership) -> list[str] | None:
        """Let the list take effect. Returns the paths of writable disks that lag; None, with the former list back,
        if no disk has recorded it."""
        former = self._commitlog.membership
        lagging = await self._operations.member_records.change(membership, RECORD_PATIENCE_S)
        if membership.generation in self._commitlog.recorded.values():
            return [disk.path for disk in lagging if disk.state is DiskState.RW]
        again = replace(former, generation=membership.generation + 1)
        await self._operations.member_records.change(again, 0.0)
        return None

    def _others_take_segments(self, disk: Disk) -> bool:
        eligibility = self._commitlog.evaluate(time.monotonic())
        return bool({*eligibility.eligible, *eligibility.above_force} - {disk.number})

    def _unchanged(self, disk: Disk) -> dict[str, Any]:
        return {**self._describe(disk), "changed": False, "lagging": []}

    def _describe(self, disk: Disk) -> dict[str, Any]:
        return {
            "number": disk.number,
            "path": disk.path,
            "segments": self._commitlog.catalog.count_on_disk(disk.number),
        }

    def _find(self, text: str) -> Disk | str:
        """The disk of this number or path; the reason if there is none."""
        for disk in self._commitlog.disks.values():
            if text in (str(disk.number), disk.path):
                return disk
        member = find_member(self._commitlog.membership, text)
        return (
            member if isinstance(member, str) else f"{member.path}: disk {member.number} is missing; bring it back"
        )

    def _find_member(self, text: str) -> Member | str:
        """As `_find`, also for a disk that is missing."""
        disk = self._find(text)
        found = None if isinstance(disk, str) else self._commitlog.membership.member(disk.number)
        return found or find_member(self._commitlog.membership, text)

    # --- leaving -------------------------------------------------------------------------------------

    async def _leave(self, request: dict[str, Any]) -> dict[str, Any]:
        """An empty disk is about to leave: the next daemon drops it, if the configuration does not name it."""
        dry_run = bool(request.get("dry_run"))
        async with self._changing:
            disk = self._find(str(request["disk"]))
            if isinstance(disk, str):
                return {"refused": disk}
            was_leaving = disk.is_leaving
            async with self._operations.changes.lock:  # no create is on its way to a disk
                reason = self._why_not_empty(disk)
                if reason:
                    return {"refused": f"{disk.path}: {reason}"}
                disk.is_leaving = True  # and none comes any more
            entry = await self._first_entry(disk)
            if entry is not None or dry_run:
                disk.is_leaving = was_leaving
            if entry is not None:
                return {"refused": f"{disk.path}: not empty (it holds {entry!r}); move that away first"}
            if dry_run:
                return {**self._describe(disk), "changed": not was_leaving, "lagging": []}
            lagging = await self._record(self._commitlog.membership.leaving(disk.number))
            if lagging is None:
                return {"refused": _NOT_RECORDED}
            log_event(log, logging.WARNING, "disk_leaves", disk=disk.path, number=disk.number)
            return {**self._describe(disk), "changed": True, "lagging": lagging}

    async def _stay(self, request: dict[str, Any]) -> dict[str, Any]:
        """It does not leave after all; a cordon stays."""
        async with self._changing:
            disk = self._find(str(request["disk"]))
            if isinstance(disk, str):
                return {"refused": disk}
            if not disk.is_leaving:
                return self._unchanged(disk)
            return await self._set(disk, disk.cordon, dry_run=False)

    async def _content(self, request: dict[str, Any]) -> dict[str, Any]:
        """How many segments and other files a disk holds."""
        disk = self._find(str(request["disk"]))
        if isinstance(disk, str):
            return {"refused": disk}
        return {
            **self._describe(disk),
            "other_files": sum(file.disk == disk.number for file in self._commitlog.others),
        }

    def _why_not_empty(self, disk: Disk) -> str:
        """Why a disk cannot leave, as far as the ledgers know; empty if it can."""
        count = self._commitlog.catalog.count_on_disk(disk.number)
        others = [file for file in self._commitlog.others if file.disk == disk.number]
        if count:
            return (
                f"holds segments ({count:,}); cordon it, and remove it when the broker has deleted them "
                "(`disk safe-to-remove` tells when)"
            )
        if others:
            return (
                f"holds files outside of the log ({len(others):,}), such as removed segments that are "
                "still open; `disk safe-to-remove` names the processes"
            )
        if disk.is_troubled or disk.is_joining or disk.state is not DiskState.RW:
            return "cannot be written, so it is not certain that it is empty; repair it"
        return "" if self._others_take_segments(disk) else _NO_OTHER

    async def _hangs(self, disk: Disk) -> bool:
        try:
            await self._operations.threads.run_within(disk.number, 1.0, partial(os.fstatvfs, disk.dirfd))
        except TimeoutError:
            return True
        except OSError:
            pass
        return False

    async def _first_entry(self, disk: Disk) -> str | None:
        """Name of an entry of its directory; an error counts as one."""
        try:
            return await self._operations.threads.run_within(
                disk.number, RECORD_PATIENCE_S, partial(first_entry, disk.dirfd)
            )
        except (OSError, TimeoutError) as error:
            return f"what cannot be read: {error}"

    # --- giving up -----------------------------------------------------------------------------------

    async def _give_up(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk that is missing, or fails, is no member any longer; the next daemon does not serve it."""
        dry_run = bool(request.get("dry_run"))
        async with self._changing:
            member = self._find_member(str(request["disk"]))
            if isinstance(member, str):
                return {"refused": member}
            disk = self._commitlog.disks.get(member.number)
            if disk is not None and not disk.is_failing and self._commitlog.usage(disk.number) is not None:
                return {
                    "refused": f"{disk.path}: is {disk.present_state.value}, not lost; cordon it, and remove it "
                    "when it is empty, or detach it if it is dead"
                }
            plan = plan_giving_up(
                self._commitlog.membership,
                member,
                [s.base_offset for s in self._commitlog.catalog if s.size and s.disk != member.number],
                self._commitlog.names.newest,
                self._commitlog.segment_size,
                round(time.time()),
            )
            if disk is not None and await self._hangs(disk):
                return {"refused": f"{disk.path}: hangs, and the next daemon would wait for it; {_DETACH}"}
            lagging: list[str] | None = []
            if not dry_run:
                lagging = await self._record(plan.membership)
                if lagging is None:
                    return {"refused": _NOT_RECORDED}
                log_event(log, logging.ERROR, "disk_given_up", disk=member.path, number=member.number)
            return {**plan.as_json(), "lagging": lagging}

    # --- joining -------------------------------------------------------------------------------------

    async def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        path, dry_run = str(request["directory"]), bool(request.get("dry_run"))
        unmounted = await _in_thread(partial(unmounted_above, path))
        if unmounted is not None:
            return {
                "refused": f"{path}: /etc/fstab names {unmounted}, but nothing is mounted there; mount it first"
            }
        async with self._changing:
            log_ = self._commitlog
            if not any(disk.state is DiskState.RW and not disk.is_joining for disk in log_.disks.values()):
                return {"refused": f"{path}: no disk of the pool can record the new member; make one writable"}
            plan_now = partial(
                joining.plan_joining,
                path,
                log_.pool_id,
                log_.segment_size,
                log_.membership,
                list(log_.disks.values()),
            )
            try:
                plan = await _in_thread(plan_now)
                if not dry_run:
                    await _in_thread(partial(joining.prepare, plan, log_.pool_id))
            except PoolError as error:
                return {"refused": str(error)}
        if not dry_run:
            log_event(log, logging.INFO, "disk_prepared", disk=path, number=plan.number)
        return {
            "number": plan.number,
            "path": plan.path,
            "filesystem": plan.filesystem,
            "is_new": plan.is_new,
            "total_bytes": plan.usage.total_bytes,
            "available_bytes": plan.usage.available_bytes,
            "warnings": list(plan.warnings),
        }

    async def _forget(self, request: dict[str, Any]) -> dict[str, Any]:
        path, dry_run = str(request["directory"]), bool(request.get("dry_run"))
        log_ = self._commitlog
        async with self._changing:
            try:
                await _in_thread(partial(joining.forget, path, log_.pool_id, log_.membership, dry_run=dry_run))
            except PoolError as error:
                return {"refused": str(error)}
        return {"path": path}


async def _in_thread(function: Callable[[], T]) -> T:
    """Leaves the thread behind if the command gives up: a new directory may hang, too."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)
