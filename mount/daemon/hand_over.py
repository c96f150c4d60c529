"""The daemon's part of `commitlogfs restart`: it ends and leaves its mount to a successor."""

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.fusefs import connection
from commitlogfs.mount.daemon import successor
from commitlogfs.mount.location import request_fields
from commitlogfs.mount.location.control_socket import Reply
from commitlogfs.store.events import log_event
from commitlogfs.store.timing import DaemonTiming

log = logging.getLogger(__name__)


class HandOver:
    """Ends this daemon and leaves its mount to a successor.

    `why_no_takeover` returns why no successor could take the mount over at this moment, `why_not_now` which disk
    prevents it; empty if nothing does. `prepare` is called before the last step."""

    def __init__(
        self,
        mountpoint: str,
        why_no_takeover: Callable[[], str],
        why_not_now: Callable[[], Awaitable[str]],
        prepare: Callable[[], None],
        timing: DaemonTiming,
    ) -> None:
        self._mountpoint = mountpoint
        self._why_no_takeover = why_no_takeover
        self._why_not_now = why_not_now
        self._prepare = prepare
        self._timing = timing
        self._asking = trio.Lock()
        self._is_decided = False
        self.has_begun = False
        """Whether it cannot be undone any more: the process ends with HANDED_OVER."""

    async def answer(self, request: dict[str, Any]) -> dict[str, Any] | Reply:
        """The control verb: {"pid": of this process}, or {"refused": why}. With "force", neither a disk that does
        not answer nor a program that cannot be loaded refuses it. The daemon hands over once the first such answer
        has been sent."""
        is_forced = request_fields.flag(request, "force")
        async with self._asking:
            if self._is_decided:
                return {"pid": os.getpid()}
            reason = await self._decide(force=is_forced)
            return {"refused": reason} if reason else Reply({"pid": os.getpid()}, self._begin)

    async def plan(self, request: dict[str, Any]) -> dict[str, Any]:
        """The control verb of a dry run: as `answer`, but the daemon continues, and no program is loaded."""
        reason = await self._why_refused(force=request_fields.flag(request, "force"))
        return {"refused": reason} if reason else {"pid": os.getpid()}

    async def begin(self) -> str:
        """Hand over without a request; why not, or empty."""
        async with self._asking:
            if self._is_decided:
                return ""
            reason = await self._decide(force=False)
            if not reason:
                self._begin()
            return reason

    async def _decide(self, *, force: bool) -> str:
        """Why the daemon does not hand over; empty if it will."""
        reason = await self._why_refused(force=force)
        if reason:
            return reason
        loaded = await trio.to_thread.run_sync(successor.prepare, self._timing.successor_s)
        if loaded is False and not force:
            return "the program as it is installed now does not start; see the daemon's log"
        self._is_decided = True
        return ""

    async def _why_refused(self, *, force: bool) -> str:
        """Why the daemon would not hand over, as far as it knows that without a successor."""
        reason = self._why_no_takeover()
        if reason:
            return f"{reason}; correct that and repeat, or stop the broker, unmount and mount again"
        return "" if force else await self._why_not_now()

    def _begin(self) -> None:
        trio.lowlevel.spawn_system_task(self._hand_over)

    async def _hand_over(self) -> None:
        """Answers the requests that it has. Those that wait for a hung disk are sent again to the successor."""
        log_event(log, logging.INFO, "restart_requested")
        await trio.sleep(self._timing.answer_s)
        reason = self._why_no_takeover()
        if reason:
            log_event(log, logging.ERROR, "restart_given_up", reason=reason)
            self._is_decided = False
            return
        self.has_begun = True
        self._prepare()
        connection.stop_serving()
        await trio.sleep(self._timing.hand_over_s)
        log_event(log, logging.WARNING, "handed_over_with_requests", path=self._mountpoint)
        os._exit(ExitCode.HANDED_OVER)
