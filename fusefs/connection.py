"""The FUSE connection: options, mount or takeover, request loop, close."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pyfuse3
import trio

from commitlogfs.fusefs.assembly import Parts
from commitlogfs.fusefs.disks.incarnations import Incarnations, report_returned
from commitlogfs.fusefs.kernel import extension, session
from commitlogfs.fusefs.kernel.inherited_session import InheritedSession
from commitlogfs.fusefs.kernel.session import Passthrough, Session
from commitlogfs.fusefs.operations import CommitLogOperations
from commitlogfs.store.disks.disk import Disk, DiskState
from commitlogfs.store.events import log_event

log = logging.getLogger(__name__)

FSTYPE = "fuse.commitlogfs"
MAX_TASKS = 1024
"""Requests under way at once. pyfuse3's default of 99 would let one hung disk stop the whole mount."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    mountpoint: str
    name: str
    """Shown as the mount's source."""
    allow_other: bool
    passthrough: Passthrough = Passthrough.AUTO


def mount_options(options: ConnectionOptions) -> set[str]:
    """default_permissions always: the kernel checks every access by mode bits. nosuid, nodev, noexec are
    given explicitly, because root's mount(2) adds none of them."""
    chosen = {
        "default_permissions",
        "nosuid",
        "nodev",
        "noexec",
        "noatime",
        f"fsname={options.name}",
        "subtype=commitlogfs",
    }
    if options.allow_other:
        chosen.add("allow_other")
    return chosen


def mount(
    operations: CommitLogOperations, options: ConnectionOptions, inherited: InheritedSession | None
) -> Session:
    """Mount, or take an inherited session over; requests wait until `serve` runs.

    Raises RuntimeError where the system refuses, InheritedStateError if the session cannot be taken over (it stays
    as it is).
    """
    chosen = session.begin(operations, options.mountpoint, mount_options(options), options.passthrough, inherited)
    backing = operations.parts.backing
    backing.begin(chosen.table, extension.module, chosen.why_plain)
    refused = {} if chosen.taken_over else _refusing_disks(operations.parts)
    if chosen.why_plain:
        log_event(log, logging.WARNING, "passthrough_off", reason=chosen.why_plain)
    if chosen.why_no_takeover:
        log_event(log, logging.WARNING, "takeover_impossible", reason=chosen.why_no_takeover)
    backing.state_lost = chosen.state_lost or chosen.table.epoch > 0
    if chosen.taken_over:
        assert extension.module is not None
        take_up(operations, state_lost=chosen.state_lost, resend=extension.module.resend)
    else:
        begin(operations)
    chosen.not_passed_through = [chosen.why_plain] if chosen.why_plain else []
    chosen.not_passed_through += [f"{path}: {reason}" for path, reason in refused.items()]
    return chosen


def begin(operations: CommitLogOperations) -> None:
    """A new mount: nobody has served it before."""
    Incarnations(operations.commitlog.disks.values(), operations.parts.backing).record()


def take_up(operations: CommitLogOperations, *, state_lost: bool, resend: Callable[[], None]) -> None:
    """Continue from what the former daemon of this mount has left in the backing table, which is lost or not.
    `resend` makes the kernel send the requests again that were not answered."""
    parts, commitlog = operations.parts, operations.commitlog
    incarnations = Incarnations(commitlog.disks.values(), parts.backing)
    freed = 0
    if state_lost:
        parts.backing.resume_without_state()
    else:
        served = (file for file in commitlog.files() if file.disk not in incarnations.renewed)
        freed = parts.backing.resume(served, commitlog.disks.keys())
        operations.suspect_growth(commitlog.files())
        parts.disk_memory.restore(incarnations.returned)
    log_event(log, logging.INFO, "taken_over", state_lost=state_lost, ids_given_back=freed)
    resend()
    parts.backing.record_takeover()
    operations.invalidate_changed()
    report_returned(commitlog.disks.values(), incarnations.returned)
    incarnations.record()


def _refusing_disks(parts: Parts) -> dict[str, str]:
    """Whose files the kernel cannot serve by itself, by path, with the reason."""
    refused = {}
    for disk in _writable_disks(parts):
        reason = parts.backing.probe_disk(disk)
        parts.backing.record_disk(disk, reason)
        if reason:
            refused[disk.path] = reason
    return refused


def _writable_disks(parts: Parts) -> list[Disk]:
    return [disk for disk in parts.commitlog.disks.values() if disk.state is DiskState.RW]


async def serve(operations: CommitLogOperations) -> None:
    """Answer requests until the filesystem is unmounted or `stop_serving`; then finish what was promised."""
    parts = operations.parts
    async with trio.open_nursery() as nursery:
        parts.start(nursery, is_successor=parts.backing.takeovers > 0)
        nursery.start_soon(_give_back_unknown, parts)
        if parts.backing.takeovers:
            for disk in _writable_disks(parts):
                if not disk.is_unresponsive:  # the thread would hold this daemon as long as the disk hangs
                    nursery.start_soon(_try_disk, parts, disk)
        await _answer_requests()
        await parts.finish()
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await parts.sources.finish()


async def _answer_requests() -> None:
    try:
        await pyfuse3.main(max_tasks=MAX_TASKS)
    except* ConnectionAbortedError:
        # The connection ended as a request was being read, often the last close of a file; at any other time
        # fuse_dev_do_read() gives ENODEV, which libfuse takes for the end by itself.
        log.debug("the connection ended during a read")


async def _try_disk(parts: Parts, disk: Disk) -> None:
    """After a takeover, when requests are served: a disk that hangs must not hold up the others."""
    with contextlib.suppress(TimeoutError):
        patience_s = parts.commitlog.timing.requests.try_disk_s
        reason = await parts.threads.run_within(disk.number, patience_s, lambda: parts.backing.probe_disk(disk))
        parts.backing.record_disk(disk, reason)


async def _give_back_unknown(parts: Parts) -> None:
    freed = await parts.backing.give_back_unknown()
    if freed:
        log_event(log, logging.INFO, "unknown_ids_given_back", count=freed)


def stop_serving() -> None:
    """Take no further requests, so that another process can: `serve` returns when those in hand are answered."""
    pyfuse3.terminate()


def close(operations: CommitLogOperations) -> None:
    """After `serve` has returned: the mount is gone already, or goes on without this process. Never unmount it from
    here (libfuse would do so lazily, under a running broker)."""
    operations.parts.close()
    pyfuse3.close(unmount=False)
