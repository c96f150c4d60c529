"""The control verbs of `commitlogfs scrub`."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.disks.abandoned_work import AbandonableWork
from commitlogfs.mount.location import control_socket, request_fields
from commitlogfs.mount.status.scrub import damage_report, scrub_report, set_aside_report
from commitlogfs.store.errors import DiskError, PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.scrub.progress import Command

log = logging.getLogger(__name__)

_Clear = Callable[[Segment], Awaitable[bool]]
"""Clears a file; False if that could not be done."""


def scrub_verbs(parts: Parts) -> dict[str, control_socket.Answer]:
    """A PoolError refuses a request: {"refused": why}, and nothing has changed."""
    requests = _Requests(parts)
    verbs: dict[str, control_socket.Request] = {
        "scrub-start": requests.start,
        "scrub-pause": partial(requests.order, Command.PAUSE),
        "scrub-resume": partial(requests.order, Command.RUN),
        "scrub-cancel": partial(requests.order, Command.CANCEL),
        "scrub-clear": requests.clear,
    }
    return {verb: partial(control_socket.answer_or_refuse, method) for verb, method in verbs.items()}


class _Requests:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._scrub = parts.scrub

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Repeated for a scrub under way, it changes the rate. A scheduled one is one by hand from then on."""
        scrub, follows_chains = self._scrub, request_fields.flag(request, "messages")
        given_rate, dry_run = request_fields.number(request, "rate", 0), request_fields.flag(request, "dry_run")
        await self._require_known()
        was_active = scrub.is_active
        rate = given_rate or (scrub.latest.rate if was_active else 0)
        if was_active and follows_chains and not scrub.latest.follows_chains:
            raise PoolError("a scrub without --messages is under way; wait for its end, or `scrub cancel` it")
        if was_active and scrub.latest.command is Command.PAUSE:
            raise PoolError("the scrub is paused; `scrub resume` continues it")
        was_scheduled = was_active and scrub.latest.is_scheduled
        changed = not was_active or was_scheduled or scrub.latest.rate != rate
        whole, lagging = scrub.settled_bytes(), list[str]()
        if changed and not dry_run:
            if was_active:
                lagging = await scrub.change(Command.RUN, rate, by_hand=True)
            else:
                lagging = await scrub.begin(rate, follows_chains=follows_chains)
        return {
            "running": was_active,
            "was_scheduled": was_scheduled,
            "changed": changed,
            "rate": rate or None,
            "bytes": whole,
            "segments": whole // self._parts.commitlog.segment_size,
            "lagging": lagging,
            "scrub": scrub_report(self._parts),
        }

    async def order(self, command: Command, request: dict[str, Any]) -> dict[str, Any]:
        """Pause, resume or cancel the scrub under way; `rate`, if given, is that from now on."""
        scrub, dry_run = self._scrub, request_fields.flag(request, "dry_run")
        given_rate = request_fields.number(request, "rate") if "rate" in request else None
        await self._require_known()
        if not scrub.is_active:
            if command is Command.RUN:
                raise PoolError("no scrub is under way; `scrub start` begins one")
            return {"changed": False, "active": False, "lagging": []}
        rate = scrub.latest.rate if given_rate is None else given_rate
        changed = (scrub.latest.command, scrub.latest.rate) != (command, rate)
        lagging = []
        if changed and not dry_run:
            lagging = await scrub.change(command, rate)
        return {"changed": changed, "active": True, "lagging": lagging}

    async def clear(self, request: dict[str, Any]) -> dict[str, Any]:
        """Remove the verdicts on the segments with these base offsets, or on all, and the damaged files that were
        set aside when these were repaired. Verdicts of `unknown` disks stay as far as they are not known yet. What
        is `pending` could not be done before the answer is due, and is done afterwards."""
        wanted, dry_run = request_fields.numbers(request, "segments"), request_fields.flag(request, "dry_run")
        parts, verdicts = self._parts, self._parts.verdicts
        answer_at_s = trio.current_time() + parts.commitlog.timing.verdicts.clear_s
        await verdicts.await_loaded()
        disks = [parts.commitlog.disks[number].path for number in verdicts.not_loaded()]
        damaged, aside = self._to_clear(wanted, disks)
        kept, pending = set[Segment](), dict[Segment, _Clear]()
        if not dry_run:
            pending = dict.fromkeys(damaged, self._clear_verdict) | dict.fromkeys(aside, self._clear_aside)
            with trio.move_on_at(answer_at_s):
                await AbandonableWork(partial(self._clear_all, pending, kept)).wait()
        stay = kept.union(pending)
        return {
            "cleared": [report for segment, report in damaged.items() if segment not in stay],
            "kept": [segment.name.decode() for segment in damaged if segment in kept],
            "removed": [report for file, report in aside.items() if file not in stay],
            "not_removed": [report for file, report in aside.items() if file in kept],
            "pending": sorted(file.name.decode() for file in pending),
            "unknown": disks,
        }

    def _to_clear(
        self, wanted: list[int] | None, disks: Sequence[str]
    ) -> tuple[dict[Segment, dict[str, Any]], dict[Segment, dict[str, Any]]]:
        """Reports on damaged segments, and on files that were set aside: all, or the chosen ones. Raises PoolError
        as _require_known."""
        parts = self._parts
        damaged = {found: damage_report(parts, found, verdict) for found, verdict in parts.verdicts.present()}
        aside = {file: set_aside_report(parts, file, verdict) for file, verdict in parts.verdicts.replaced()}
        if wanted is None:
            return damaged, aside
        _require_known({file.base_offset for file in (*damaged, *aside)}, wanted, disks)
        return _of_segments(damaged, wanted), _of_segments(aside, wanted)

    async def _clear_all(self, pending: dict[Segment, _Clear], kept: set[Segment]) -> None:
        """Clear these files of all disks side by side. What is done leaves `pending`, for `kept` if it could not be
        cleared. It continues when nobody waits any longer."""

        async def clear_on(files: list[Segment]) -> None:
            for file in files:
                if not await pending[file](file):
                    kept.add(file)
                del pending[file]

        async with trio.open_nursery() as nursery:
            for number in self._parts.commitlog.disks:
                nursery.start_soon(clear_on, [file for file in pending if file.disk == number])

    async def _clear_verdict(self, segment: Segment) -> bool:
        """Whether it has none any more."""
        is_cleared = await self._parts.verdicts.clear(segment)
        if is_cleared:
            await self._parts.lost_writes.settle(segment)
        return is_cleared

    async def _clear_aside(self, file: Segment) -> bool:
        """Whether it is not set aside any more."""
        try:
            await self._parts.sources.clear(file)
        except (DiskError, OSError) as error:
            disk = self._parts.commitlog.disk_of(file).path
            log_event(log, logging.WARNING, "set_aside_kept", segment=file.name, disk=disk, reason=str(error))
            return False
        return True

    async def _require_known(self) -> None:
        """Raises PoolError if a disk hangs since the daemon has started."""
        await self._scrub.await_loaded()
        if not self._scrub.is_loaded:
            waiting = [self._parts.commitlog.disks[number].path for number in self._scrub.not_loaded()]
            raise PoolError(
                f"{', '.join(waiting)}: has not answered yet whether a scrub is under way; repeat the command"
            )


def _require_known(known: Collection[int], chosen: Iterable[int], disks: Sequence[str]) -> None:
    """Raises PoolError if one of the chosen segments has no verdict and no file set aside. `known` are those that
    have; `disks` have not answered yet."""
    lacking = min((base for base in chosen if base not in known), default=None)
    if lacking is None:
        return
    if disks:
        raise PoolError(f"{', '.join(disks)}: has not answered yet which segments are damaged; repeat the command")
    raise PoolError(f"{lacking:020d}: has no verdict, and no file set aside; see `commitlogfs scrub status`")


def _of_segments(reports: dict[Segment, dict[str, Any]], wanted: list[int]) -> dict[Segment, dict[str, Any]]:
    """Those of the reports on files that belong to segments with these base offsets."""
    return {file: report for file, report in reports.items() if file.base_offset in wanted}
