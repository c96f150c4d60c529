"""One mount at work: its objects wired together, mounted or taken over, served until it ends."""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from prometheus_client import CollectorRegistry, generate_latest

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.fusefs import connection
from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.connection import ConnectionOptions
from commitlogfs.fusefs.files.control_files import ControlContents
from commitlogfs.fusefs.kernel.inherited_session import STORED
from commitlogfs.fusefs.kernel.inherited_state import InheritedStateError
from commitlogfs.fusefs.kernel.link import FuseLink
from commitlogfs.fusefs.kernel.session import Passthrough, Session
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.daemon import successor
from commitlogfs.mount.daemon.disk_changes import DiskChanges
from commitlogfs.mount.daemon.disk_returns import DiskReturns
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.hand_over import HandOver
from commitlogfs.mount.daemon.keeper_watch import KeeperWatch
from commitlogfs.mount.daemon.rebalance_changes import RebalanceChanges
from commitlogfs.mount.daemon.restore_requests import restore_verbs
from commitlogfs.mount.daemon.scrub_requests import scrub_verbs
from commitlogfs.mount.daemon.start_cleanup import clean_up_after_takeover, clean_up_after_unmount
from commitlogfs.mount.daemon.takeover import InheritedMount, not_taken_over
from commitlogfs.mount.journal.disk_watch import watch_disks
from commitlogfs.mount.journal.entries import Kind
from commitlogfs.mount.journal.recorder import Journal
from commitlogfs.mount.linux import descriptor_store, logs, mountinfo, notify, read_ahead, stop_signals
from commitlogfs.mount.linux.probe import ProbeResult, probe_mount
from commitlogfs.mount.linux.unmount import not_visible, unmount
from commitlogfs.mount.location import control_socket, runtime_directory
from commitlogfs.mount.location.name_lock import hold_name
from commitlogfs.mount.metrics.counts import Counts
from commitlogfs.mount.metrics.state import StateCollector
from commitlogfs.mount.status.composed import Composed
from commitlogfs.mount.status.control_api import ControlApi
from commitlogfs.mount.status.document import StatusReport, one_line, to_json
from commitlogfs.store.events import log_event
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import Pool, find_retired
from commitlogfs.store.timing import DEFAULT, Timing

log = logging.getLogger(__name__)

WATCHDOG_BEATS: Final = 3
"""Checks per watchdog interval: one that is late does no harm."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Bound sockets at which requests are answered."""

    control: socket.socket
    status: socket.socket
    status_group: int | None
    """Id of the group that may use the status socket."""


class ServedMount:
    """The objects of one mount, wired together."""

    def __init__(
        self,
        config: Config,
        pool: Pool,
        inherited: InheritedMount | None,
        former: FormerDaemons,
        timing: Timing = DEFAULT,
    ) -> None:
        self._config = config
        self._pool = pool
        self._inherited = inherited
        self._session: Session | None = None
        self._registry = CollectorRegistry()
        on_first_answer = None if inherited is None else successor.report_serving
        self._timing = timing.daemon
        self._commitlog = CommitLog(pool, POLICIES[config.placement], timing=timing)
        for file in find_retired(pool):  # after a clean-up, only those that are still needed
            self._commitlog.record_found_retired(file)
        age_s = self._timing.status_age_s
        self._status = Composed(lambda: self._report.compose(), age_s)
        self._metrics_text = Composed(self._render_metrics, age_s)
        contents = ControlContents(
            status=Composed(self._compose_status_file, age_s).recent, metrics=self._metrics_text.recent
        )
        self._journal = Journal(self._commitlog.clock, self._timing.journal_repeat_s)
        counts = Counts(self._registry, config.name, on_first_answer, self._journal)
        self._parts = Parts(self._commitlog, config.retention, config.scrub, counts, FuseLink(timing.requests))
        self._operations = CommitLogOperations(
            self._parts, contents, refuse_reads_when_full=config.refuse_reads_when_full
        )
        self._state_collector = StateCollector(self._parts, config.name)
        self._registry.register(self._state_collector)
        self._hand_over = HandOver(
            config.mountpoint,
            self._why_no_takeover,
            self._parts.disk_places.why_not_handed_over,
            self._parts.retention.reset_clock_baseline,
            self._timing,
        )
        paths = [disk.path for disk in config.disks]
        self._disk_returns = DiskReturns(
            config.name, paths, pool.not_read, former, self._parts.disk_places, self._hand_over, self._timing
        )
        self._report = StatusReport(config, self._parts, self._why_no_takeover, self._disk_returns.findings)
        self._control_api = ControlApi(
            config.name,
            self._commitlog,
            self._parts,
            self._report,
            self._status,
            self._metrics_text,
            self._journal,
        )
        self._disk_changes = DiskChanges(self._parts, former, pool.not_read)
        self._rebalance_changes = RebalanceChanges(self._parts, self._report)
        self._failure: RefusedError | None = None
        self._stops: list[int] = []
        """Stop signals that came before `serve` could act on them."""
        self._is_stopping = False
        self._is_kept = False
        self._keeper = KeeperWatch(self._timing)
        self._names_held: list[int] = []
        self._device: int | None = None
        """Device number of the mount, as mountinfo shows it."""

    def mount(self) -> None:
        """Mount, or take the inherited mount over. Raises RefusedError.

        From here on a stop signal waits until `serve` can unmount: it must not leave a mount without a daemon.
        """
        self._stops = stop_signals.record_stops()
        config = self._config
        wanted = Passthrough(config.passthrough)
        options = ConnectionOptions(config.mountpoint, config.name, config.allow_other, wanted)
        try:
            session = None if self._inherited is None else self._inherited.session
            self._session = connection.mount(self._operations, options, session)
        except InheritedStateError as error:
            raise not_taken_over(config.mountpoint, error) from error
        except RuntimeError as error:
            raise RefusedError(
                f"{config.mountpoint}: cannot be mounted ({error}); run `commitlogfs doctor` to check "
                "/dev/fuse and the rights of this user"
            ) from error
        if self._inherited is not None:
            self._device = self._inherited.device
        else:
            entry = mountinfo.find_mount(config.mountpoint)
            self._device = None if entry is None else entry.device
        self._journal.open(runtime_directory.journal_path(config.name), self._pool.pool_id)
        kind = Kind.MOUNTED if self._inherited is None else Kind.TAKEOVER
        self._journal.begun(kind, os.getpid(), self._pool.segment_size)
        if wanted is Passthrough.REQUIRED and self._inherited is None and self._session.not_passed_through:
            reasons = "; ".join(self._session.not_passed_through)
            self._failure = RefusedError(f'{config.mountpoint}: passthrough = "required", but {reasons}')
            return
        if self._inherited is None:
            read_ahead.widen(config.mountpoint)
        self._keep_descriptors(self._session)

    def _keep_descriptors(self, session: Session) -> None:
        kept = False
        try:
            if not session.taken_over or session.state_lost:
                for name in STORED:  # of a former mount, perhaps
                    descriptor_store.remove(name)
                kept = descriptor_store.store(session.descriptors())
        except OSError as error:
            log_event(log, logging.ERROR, "descriptors_not_kept", reason=str(error))
        else:
            self._is_kept = (kept or session.taken_over) and not session.why_no_takeover
            if not self._is_kept:
                log_event(log, logging.WARNING, "takeover_unavailable", reason=self._why_no_takeover())
                # Killing this process for being slow would end the mount.
                notify.watch_no_longer()

    async def serve(self, sockets: Sockets, on_ready: Callable[[], None]) -> ExitCode:
        """OK once unmounted, HANDED_OVER after `restart`, FINDINGS if the connection was aborted. Raises
        RefusedError if the mount does not answer."""
        verbs = {
            **self._control_api.verbs(),
            **self._disk_changes.verbs(),
            **self._rebalance_changes.verbs(),
            **restore_verbs(self._parts),
            **scrub_verbs(self._parts),
            "restart": self._hand_over.answer,
            "restart-plan": self._hand_over.plan,
        }
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_signals)
                nursery.start_soon(control_socket.serve, sockets.control, verbs, self._hold_name_anew)
                reading = self._control_api.status_verbs()
                nursery.start_soon(control_socket.serve_status, sockets.status, reading, sockets.status_group)
                nursery.start_soon(self._announce, on_ready)
                nursery.start_soon(watch_disks, self._commitlog, self._parts.usage, self._journal)
                await connection.serve(self._operations)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise _refusal_in(group) or group from None
        finally:
            if not self._hand_over.has_begun:
                notify.stopping()
            connection.close(self._operations)
        if self._hand_over.has_begun:
            log_event(log, logging.INFO, "handed_over", path=self._config.mountpoint)
            return ExitCode.HANDED_OVER
        aborted = self._is_attached()
        if not aborted:
            self._journal.remove()
            await trio.to_thread.run_sync(clean_up_after_unmount, self._pool)
        level, event = (logging.ERROR, "connection_aborted") if aborted else (logging.INFO, "unmounted")
        log_event(log, level, event, path=self._config.mountpoint)
        with contextlib.suppress(OSError):
            for name in STORED:
                descriptor_store.remove(name)
        if self._failure is not None:
            raise self._failure
        return ExitCode.FINDINGS if aborted else ExitCode.OK

    def _hold_name_anew(self) -> None:
        """The lock file was removed with its directory: make and hold another one, as long as this process
        lives."""
        try:
            self._names_held.append(hold_name(self._config.name))
            runtime_directory.record_mountpoint(self._names_held[-1], self._config.mountpoint)
        except (RefusedError, OSError) as error:
            log_event(log, logging.WARNING, "name_not_held", reason=str(error))

    def _is_attached(self) -> bool:
        """Whether the mount is still at its mountpoint, perhaps below another one, according to /proc. Its device
        number alone is not enough: the kernel gives such numbers out again at once, also to another mount of this
        name, which only its mountpoint distinguishes."""
        return any(
            entry.device == self._device and mountinfo.is_commitlogfs(entry) and entry.source == self._config.name
            for entry in mountinfo.read_mounts()
            if entry.mountpoint == self._config.mountpoint
        )

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        """READY only when the mount answers a probe from a child process; then STATUS= regularly."""
        path = self._config.mountpoint
        if self._failure is None and (self._inherited is None or self._is_visible()):
            result, is_its_own = await self._probe()
            if not result.ok and self._is_stopping:
                return
            if not result.ok and self._inherited is None:
                self._failure = RefusedError(
                    f"{path}: mounted, but it does not answer ({result.reason}); unmounted again"
                )
            elif not result.ok and is_its_own:
                # The mount stays: the keeper notices that this process does not get ready.
                raise RefusedError(f"{path}: taken over, but it does not answer ({result.reason})")
        if self._failure is not None:
            await self._unmount()
            return
        log_event(log, logging.INFO, "ready", path=path, segments=len(self._commitlog.catalog), pid=os.getpid())
        notify.ready()
        on_ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_status)
            nursery.start_soon(self._feed_watchdog)
            nursery.start_soon(self._disk_returns.run)
            if self._inherited is not None:
                in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
                nursery.start_soon(in_thread, clean_up_after_takeover, self._pool)
            if self._session is not None:
                nursery.start_soon(self._keeper.run, self._session.descriptors())

    async def _probe(self) -> tuple[ProbeResult, bool]:
        """Probe the mount. Returns the result, and whether it is the mount's own: one that was taken over may be
        hidden by another filesystem, which the probe has examined instead. Then this daemon is ready.

        One look after a failed probe decides both whether the mount is probed once more, as another filesystem may
        have been on top during the probe only, and whether the result counts.
        """
        probe = partial(probe_mount, self._config.mountpoint, self._timing.probe_s)
        result = await trio.to_thread.run_sync(probe)
        if result.ok or self._inherited is None:
            return result, True
        is_visible = self._is_visible()
        if is_visible:
            result = await trio.to_thread.run_sync(probe)
            is_visible = result.ok or self._is_visible()
        return result, is_visible

    async def _feed_watchdog(self) -> None:
        """The event loop runs if this task does, and the kernel's queue shows whether it takes requests. A probe
        through the mount would show less: it waits for each request that holds the directory."""
        interval_s = notify.watchdog_interval_s()
        if interval_s is None:
            return
        queue = None if self._session is None else self._session.queue
        while True:
            beat = trio.current_time() + interval_s / WATCHDOG_BEATS
            if not self._is_visible():
                log_event(log, logging.WARNING, "out_of_sight", path=self._config.mountpoint)
            if queue is not None and queue.has_stopped():
                log_event(log, logging.ERROR, "requests_not_taken", path=self._config.mountpoint)
            else:
                notify.watchdog()
            await trio.sleep_until(beat)

    def _is_visible(self) -> bool:
        """Not after `umount -l`, nor below another mount. Then nothing can be probed, but open files are served
        until the last is closed."""
        entry = mountinfo.find_mount(self._config.mountpoint)
        return entry is not None and entry.device == self._device

    async def _send_status(self) -> None:
        while True:
            try:
                notify.status(one_line(await self._status.current()))
            except Exception as error:
                # A defect in a report must not end the service.
                log_event(log, logging.ERROR, "status_failed", exc_info=error)
            await trio.sleep(self._timing.status_s)

    async def _watch_signals(self) -> None:
        """A stop is a plain unmount: the loop ends by itself. A mount in use stays, with a line saying why.

        SIGHUP opens the log file anew.
        """
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            if self._stops:
                await self._stop(self._stops[0])
            async for number in signals:
                if number == signal.SIGHUP:
                    logs.reopen_soon()
                    continue
                await self._stop(number)

    async def _stop(self, number: int) -> None:
        log_event(log, logging.INFO, "stop_requested", signal=signal.Signals(number).name)
        self._is_stopping = True
        await self._unmount()

    async def _unmount(self) -> None:
        try:
            if not self._is_visible():
                raise not_visible(self._config.mountpoint)
            await trio.to_thread.run_sync(unmount, self._config.mountpoint)
        except (UserError, OSError) as error:
            log_event(log, logging.ERROR, "stop_refused", reason=str(error))

    async def _compose_status_file(self) -> bytes:
        """In a thread: with many gaps, the conversion to text takes longer than a create may."""
        return await trio.to_thread.run_sync(to_json, await self._status.current())

    def _why_no_takeover(self) -> str:
        """Why the mount would end with this process at this moment; empty if it would not."""
        if self._is_kept and not self._keeper.is_missing:
            return ""
        reason = self._session.why_no_takeover if self._session is not None else ""
        if self._is_kept and not reason:
            return "its keeper has died, and no other one has been started yet; see the daemon's log"
        return reason or "no keeper and no service manager keeps the descriptors of the mount"

    async def _render_metrics(self) -> bytes:
        self._state_collector.document = await self._status.current()
        return generate_latest(self._registry)


def _refusal_in(group: ExceptionGroup[Exception]) -> RefusedError | None:
    """The RefusedError that a nursery has wrapped, if there is one."""
    found: BaseException | None = group.subgroup(RefusedError)
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, RefusedError) else None
