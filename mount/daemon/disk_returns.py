"""Disks that are back: the daemon hands over by itself, as a disk joins only then (disk_changes.py).

Before that it makes the checks of `commitlogfs restart`. If they fail, the daemon continues without the disk, and
the reason is a finding.
"""

import logging
from collections.abc import Iterable, Sequence, Set
from functools import partial

import trio

from commitlogfs.console.errors import UserError
from commitlogfs.fusefs.disks.disk_places import DiskPlaces
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.hand_over import HandOver
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.preflight.successor_check import check_configuration
from commitlogfs.store.events import log_event
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.timing import DaemonTiming

log = logging.getLogger(__name__)


class DiskReturns:
    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        tried: Set[str],
        former: FormerDaemons,
        places: DiskPlaces,
        hand_over: HandOver,
        timing: DaemonTiming,
    ) -> None:
        """`paths` are those of the configuration. This daemon has `tried` to serve the disks at some of them."""
        self._name = name
        self._paths = paths
        self._known = set(tried)
        """Paths that need no attempt before `_retry_at`."""
        self._retry_at = 0.0
        self._former = former
        self._places = places
        self._hand_over = hand_over
        self._timing = timing
        self._refused: dict[str, str] = {}
        """Path of a disk that is back -> why it is not served."""

    async def run(self) -> None:
        """Look at the paths until cancelled."""
        self._retry_at = trio.current_time() + self._timing.returns_retry_s
        while True:
            await trio.sleep(self._timing.returns_look_s)
            try:
                await self._look()
            except Exception as error:
                # A defect here must not end the service.
                log_event(log, logging.ERROR, "disk_look_failed", exc_info=error)

    async def _look(self) -> None:
        if not self._former.are_gone():  # nobody may use the disks that hold them
            return
        looks = await self._places.look(self._paths)
        self._known &= looks.back | looks.silent
        for path in self._refused.keys() - self._known:
            del self._refused[path]
        if looks.back - self._known or (looks.back and trio.current_time() >= self._retry_at):
            await self._take_back(sorted(looks.back))
            self._retry_at = trio.current_time() + self._timing.returns_retry_s
        self._known |= looks.back

    def findings(self) -> list[Finding]:
        """A finding for every disk that is back and not served."""
        return [
            Finding(
                FindingCode.DISK_NOT_TAKEN_BACK,
                Severity.WARNING,
                path,
                "",
                f"is back, but cannot be served ({reason})",
                "correct that; it is tried again every 5 minutes, and by `commitlogfs restart`",
            )
            for path, reason in sorted(self._refused.items())
        ]

    async def _take_back(self, paths: Iterable[str]) -> None:
        reason = (
            await self._places.why_not_handed_over()  # the next check reads all disks
            or await self._why_not_mountable()
            or await self._hand_over.begin()
        )
        for path in paths:
            if reason:
                self._refused[path] = reason
                log_event(log, logging.ERROR, "disk_not_taken_back", disk=path, reason=reason)
            else:
                log_event(log, logging.WARNING, "disk_back", disk=path)

    async def _why_not_mountable(self) -> str:
        """Why no successor could serve the disks; empty if one could."""
        check = partial(check_configuration, Target(self._name), degraded=True, is_automatic=True)
        try:
            await trio.to_thread.run_sync(check, abandon_on_cancel=True)
        except (UserError, OSError) as error:
            return str(error)
        return ""
