"""Life of the daemon: everything is checked before anything is mounted, and undone in reverse.

step                                     undone by
1 control socket's name is ours (flock)  closing the lock file
2 pool opened, locked, checked           closing the disks
3 bare mountpoint guarded                - (the guard stays: that is its purpose)
4 mounted                                a plain unmount; in use, the daemon stays
5 descriptors kept for a successor       their removal, once unmounted
6 control socket, loop, probe, READY     end of the loop

A daemon that is started with such descriptors takes the mount over instead: it goes from 2 to 4 without touching
the mountpoint (nobody answers there yet), and nothing that it fails at ends the mount.
"""

import contextlib
import dataclasses
import fcntl
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import trio

from commitlogfs.fusefs import connection
from commitlogfs.fusefs.connection import ConnectionOptions
from commitlogfs.fusefs.control_files import ControlContents
from commitlogfs.fusefs.kept_state import KeptStateError
from commitlogfs.fusefs.opened_files import opened_files
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.fusefs.session import STORED, Kept, Passthrough, Session
from commitlogfs.mount import (
    control,
    descriptor_store,
    fuse_device,
    guard,
    keeper_environment,
    mountinfo,
    mounting,
    notify,
    read_ahead,
    runtime,
    successor,
    takeover,
)
from commitlogfs.mount.config import Config
from commitlogfs.mount.descriptors import raise_descriptor_limit
from commitlogfs.mount.errors import RefusedError, UserError
from commitlogfs.mount.exit_codes import ExitCode
from commitlogfs.mount.guard import BareState
from commitlogfs.mount.keeper_adoption import KeeperWatch
from commitlogfs.mount.locate import locate, parse_target
from commitlogfs.mount.metrics import LogCollector, Metrics, MountCollector
from commitlogfs.mount.probe import probe_mount
from commitlogfs.mount.request_timeouts import describe_limits, read_request_timeouts
from commitlogfs.mount.retention_report import foresee
from commitlogfs.mount.status import StatusReport, one_line, to_json
from commitlogfs.mount.takeover import Sight
from commitlogfs.mount.unmount import unmount
from commitlogfs.store.commitlog import CommitLog
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.findings import Severity
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import (
    OnMissing,
    Pool,
    PoolRefusedError,
    demand_mountable,
    find_retired,
    finish_renames,
    open_pool,
    reserve_newest,
    sweep,
)

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 10.0
_FUSE_DEVICE: Final = "/dev/fuse"
STATUS_INTERVAL_S: Final = 30.0
STATE_TIMEOUT_S: Final = 1.0
WATCHDOG_BEATS: Final = 3
"""Probes per watchdog interval: one that is late does no harm."""
ANSWER_TIME_S: Final = 0.01
"""For the answer to `restart` to be on its way."""
HAND_OVER_TIMEOUT_S: Final = 3.0


def run(config: Config, received: dict[str, int], on_ready: Callable[[], None]) -> ExitCode:
    """Mount, or take a kept mount over, and serve. `received`: what the descriptor store has given this process.
    `on_ready` is called once the mount answers.

    OK when it is unmounted, HANDED_OVER when it goes on without this process. Raises UserError before anything is
    mounted or taken over, and RefusedError if the mount does not come to answer.
    """
    with ExitStack() as stack:
        socket_path = runtime.socket_path(config.name)
        lock_fd = _hold_name(config.name)
        stack.callback(os.close, lock_fd)
        log_event(log, logging.INFO, "limits", open_files=raise_descriptor_limit())
        kept = takeover.find_kept(config.mountpoint, config.name, received)
        sight = None
        if kept is not None:
            sight = takeover.locate(config.mountpoint, config.name, kept)
            config = dataclasses.replace(config, mountpoint=sight.mountpoint)
        else:
            if received:
                with contextlib.suppress(OSError):
                    # A connection that has ended keeps its files open as long as anybody has its descriptor.
                    descriptor_store.forget(received)
                if keeper_environment.is_told() and not _is_ours(mountinfo.find_mount(config.mountpoint)):
                    # A keeper starts a successor for a mount that is there; somebody has unmounted it since.
                    log_event(log, logging.INFO, "unmounted_meanwhile", path=config.mountpoint)
                    return ExitCode.OK
            check_mountpoint(config)
        with contextlib.suppress(OSError):  # no room: a note for those who come when nobody answers
            runtime.record_mountpoint(lock_fd, config.mountpoint)
        started = time.perf_counter()
        with _long_lived_objects():
            pool = _open(config, kept)
        stack.callback(pool.close)
        seconds = round(time.perf_counter() - started, 3)
        count = len(pool.inventory.catalog)
        log_event(log, logging.INFO, "pool_opened", disks=len(pool.disks), segments=count, seconds=seconds)
        _tell_findings(pool)
        if kept is None:
            _tell_tidied(sweep(pool), reserve_newest(pool))
            standing = guard.raise_guard(config.mountpoint, protect=os.geteuid() == 0)
            log_event(log, logging.INFO, "guarded", path=config.mountpoint, protection=standing.protection.value)
        warn_of_time_limits(read_request_timeouts())
        daemon = _Daemon(config, pool, kept, sight)
        try:
            listener = control.bind(socket_path)
        except OSError as error:
            raise RefusedError(f"{socket_path}: cannot listen there ({error.strerror})") from error
        stack.callback(socket_path.unlink, missing_ok=True)
        stack.callback(listener.close)
        daemon.mount()
        return trio.run(daemon.serve, listener, on_ready)


@contextlib.contextmanager
def _long_lived_objects() -> Iterator[None]:
    """What is built here lives as long as the daemon: the garbage collector looks at it neither now, while it
    grows, nor ever after. For 60,000 segments each of its full rounds would stop the loop for some 40 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def check_mountpoint(config: Config) -> None:
    """Refuse anything but an absent, empty or guarded folder; clear away one dead mount of ours.

    Raises RefusedError.
    """
    path = config.mountpoint
    _demand_fuse_device()
    if _is_ours(mountinfo.find_mount(path)):
        answer = probe_mount(path, PROBE_TIMEOUT_S)
        if answer.ok:
            raise RefusedError(f"{path}: a commitlogfs is mounted here already: see `commitlogfs status`")
        if not answer.dead:
            raise RefusedError(
                f"{path}: a commitlogfs is mounted here and may come back ({answer.reason}): "
                "end its daemon, or unmount it"
            )
        log_event(log, logging.WARNING, "dead_mount_found", path=path)
        unmount(path)
    try:
        bare = guard.check_bare(path)
        if bare.state not in (BareState.ABSENT, BareState.EMPTY, BareState.GUARDED):
            raise RefusedError(bare.message)
        mounting.demand_separate(config)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be looked at ({error.strerror}): check the path") from error


def _is_ours(entry: mountinfo.MountEntry | None) -> bool:
    return entry is not None and mountinfo.is_commitlogfs(entry)


def warn_of_time_limits(timeouts: dict[str, int | None]) -> None:
    """A mount lives with a limit as long as nothing takes that long, so it is not refused."""
    limits = describe_limits(timeouts)
    if limits:
        text = "a request that waits longer, for a disk or a daemon, aborts the mount: see `commitlogfs doctor`"
        log_event(log, logging.WARNING, "request_timeout", limits=limits, text=text)


def _demand_fuse_device() -> None:
    """Raises RefusedError where no filesystem can be served at all."""
    try:
        fd = os.open(_FUSE_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        reason = error.strerror
    else:
        with os.fdopen(fd, "rb", buffering=0):
            if fuse_device.is_fuse_device(fd):
                return
        reason = "not the FUSE device"
    raise RefusedError(
        f"{_FUSE_DEVICE}: {reason}: load the module (modprobe fuse), or give the device to this user or container"
    )


def _open(config: Config, kept: Kept | None) -> Pool:
    """For a takeover, the kernel itself has the newest segment open; and what can still be served is served,
    because a broker waits for it."""
    takes_over = kept is not None
    opened = frozenset() if kept is None else opened_files(kept)
    with ExitStack() as stack:
        try:
            size = mounting.configured_segment_size(config)
            pool = open_pool(mounting.disk_specs(config), size, check_in_use=not takes_over, opened=opened)
            stack.callback(pool.close)
            demand_mountable(pool, OnMissing.DEGRADED if takes_over else mounting.on_missing(config))
        except PoolRefusedError as error:
            raise mounting.refusal(error, config.name) from error
        except PoolError as error:
            raise RefusedError(f"{config.name}: not mounted: {error}") from error
        stack.pop_all()
    return pool


def _tell_findings(pool: Pool) -> None:
    levels = {Severity.NOTE: logging.INFO, Severity.WARNING: logging.WARNING}
    for finding in pool.findings:
        level = levels.get(finding.severity, logging.ERROR)
        log_event(log, level, "finding", code=finding.code.value, disk=finding.disk or None, text=str(finding))


def _tell_tidied(swept: list[str], reserved: list[str]) -> None:
    for line in swept:
        log_event(log, logging.INFO, "swept", text=line)
    for line in reserved:
        log_event(log, logging.INFO, "reserved", text=line)


def _tidy_after_takeover(pool: Pool) -> None:
    """What a fresh mount does before it serves: here somebody is waiting, and a disk may hang."""
    _tell_tidied(finish_renames(pool), reserve_newest(pool))


def _hold_name(name: str) -> int:
    """The name's open lock file, held until it is closed. Raises RefusedError if another daemon has it."""
    runtime.ensure_runtime_folder()
    path = runtime.lock_path(name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RefusedError(f"{path}: cannot be made ({error.strerror})") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RefusedError(f"{name}: its daemon is running already: see `commitlogfs status {name}`") from None
    return fd


def _refusal_in(group: ExceptionGroup[Exception]) -> RefusedError | None:
    """What a nursery has wrapped."""
    found: BaseException | None = group.subgroup(RefusedError)
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, RefusedError) else None


class _Daemon:
    """The objects of one mount, wired together."""

    def __init__(self, config: Config, pool: Pool, kept: Kept | None, sight: Sight | None) -> None:
        self._config = config
        self._pool = pool
        self._kept = kept
        self._sight = sight
        self._session: Session | None = None
        self._restarting = trio.Lock()
        self._steps_back = False
        """A successor is wanted; once nothing else can come between, this is `handing over`."""
        self._handing_over = False
        self._metrics = Metrics()
        self._commitlog = CommitLog(pool, POLICIES[config.placement])
        if kept is not None:
            for file in find_retired(pool):
                self._commitlog.note_found_retired(file)
        self._metrics.registry.register(LogCollector(self._commitlog, config.name))
        contents = ControlContents(status=self._status_text, metrics=self._metrics_text)
        self._operations = CommitLogOperations(
            self._commitlog,
            config.retention,
            contents,
            self._metrics,
            refuse_reads_when_full=config.refuse_reads_when_full,
        )
        self._metrics.registry.register(MountCollector(self._operations.backing, config.name))
        self._report = StatusReport(config, self._operations)
        self._failure: RefusedError | None = None
        self._is_kept = False
        self._keeper = KeeperWatch()
        self._names_held: list[int] = []
        self._device: int | None = None
        """Of the mount, as mountinfo shows it."""

    def mount(self) -> None:
        """Mount, or take over what was kept. Raises RefusedError."""
        config = self._config
        wanted = Passthrough(config.passthrough)
        options = ConnectionOptions(config.mountpoint, config.name, config.allow_other, wanted)
        try:
            self._session = connection.mount(self._operations, options, self._kept)
        except KeptStateError as error:
            raise RefusedError(
                f"{config.mountpoint}: the mount is not taken over: {error}: it goes on with the version that it "
                "was mounted by, or unmount it"
            ) from error
        except RuntimeError as error:
            raise RefusedError(
                f"{config.mountpoint}: cannot be mounted ({error}): is /dev/fuse there, and may this user "
                "mount? `commitlogfs doctor` tells"
            ) from error
        if self._sight is not None:
            self._device = self._sight.device
        else:
            entry = mountinfo.find_mount(config.mountpoint)
            self._device = None if entry is None else entry.device
        if wanted is Passthrough.REQUIRED and self._kept is None and self._session.not_passed_through:
            reasons = "; ".join(self._session.not_passed_through)
            self._failure = RefusedError(f'{config.mountpoint}: passthrough = "required", but {reasons}')
            return
        if self._kept is None:
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
            self._is_kept = (kept or session.taken_over) and not session.why_mortal
            if not self._is_kept:
                log_event(log, logging.WARNING, "mortal", reason=self._why_mortal())
                # To kill this process for being slow would end the mount for good.
                notify.watch_no_longer()

    async def serve(self, listener: socket.socket, on_ready: Callable[[], None]) -> ExitCode:
        """OK once unmounted, HANDED_OVER after `restart`, FINDINGS when somebody has aborted the connection. Raises
        RefusedError if it does not come to answer."""
        verbs: dict[str, control.Answer] = {
            "status": self._answer_status,
            "segments": self._answer_segments,
            "locate": self._answer_locate,
            "metrics": self._answer_metrics,
            "restart": self._answer_restart,
            "retention": self._answer_retention,
        }
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_signals)
                nursery.start_soon(control.serve, listener, verbs, self._hold_name_anew)
                nursery.start_soon(self._announce, on_ready)
                await connection.serve(self._operations)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise _refusal_in(group) or group from None
        finally:
            if not self._handing_over:
                notify.stopping()
            connection.close(self._operations)
        if self._handing_over:
            log_event(log, logging.INFO, "handed_over", path=self._config.mountpoint)
            return ExitCode.HANDED_OVER
        aborted = self._is_attached()
        level, event = (logging.ERROR, "connection_aborted") if aborted else (logging.INFO, "unmounted")
        log_event(log, level, event, path=self._config.mountpoint)
        with contextlib.suppress(OSError):
            for name in STORED:
                descriptor_store.remove(name)
        if self._failure is not None:
            raise self._failure
        return ExitCode.FINDINGS if aborted else ExitCode.OK

    def _hold_name_anew(self) -> None:
        """The lock file has gone with its folder: another one, held as long as this process lives."""
        try:
            self._names_held.append(_hold_name(self._config.name))
            runtime.record_mountpoint(self._names_held[-1], self._config.mountpoint)
        except (RefusedError, OSError) as error:
            log_event(log, logging.WARNING, "name_not_held", reason=str(error))

    def _is_attached(self) -> bool:
        """Whether the mount is still to be seen somewhere; asked of /proc alone."""
        return any(entry.device == self._device for entry in mountinfo.read_mounts())

    async def _announce(self, on_ready: Callable[[], None]) -> None:
        """READY only when the mount answers, tried from a child process; then STATUS= now and then."""
        path = self._config.mountpoint
        if self._failure is None and (self._kept is None or self._is_in_sight()):
            result = await trio.to_thread.run_sync(probe_mount, path, PROBE_TIMEOUT_S)
            if not result.ok:
                if self._kept is not None:
                    # The mount stays: whoever watches over this process sees that it does not get ready.
                    raise RefusedError(f"{path}: taken over, but it does not answer ({result.reason})")
                self._failure = RefusedError(
                    f"{path}: mounted, but it does not answer ({result.reason}): unmounted again"
                )
        if self._failure is not None:
            await self._unmount()
            return
        log_event(log, logging.INFO, "ready", path=path, segments=len(self._commitlog.catalog), pid=os.getpid())
        notify.ready()
        on_ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_status)
            nursery.start_soon(self._feed_watchdog)
            if self._kept is not None:
                in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
                nursery.start_soon(in_thread, _tidy_after_takeover, self._pool)
            if self._session is not None:
                nursery.start_soon(self._keeper.run, self._session.descriptors())

    async def _feed_watchdog(self) -> None:
        """Only the mount itself proves that it works: a child process looks through it."""
        interval_s = notify.watchdog_interval_s()
        if interval_s is None:
            return
        while True:
            beat = trio.current_time() + interval_s / WATCHDOG_BEATS
            if self._is_in_sight():
                result = await trio.to_thread.run_sync(probe_mount, self._config.mountpoint, interval_s)
                if result.ok:
                    notify.watchdog()
                else:
                    log_event(log, logging.ERROR, "probe_failed", reason=result.reason)
            else:
                log_event(log, logging.WARNING, "out_of_sight", path=self._config.mountpoint)
                notify.watchdog()
            await trio.sleep_until(beat)

    def _is_in_sight(self) -> bool:
        """Not after `umount -l`, nor beneath another mount: there is nothing to look at then, but whoever has files
        open is served until the last is closed."""
        entry = mountinfo.find_mount(self._config.mountpoint)
        return entry is not None and entry.device == self._device

    async def _tell_status(self) -> None:
        while True:
            try:
                notify.status(one_line(await self._compose()))
            except Exception as error:
                # A mistake in a report must not end the service.
                log_event(log, logging.ERROR, "status_failed", exc_info=error)
            await trio.sleep(STATUS_INTERVAL_S)

    async def _watch_signals(self) -> None:
        """A stop is a plain unmount: the loop ends by itself. A mount in use stays, with a line saying why."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                log_event(log, logging.INFO, "stop_requested", signal=signal.Signals(number).name)
                await self._unmount()

    async def _unmount(self) -> None:
        try:
            if not self._is_in_sight():
                raise RefusedError(f"{self._config.mountpoint}: not to be seen there, so it is not unmounted")
            await trio.to_thread.run_sync(unmount, self._config.mountpoint)
        except (UserError, OSError) as error:
            log_event(log, logging.ERROR, "stop_refused", reason=str(error))

    async def _status_text(self) -> bytes:
        return to_json(await self._compose())

    async def _compose(self) -> dict[str, Any]:
        document = await self._report.compose()
        document["daemon"]["state_lost"] = self._operations.backing.state_lost
        document["daemon"]["survives"] = self._survives
        document["daemon"]["mortal_reason"] = "" if self._survives else self._why_mortal()
        return document

    @property
    def _survives(self) -> bool:
        return self._is_kept and not self._keeper.is_alone

    def _why_mortal(self) -> str:
        reason = self._session.why_mortal if self._session is not None else ""
        if self._is_kept and not reason:
            return "its keeper has died, and the next one has not been started yet: see the daemon's log"
        return reason or "no keeper and no service manager keeps the descriptors of the mount"

    async def _metrics_text(self) -> bytes:
        await self._operations.statfs_figures()
        return self._metrics.render()

    async def _answer_status(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._compose()

    async def _answer_segments(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": self._config.name,
            "segment_size": self._commitlog.segment_size,
            "missing_disks": list(self._commitlog.missing),
            "disks": [{"number": disk.number, "path": disk.path} for disk in self._commitlog.disks.values()],
            "segments": [[segment.base_offset, segment.disk] for segment in self._commitlog.listed()],
        }

    async def _answer_locate(self, request: dict[str, Any]) -> dict[str, Any]:
        location = locate(self._commitlog, parse_target(str(request.get("target", ""))))
        segment = self._commitlog.catalog.find(location.offset)
        if location.present and segment is not None:
            with contextlib.suppress(OSError):  # a disk that hangs or fails must not keep back the answer
                state = await self._operations.segment_state(segment, STATE_TIMEOUT_S)
                location = dataclasses.replace(location, state=state.value)
        return dataclasses.asdict(location)

    async def _answer_retention(self, request: dict[str, Any]) -> dict[str, Any]:
        retention = await self._report.retention()
        foreseen = foresee(self._operations.retention, self._commitlog)
        return {"name": self._config.name, "retention": retention, "would_remove": foreseen}

    async def _answer_restart(self, request: dict[str, Any]) -> dict[str, Any]:
        """Step back for a successor, which whoever keeps the descriptors starts."""
        if not self._survives:
            return {"refused": self._why_mortal()}
        async with self._restarting:
            if not self._steps_back:
                loaded = await trio.to_thread.run_sync(successor.prepare)
                if loaded is False and not request.get("force"):
                    return {"refused": "the program as it is installed now does not start: see the daemon's log"}
                self._steps_back = True
                trio.lowlevel.spawn_system_task(self._hand_over)
        return {"pid": os.getpid()}

    async def _hand_over(self) -> None:
        """Requests in hand are answered; those that a hung disk holds are sent again to the successor."""
        log_event(log, logging.INFO, "restart_requested")
        await trio.sleep(ANSWER_TIME_S)
        if not self._survives:
            log_event(log, logging.ERROR, "restart_given_up", reason=self._why_mortal())
            self._steps_back = False
            return
        self._handing_over = True
        connection.step_back()
        await trio.sleep(HAND_OVER_TIMEOUT_S)
        log_event(log, logging.WARNING, "handed_over_with_requests", path=self._config.mountpoint)
        os._exit(ExitCode.HANDED_OVER)

    async def _answer_metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"text": (await self._metrics_text()).decode()}
