"""Life of the daemon: everything is checked before anything is mounted, and undone in reverse.

step                                     undone by
0 known to its successors (flock)        closing that file
1 control socket's name locked (flock)   closing the lock file
2 pool opened, locked, checked           closing the disks
3 bare mountpoint guarded                nothing: the guard stays, that is its purpose
4 mounted                                a plain unmount; if the mount is in use, the daemon stays
5 descriptors kept for a successor       their removal, once unmounted
6 control socket, loop, probe, READY     end of the loop

A daemon that is started with such descriptors takes the mount over instead. It skips step 3 and does not touch the
mountpoint, where no daemon answers yet. If it fails, the mount stays. If a disk still holds a thread of a former
daemon, it serves the other disks.
"""

import contextlib
import dataclasses
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import trio

from commitlogfs.console.errors import RefusedError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.config.timing import describe
from commitlogfs.mount.daemon import crash, former_daemons, takeover
from commitlogfs.mount.daemon.former_daemons import FormerDaemons
from commitlogfs.mount.daemon.served_mount import ServedMount, Sockets
from commitlogfs.mount.daemon.start_cleanup import clean_up
from commitlogfs.mount.daemon.takeover import InheritedMount
from commitlogfs.mount.keeper import options as keeper_options
from commitlogfs.mount.linux import descriptor_store
from commitlogfs.mount.linux.open_files_limit import raise_descriptor_limit
from commitlogfs.mount.linux.request_timeouts import describe_limits, read_request_timeouts
from commitlogfs.mount.location import control_socket, guard, runtime_directory
from commitlogfs.mount.location.name_lock import hold_name, release_file
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.mountpoint import check_mountpoint, is_ours
from commitlogfs.store.errors import PoolError
from commitlogfs.store.events import log_event
from commitlogfs.store.findings import Severity
from commitlogfs.store.pool.open import OnMissing, Pool, PoolRefusedError, open_pool, require_mountable
from commitlogfs.store.timing import DaemonTiming, Timing

log = logging.getLogger(__name__)


def run(config: Config, received: dict[str, int], on_ready: Callable[[], None], timing: Timing) -> ExitCode:
    """Mount, or take an inherited mount over, and serve. `received`: descriptors from the descriptor store.
    `on_ready` is called once the mount answers.

    Returns OK when the mount has been unmounted, FINDINGS when its connection was aborted, HANDED_OVER when the
    mount stays for a successor. Raises UserError before anything is mounted or taken over, and RefusedError if the
    mount does not answer.
    """
    crash.leave_stacks_and_no_core()
    changed_times = describe(timing)
    if changed_times:
        log_event(log, logging.WARNING, "times_changed", text=changed_times)
    with ExitStack() as stack:
        former = stack.enter_context(former_daemons.joined(config.name, timing.daemon))
        lock_fd = hold_name(config.name, timing.daemon.lock_s if received else 0.0, former.ends)
        stack.callback(release_file, runtime_directory.lock_path(config.name), lock_fd, config.name)
        log_event(log, logging.INFO, "limits", open_files=raise_descriptor_limit())
        inherited = takeover.find_inherited(config.mountpoint, config.name, received)
        if inherited is not None:
            config = dataclasses.replace(config, mountpoint=inherited.mountpoint)
        else:
            if received:
                with contextlib.suppress(OSError):
                    # A connection that has ended keeps its files open as long as a process has its descriptor.
                    descriptor_store.forget(received)
                if keeper_options.has_keeper() and not is_ours(config.mountpoint):
                    # A keeper starts a successor only for an existing mount: it has been unmounted since.
                    log_event(log, logging.INFO, "unmounted_meanwhile", path=config.mountpoint)
                    return ExitCode.OK
            check_mountpoint(config)
        with contextlib.suppress(OSError):  # disk full: only commands that get no answer read it
            runtime_directory.record_mountpoint(lock_fd, config.mountpoint)
        started = time.perf_counter()
        with _long_lived_objects():
            pool = _open(config, inherited, former, timing.daemon)
        stack.callback(pool.close)
        seconds = round(time.perf_counter() - started, 3)
        count = len(pool.inventory.catalog)
        log_event(log, logging.INFO, "pool_opened", disks=len(pool.disks), segments=count, seconds=seconds)
        _report_findings(pool)
        if inherited is None:
            clean_up(pool)
            owner = (pool.root.uid, pool.root.gid)
            standing = guard.raise_guard(config.mountpoint, protect=os.geteuid() == 0, owner=owner)
            log_event(log, logging.INFO, "guarded", path=config.mountpoint, protection=standing.protection.value)
        warn_of_time_limits(read_request_timeouts())
        served = ServedMount(config, pool, inherited, former, timing)
        sockets = stack.enter_context(_bound_sockets(config.name))
        served.mount()
        return trio.run(served.serve, sockets, on_ready)


@contextlib.contextmanager
def _bound_sockets(name: str) -> Iterator[Sockets]:
    """The sockets at which requests will be answered; removed at the end. Raises RefusedError."""
    control, status = runtime_directory.socket_path(name), runtime_directory.status_socket_path(name)
    group = runtime_directory.find_status_group()
    with ExitStack() as stack:
        try:
            bound = control_socket.bind(control)
            stack.callback(control.unlink, missing_ok=True)
            stack.callback(bound.close)
            for_status = control_socket.bind_status(status, group)
            stack.callback(status.unlink, missing_ok=True)
            stack.callback(for_status.close)
        except OSError as error:
            raise RefusedError(
                f"{control}: cannot bind the control socket ({error.strerror}); check owner, mode and space of "
                "its directory"
            ) from error
        yield Sockets(bound, for_status, group)


@contextlib.contextmanager
def _long_lived_objects() -> Iterator[None]:
    """Objects that are made here live as long as the daemon. The garbage collector skips them now, while they are
    made, and later: with 60,000 segments, each of its full collections would stop the loop for some 40 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def warn_of_time_limits(timeouts: dict[str, int | None]) -> None:
    """A mount works with a limit as long as no request takes that long, so it is not refused."""
    limits = describe_limits(timeouts)
    if limits:
        text = "a request that waits longer, for a disk or a daemon, aborts the mount: see `commitlogfs doctor`"
        log_event(log, logging.WARNING, "request_timeout", limits=limits, text=text)


def _open(config: Config, inherited: InheritedMount | None, former: FormerDaemons, timing: DaemonTiming) -> Pool:
    """At a takeover the kernel itself has segments open, so open files are no reason to refuse. All that can still
    be served is served, because a broker waits for it."""
    takes_over = inherited is not None
    opened = frozenset() if inherited is None else inherited.session.opened_files()
    paths = [disk.path for disk in config.disks]
    held = frozenset[str]()
    if former.ends:
        held = frozenset(former_daemons.find_held(paths, former.disks, timing.former_look_s))
    with ExitStack() as stack:
        try:
            size = configured_pool.configured_segment_size(config)
            pool = open_pool(
                configured_pool.disk_specs(config),
                size,
                lock_patience_s=timing.lock_s if takes_over else 0.0,
                check_in_use=not takes_over,
                is_mounted=takes_over,
                opened=opened,
                held=held,
                dying=former.ends,
            )
            stack.callback(pool.close)
            on_missing = OnMissing.DEGRADED if takes_over else configured_pool.on_missing(config)
            require_mountable(pool, on_missing, takes_over=takes_over)
        except PoolRefusedError as error:
            raise configured_pool.refusal(error, config.name) from error
        except PoolError as error:
            raise RefusedError(f"{config.name}: not mounted: {error}") from error
        stack.pop_all()
    return pool


def _report_findings(pool: Pool) -> None:
    levels = {Severity.NOTE: logging.INFO, Severity.WARNING: logging.WARNING}
    for finding in pool.findings:
        level = levels.get(finding.severity, logging.ERROR)
        text = f"{finding.text}; {finding.remedy}"
        log_event(log, level, "finding", code=finding.code.value, disk=finding.disk or None, text=text)
