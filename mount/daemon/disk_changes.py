"""The control verbs that change the disks of the pool: cordons, drains, disks that join, leave or are offline.

A disk joins, or leaves, by a hand-over: the daemon that starts next opens the disks that the configuration names
(store/pool/joining.py). So no other part of a running daemon has to follow such a change.
"""

import logging
from collections.abc import Callable, Set
from functools import partial
from typing import Any, Final, TypeVar

import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.member_changes import answer, record
from commitlogfs.mount.location import control_socket, request_fields
from commitlogfs.mount.preflight.fstab import unmounted_above
from commitlogfs.mount.status.disk_content import (
    describe_arriving,
    describe_foreign,
    describe_held,
    describe_left_behind,
    describe_unwritable,
)
from commitlogfs.mount.status.moves import held_until
from commitlogfs.store.disks.directories import first_entry
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.disks.giving_up import GivingUp, find_member, plan_giving_up
from commitlogfs.store.disks.membership import LONGEST_REASON, Cordon, Drain, DrainMode, Member, Membership
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool import joining
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Role
from commitlogfs.store.segment import parse_segment_name

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_OTHER: Final = (
    "no other disk takes new segments now, so the broker could not write; "
    "uncordon or repair another disk, free space there, or add one"
)
_LEAVES: Final = "leaves the pool; complete `disk remove`, or keep the disk: `disk uncordon`"


class DiskChanges:
    """Answers one request after the other. A PoolError refuses it: {"refused": why}, and nothing has changed."""

    def __init__(self, parts: Parts, former: FormerDaemons, not_read: Set[str] = frozenset()) -> None:
        """`not_read`: paths of disks that were there when this daemon started, and could not be read completely."""
        self._parts = parts
        self._commitlog = parts.commitlog
        self._clock = parts.commitlog.clock
        self._timing = parts.commitlog.timing
        self._former = former
        self._not_read = not_read

    def verbs(self) -> dict[str, control_socket.Answer]:
        changes: dict[str, control_socket.Request] = {
            "disk-cordon": self._cordon,
            "disk-uncordon": self._uncordon,
            "disk-drain": self._drain,
            "disk-cancel": self._cancel,
            "disk-leave": self._leave,
            "disk-stay": self._stay,
            "disk-give-up": self._give_up,
            "disk-offline": self._take_offline,
            "disk-online": self._take_back,
            "disk-content": self._content,
            "disk-prepare": self._prepare,
            "disk-forget": self._forget,
        }
        return {verb: partial(self._answer, change) for verb, change in changes.items()}

    async def _answer(self, change: control_socket.Request, request: dict[str, Any]) -> dict[str, Any]:
        return await answer(self._parts, change, request)

    # --- cordons -------------------------------------------------------------------------------------

    async def _cordon(self, request: dict[str, Any]) -> dict[str, Any]:
        reason, dry_run = request_fields.text(request, "reason", ""), request_fields.flag(request, "dry_run")
        if len(reason) > LONGEST_REASON or not reason.isprintable():
            raise PoolError(f"the reason: give at most {LONGEST_REASON} printable characters")
        disk = self._find(request_fields.disk(request))
        if disk.is_leaving:
            raise PoolError(f"{disk.path}: {_LEAVES}")
        if not self._commitlog.others_take_segments(disk):
            raise PoolError(f"{disk.path}: {_NO_OTHER}")
        if disk.cordon is not None and disk.cordon.reason == reason:
            return self._unchanged(disk)
        since_s = round(self._clock.wall()) if disk.cordon is None else disk.cordon.since_s
        wanted = Cordon(since_s, reason)
        lagging = await self._record(self._commitlog.membership.cordoned(disk.number, wanted), dry_run=dry_run)
        if not dry_run:
            log_event(log, logging.WARNING, "cordoned", disk=disk.path, reason=reason)
        return self._changed(disk, lagging)

    async def _uncordon(self, request: dict[str, Any]) -> dict[str, Any]:
        """`stays`: also if the disk leaves. The command has made sure that the configuration names it, and that no
        `disk remove` is at work."""
        stays = request_fields.flag(request, "stays")
        disk, dry_run = self._find(request_fields.disk(request)), request_fields.flag(request, "dry_run")
        if disk.drain is not None:
            raise PoolError(f"{disk.path}: is draining; `disk cancel` ends that")
        if disk.cordon is None and not disk.is_leaving:
            return self._unchanged(disk)
        if disk.is_leaving and not stays:
            raise PoolError(f"{disk.path}: {_LEAVES}")
        membership = self._commitlog.membership.staying(disk.number).cordoned(disk.number, None)
        lagging = await self._record(membership, dry_run=dry_run)
        if not dry_run:
            log_event(log, logging.WARNING, "uncordoned", disk=disk.path)
        return self._changed(disk, lagging)

    async def _record(self, membership: Membership, *, dry_run: bool) -> list[str]:
        return await record(self._parts, membership, dry_run=dry_run)

    def _unchanged(self, disk: Disk) -> dict[str, Any]:
        return {**self._describe(disk), "changed": False, "lagging": []}

    def _changed(self, disk: Disk, lagging: list[str]) -> dict[str, Any]:
        return {**self._describe(disk), "changed": True, "lagging": lagging}

    def _describe(self, disk: Disk) -> dict[str, Any]:
        return {
            "number": disk.number,
            "path": disk.path,
            "segments": self._commitlog.catalog.count_on_disk(disk.number),
        }

    def _find(self, text: str) -> Disk:
        """The disk of this number or path. Raises PoolError."""
        for disk in self._commitlog.disks.values():
            if text in (str(disk.number), disk.path):
                return disk
        raise _missing(find_member(self._commitlog.membership, text))

    def _find_member(self, text: str) -> Member:
        """As `_find`, also for a disk that is missing."""
        served = (disk.number for disk in self._commitlog.disks.values() if disk.path == text)
        return find_member(self._commitlog.membership, str(next(served, text)))

    # --- drains --------------------------------------------------------------------------------------

    async def _drain(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk becomes empty: its segments are moved, or expire. Once more, it changes mode and rate; a field
        that is left out keeps the present one.

        `more_room`: number of segments that a disk takes which is to join before (of a dry run). `has_room`: such a
        dry run has found room, and the disk has joined, so a refusal would leave the change half done."""
        disk, dry_run = self._find(request_fields.disk(request)), request_fields.flag(request, "dry_run")
        present = disk.drain or Drain(0)
        mode = request_fields.choice(request, "mode", DrainMode, present.mode)
        rate = request_fields.number(request, "rate", present.rate)
        more_room = request_fields.number(request, "more_room", 0)
        has_room = request_fields.flag(request, "has_room")
        if rate and not mode.copies:
            raise PoolError(f"{disk.path}: drains by expiry, and nothing is copied; leave out --rate")
        self._require_drainable(disk, mode, another_joins=bool(more_room))
        plan, size = self._parts.drains.plan(disk), self._commitlog.segment_size
        room = plan.room + more_room
        if mode.copies and not has_room:
            _require_room(disk, plan.needed, room, size, gives_more="more_room" in request)
        since_s = round(self._clock.wall()) if disk.drain is None else disk.drain.since_s
        wanted = Drain(since_s, mode, rate)
        changed = wanted != disk.drain
        lagging: list[str] = []
        if changed:
            lagging = await self._record(self._commitlog.membership.draining(disk.number, wanted), dry_run=dry_run)
        if changed and not dry_run:
            self._parts.drains.announce()
            log_event(log, logging.WARNING, "drain_began", disk=disk.path, mode=mode.value, rate=rate or None)
        return {
            **self._describe(disk),
            "mode": mode.value,
            "to_move": plan.to_move,
            "kept": plan.kept,
            "room": room,
            "segment_size": size,
            "changed": changed,
            "lagging": lagging,
        }

    def _require_drainable(self, disk: Disk, mode: DrainMode, *, another_joins: bool) -> None:
        """Raises PoolError."""
        if disk.is_leaving or disk.is_joining:
            raise PoolError(f"{disk.path}: is {disk.present_state.value}; wait until that is done")
        if mode is not DrainMode.FAILING:
            _require_well(disk)
        if not another_joins and not self._commitlog.others_take_segments(disk):
            raise PoolError(f"{disk.path}: {_NO_OTHER}")

    async def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk stays as it is, and takes new segments again unless it is cordoned."""
        disk, dry_run = self._find(request_fields.disk(request)), request_fields.flag(request, "dry_run")
        if disk.drain is None:
            return self._unchanged(disk)
        lagging = await self._record(self._commitlog.membership.draining(disk.number, None), dry_run=dry_run)
        if not dry_run:
            log_event(log, logging.WARNING, "drain_ended", disk=disk.path)
            await self._parts.drains.announce_end()
        return {**self._describe(disk), "changed": True, "lagging": lagging}

    # --- leaving -------------------------------------------------------------------------------------

    async def _leave(self, request: dict[str, Any]) -> dict[str, Any]:
        """An empty disk is about to leave: the next daemon drops it, if the configuration does not name it."""
        dry_run = request_fields.flag(request, "dry_run")
        disk = self._find(request_fields.disk(request))
        was_leaving = disk.is_leaving
        await self._require_hand_over()
        await self._free_closed_files(disk)
        try:
            async with self._parts.changes.lock:  # no create is on its way to a disk
                self._require_no_files(disk)
                disk.is_leaving = True  # and none comes any more
            await self._require_empty_directory(disk)
            lagging = await self._record(self._commitlog.membership.leaving(disk.number), dry_run=dry_run)
        finally:
            member = self._commitlog.membership.member(disk.number)
            disk.is_leaving = member is None or member.leaves
        if not dry_run:
            log_event(log, logging.WARNING, "disk_leaves", disk=disk.path, number=disk.number)
        return {**self._describe(disk), "changed": not dry_run or not was_leaving, "lagging": lagging}

    async def _stay(self, request: dict[str, Any]) -> dict[str, Any]:
        """It does not leave after all; a cordon stays."""
        disk = self._find(request_fields.disk(request))
        if not disk.is_leaving:
            return self._unchanged(disk)
        lagging = await self._record(self._commitlog.membership.staying(disk.number), dry_run=False)
        log_event(log, logging.WARNING, "disk_stays", disk=disk.path, number=disk.number)
        return self._changed(disk, lagging)

    async def _content(self, request: dict[str, Any]) -> dict[str, Any]:
        """How many segments and other files a disk holds, and what may still come."""
        disk = self._find(request_fields.disk(request))
        await self._free_closed_files(disk)
        foreign = await self._foreign_entry(disk)
        return {
            **self._describe(disk),
            "held": len(self._commitlog.others.moved(disk.number)) - self._left_behind(disk),
            "held_until": held_until(disk, self._parts),
            "left_behind": self._left_behind(disk),
            "set_aside": self._set_aside(disk),
            "other_files": sum(file.disk == disk.number for file in self._commitlog.others),
            "arriving": self._arriving(disk),
            "takes_segments": disk.intended_state is DiskState.RW,
            "foreign": foreign,
            "unwritable": self._is_unwritable(disk),
        }

    def _arriving(self, disk: Disk) -> str | None:
        """Name of the segment that is being copied to a disk."""
        progress = self._parts.mover.progress
        return progress.name.decode() if progress is not None and progress.target == disk.number else None

    async def _foreign_entry(self, disk: Disk) -> str | None:
        """Name of a file in the directory of an empty disk that is not of the pool; None if there is none, or if
        the disk cannot be read."""
        if self._commitlog.catalog.count_on_disk(disk.number):
            return None
        known = {file.path for file in self._commitlog.others if file.disk == disk.number}
        keeps_removed = disk.state is not DiskState.RW or disk.is_troubled
        size = self._commitlog.segment_size

        def is_known(name: bytes) -> bool:
            """A disk that cannot be written keeps segments that were removed from the log."""
            return name in known or (keeps_removed and parse_segment_name(name, size) is not None)

        work = partial(first_entry, disk.dirfd, is_known)
        try:
            return await self._parts.threads.run_within(disk.number, self._timing.members.record_s, work)
        except (OSError, TimeoutError):
            return None

    async def _free_closed_files(self, disk: Disk) -> None:
        """Return once an empty disk holds no file that has left the log and that no process has open, or after
        DaemonTiming.free_s. Drained means that the log has no segment there: the last ones may not be freed yet."""
        parts, number = self._parts, disk.number
        if disk.state is not DiskState.RW or disk.is_troubled or self._commitlog.catalog.count_on_disk(number):
            return
        if all(file.disk != number for file in self._commitlog.others):
            return
        with trio.move_on_after(self._timing.daemon.free_s):
            await parts.mover.finish_moves_from(number)  # this daemon's own descriptors would count as users
            await parts.checksums.close_moved(number)
            await parts.scrub.close_moved(number)
            await parts.disk_checks.finish(number)
            await parts.sources.let_go_now(number)
            await parts.kernel.sent()  # the kernel holds each file whose name it knows
            await parts.freeing.free_now(number)

    def _left_behind(self, disk: Disk) -> int:
        """Number of files that the drain of a failing disk leaves there: their copies lack what could not be read,
        or they cannot be removed."""
        if disk.drain is None or disk.drain.mode is not DrainMode.FAILING:
            return 0
        return sum(source.role is Role.MOVED for source in self._commitlog.others.moved(disk.number))

    def _set_aside(self, disk: Disk) -> int:
        """Number of damaged files of repaired segments."""
        return sum(file.disk == disk.number for file in self._commitlog.others.set_aside())

    def _is_salvaged(self, disk: Disk) -> bool:
        """Whether the drain of a failing disk has left no segment of the log there."""
        is_salvaged = disk.drain is not None and disk.drain.mode is DrainMode.FAILING
        return is_salvaged and not self._commitlog.catalog.count_on_disk(disk.number)

    @staticmethod
    def _is_unwritable(disk: Disk) -> bool:
        """Whether it is not certain that a disk is empty, even if the log has nothing there."""
        return disk.is_troubled or disk.is_joining or disk.state is not DiskState.RW

    def _is_worthless(self, disk: Disk) -> bool:
        """Whether a disk that cannot be written holds nothing of the log, and gets nothing."""
        is_empty = not self._commitlog.catalog.count_on_disk(disk.number) and self._arriving(disk) is None
        others = any(file.disk == disk.number for file in self._commitlog.others)
        return self._is_unwritable(disk) and not disk.is_joining and is_empty and not others

    def _require_no_files(self, disk: Disk) -> None:
        """Raises PoolError if a disk cannot leave, as far as the ledgers know."""
        count = self._commitlog.catalog.count_on_disk(disk.number)
        others = [file for file in self._commitlog.others if file.disk == disk.number]
        if count:
            is_well = disk.state is DiskState.RW and not disk.is_troubled
            remedy = (
                "`disk drain` it"
                if is_well
                else "give it up with `disk remove --lost`, or `disk drain --failing` it"
            )
            raise PoolError(
                f"{disk.path}: holds segments ({count:,}); {remedy}, and remove it when it is empty "
                "(`disk safe-to-remove` reports that)"
            )
        aside = self._set_aside(disk)
        if aside == len(others) > 0:
            raise PoolError(
                f"{disk.path}: holds damaged files of repaired segments ({aside:,}); `commitlogfs scrub clear` "
                "removes them"
            )
        if self._left_behind(disk) == len(others) > 0:
            raise PoolError(f"{disk.path}: {describe_left_behind(len(others))}")
        held = len(self._commitlog.others.moved(disk.number))
        if held == len(others) > 0:
            text = describe_held(held, held_until(disk, self._parts))
            raise PoolError(f"{disk.path}: {text}; `disk safe-to-remove` names the processes")
        if others:
            raise PoolError(
                f"{disk.path}: holds files outside of the log ({len(others):,}), such as moved or removed segments "
                "that are still open; `disk safe-to-remove` names the processes"
            )
        arriving = self._arriving(disk)
        if arriving is not None:
            takes_segments = disk.intended_state is DiskState.RW
            raise PoolError(f"{disk.path}: {describe_arriving(arriving, takes_segments=takes_segments)}")
        if self._is_unwritable(disk):
            raise PoolError(f"{disk.path}: {describe_unwritable()}")
        if not self._commitlog.others_take_segments(disk):
            raise PoolError(f"{disk.path}: {_NO_OTHER}")
        if self._commitlog.missing:  # the next daemon drops a disk only if it can read all others
            raise PoolError(
                f"{disk.path}: cannot leave while another disk is missing ({', '.join(self._commitlog.missing)}); "
                "bring that back, or give it up"
            )

    async def _require_hand_over(self) -> None:
        """Raises PoolError if a disk prevents the hand-over to which this request leads."""
        reason = await self._parts.disk_places.why_not_handed_over()
        if reason:
            raise PoolError(reason)

    async def _require_empty_directory(self, disk: Disk) -> None:
        """Raises PoolError."""
        try:
            entry = await self._parts.threads.run_within(
                disk.number, self._timing.members.record_s, partial(first_entry, disk.dirfd)
            )
        except (OSError, TimeoutError) as error:
            raise PoolError(f"{disk.path}: cannot be read ({error}); repair it") from error
        if entry is not None:
            raise PoolError(f"{disk.path}: {describe_foreign(entry)}")

    # --- giving up -----------------------------------------------------------------------------------

    async def _give_up(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk that is missing, or fails, is no member any longer; the next daemon does not serve it."""
        dry_run = request_fields.flag(request, "dry_run")
        member = self._find_member(request_fields.disk(request))
        disk = self._commitlog.disks.get(member.number)
        await self._require_hand_over()
        is_lost = disk is None or disk.is_failing or self._commitlog.usage(disk.number) is None
        if disk is None:
            await self._require_not_at_its_path(member)
        elif not is_lost and not self._is_salvaged(disk) and not self._is_worthless(disk):
            if disk.drain is not None:
                remedy = "wait until it is empty and use `disk remove`"
            elif disk.cordon is not None:
                remedy = "`disk drain` it, and remove it when it is empty"
            else:
                remedy = "cordon it, and remove it when it is empty"
            raise PoolError(
                f"{disk.path}: is {disk.present_state.value}, not lost; {remedy}, or detach it if it is dead"
            )
        plan = self._plan_giving_up(member)
        lagging = await self._record(plan.membership, dry_run=dry_run)
        if not dry_run:
            log_event(log, logging.ERROR, "disk_given_up", disk=member.path, number=member.number)
        return {**plan.as_json(), "lagging": lagging}

    async def _require_not_at_its_path(self, member: Member) -> None:
        """Raises PoolError if a disk that is not served can be."""
        if self._former.holder(member.number) is not None or member.path in self._not_read:
            return
        place = await self._parts.disk_places.find(member.path, self._timing.members.record_s)
        if place is None or (place.pool_id, place.disk_id) != (self._commitlog.pool_id, member.disk_id):
            return
        number = member.number
        if member.offline_since_s is not None:
            raise PoolError(
                f"{member.path}: disk {number} is offline, not lost; `disk online {number}` takes it back; "
                "detach it if it is dead"
            )
        raise PoolError(
            f"{member.path}: disk {number} is at its path, not lost; `commitlogfs restart` takes it back, or says "
            "why not; detach it if it is dead"
        )

    def _plan_giving_up(self, member: Member) -> GivingUp:
        return plan_giving_up(
            self._commitlog.membership,
            member,
            [s.base_offset for s in self._commitlog.catalog if s.size and s.disk != member.number],
            self._commitlog.names.newest,
            self._commitlog.segment_size,
            round(self._clock.wall()),
            [s.base_offset for s in self._commitlog.catalog.on_disk(member.number) if s.size],
            self._commitlog.is_recordable,
            [other.path for other in self._commitlog.unserved()],
        )

    # --- offline and back ----------------------------------------------------------------------------

    async def _take_offline(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk is released: it gets no new segments, and the next daemon does not serve it. One that is missing
        is not missed any longer."""
        dry_run = request_fields.flag(request, "dry_run")
        member = self._find_member(request_fields.disk(request))
        disk = self._commitlog.disks.get(member.number)
        changed = member.offline_since_s is None
        path = member.path if disk is None else disk.path
        released = self._commitlog.membership.released(member.number, path, round(self._clock.wall()))
        lagging: list[str] = []
        if disk is not None:
            await self._require_releasable(disk)
        if disk is None:
            self._require_holds_no_daemon(member)
            if changed:
                lagging = await self._record(released, dry_run=dry_run)
        else:
            try:
                async with self._parts.changes.lock:  # no create is on its way to a disk
                    self._require_not_written(disk)
                    disk.is_offline = True  # and none comes any more
                if changed:
                    lagging = await self._record(released, dry_run=dry_run)
            finally:
                present = self._commitlog.membership.member(disk.number)
                disk.is_offline = present is not None and present.offline_since_s is not None
        if changed and not dry_run:
            log_event(log, logging.WARNING, "disk_offline", disk=path, number=member.number)
        return {
            "number": member.number,
            "path": path,
            "segments": self._commitlog.catalog.count_on_disk(member.number),
            "served": disk is not None,
            "changed": changed,
            "lagging": lagging,
        }

    async def _require_releasable(self, disk: Disk) -> None:
        """Raises PoolError."""
        if disk.is_leaving or disk.is_joining:
            raise PoolError(f"{disk.path}: is {disk.present_state.value}; wait until that is done")
        if disk.drain is not None:
            raise PoolError(f"{disk.path}: is draining; `disk cancel` ends that")
        if not self._commitlog.others_take_segments(disk):
            raise PoolError(f"{disk.path}: {_NO_OTHER}")
        progress = self._parts.mover.progress
        if progress is not None and disk.number in (progress.source, progress.target):
            raise PoolError(
                f"{disk.path}: {progress.name.decode()} is being moved; wait for that, or cancel the drain, "
                "rebalance or restore"
            )
        await self._require_hand_over()

    def _require_not_written(self, disk: Disk) -> None:
        """Raises PoolError if a broker may write to a segment of a disk."""
        newest = self._commitlog.catalog.newest(NEWEST_KEPT)
        is_written = self._parts.sources.is_written_to
        written = [s for s in self._commitlog.catalog.on_disk(disk.number) if s in newest or is_written(s)]
        if written:
            raise PoolError(
                f"{disk.path}: holds {written[0].name.decode()}, to which the broker may still write; "
                f"`disk cordon` it, and repeat the command when the log has {NEWEST_KEPT} newer segments"
            )

    async def _take_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """A disk is offline no longer. The daemon hands over when it finds it at its path (disk_returns.py)."""
        dry_run = request_fields.flag(request, "dry_run")
        member = self._find_member(request_fields.disk(request))
        disk = self._commitlog.disks.get(member.number)
        changed = member.offline_since_s is not None
        lagging: list[str] = []
        if changed:
            if disk is None:
                self._require_holds_no_daemon(member)
                await self._require_hand_over()
                await self._require_at_its_path(member)
            lagging = await self._record(self._commitlog.membership.taken_back({member.number}), dry_run=dry_run)
        if changed and not dry_run:
            log_event(log, logging.WARNING, "disk_online", disk=member.path, number=member.number)
        return {
            "number": member.number,
            "path": member.path if disk is None else disk.path,
            "served": disk is not None,
            "changed": changed,
            "lagging": lagging,
        }

    def _require_holds_no_daemon(self, member: Member) -> None:
        """Raises PoolError."""
        pid = self._former.holder(member.number)
        if pid is not None:
            raise PoolError(
                f"{member.path}: still holds daemon {pid}, which was killed; repair or detach the disk: it is "
                "taken back when that process has ended"
            )

    async def _require_at_its_path(self, member: Member) -> None:
        """Raises PoolError."""
        place = await self._parts.disk_places.find(member.path, self._timing.members.record_s)
        if place is None:
            raise PoolError(f"{member.path}: does not answer; repair the disk there")
        if (place.pool_id, place.disk_id) != (self._commitlog.pool_id, member.disk_id):
            raise PoolError(f"{member.path}: disk {member.number} is not there; mount it first")

    # --- joining -------------------------------------------------------------------------------------

    async def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """With `instead_of`, a dry run is a plan for the time when that disk has been given up."""
        dead = request_fields.text(request, "instead_of", "")
        path, dry_run = request_fields.text(request, "directory"), request_fields.flag(request, "dry_run")
        await self._require_hand_over()
        unmounted = await self._in_thread(partial(unmounted_above, path))
        if unmounted is not None:
            raise PoolError(f"{path}: /etc/fstab names {unmounted}, but nothing is mounted there; mount it first")
        log_ = self._commitlog
        if not any(disk.state is DiskState.RW and not disk.is_joining for disk in log_.disks.values()):
            raise PoolError(f"{path}: no disk of the pool can record the new member; make one writable")
        membership = log_.membership
        if dead and dry_run:
            membership = self._plan_giving_up(self._find_member(dead)).membership
        plan_now = partial(
            joining.plan_joining,
            path,
            log_.pool_id,
            log_.segment_size,
            membership,
            list(log_.disks.values()),
        )
        plan = await self._in_thread(plan_now)
        if not dry_run:
            await self._in_thread(partial(joining.prepare, plan, log_.pool_id))
            log_event(log, logging.INFO, "disk_prepared", disk=path, number=plan.number)
        return {
            "number": plan.number,
            "path": plan.path,
            "filesystem": plan.filesystem,
            "is_new": plan.is_new,
            "total_bytes": plan.usage.total_bytes,
            "free_bytes": plan.usage.free_bytes,
            "available_bytes": plan.usage.available_bytes,
            "segment_size": log_.segment_size,
            "warnings": list(plan.warnings),
        }

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Leaves the thread behind if the command gives up: a new directory may hang, too."""
        return await self._parts.threads.aside(function, may_be_abandoned=True)

    async def _forget(self, request: dict[str, Any]) -> dict[str, Any]:
        path, dry_run = request_fields.text(request, "directory"), request_fields.flag(request, "dry_run")
        log_ = self._commitlog
        for member in log_.membership.members:
            if member.path == path and member.number not in log_.disks:
                raise _missing(member)
        await self._in_thread(partial(joining.forget, path, log_.pool_id, log_.membership, dry_run=dry_run))
        return {"path": path}


def _missing(member: Member) -> PoolError:
    if member.offline_since_s is not None:
        return PoolError(
            f"{member.path}: disk {member.number} is offline; `disk online {member.number}` takes it back"
        )
    return PoolError(
        f"{member.path}: disk {member.number} is missing; bring it back, or give it up: "
        f"`commitlogfs disk remove --lost {member.number}`"
    )


def _require_well(disk: Disk) -> None:
    """Raises PoolError if an ordinary drain of a disk would stop."""
    if disk.state is not DiskState.RW or disk.is_troubled:
        raise PoolError(
            f"{disk.path}: cannot be written, so nothing can be removed from it; repair it, or save what can be "
            "read (`disk drain --failing`)"
        )
    if disk.is_unreadable:
        raise PoolError(
            f"{disk.path}: cannot be read; repair it, or save what can be read (`disk drain --failing`)"
        )


def _require_room(disk: Disk, needed: int, room: int, size: int, *, gives_more: bool) -> None:
    """Raises PoolError if the other disks have no room for the segments of a disk that is to drain."""
    if needed > room:
        remedy = "give a larger disk" if gives_more else "add a disk, or let them expire (`disk drain --by-expiry`)"
        raise PoolError(
            f"{disk.path}: {needed:,} segments ({needed * size:,} bytes) would have to go to the "
            f"other disks, which have room for {room:,} ({room * size:,} bytes) below their `force` threshold; "
            f"{remedy}"
        )
