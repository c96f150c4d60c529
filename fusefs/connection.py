"""The FUSE connection: options, mount or takeover, request loop, close."""

import contextlib
import logging
from dataclasses import dataclass

import pyfuse3
import trio

from commitlogfs.fusefs.disks.disk_checks import SUCCESSOR_DELAY_S
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

TRY_DISK_DEADLINE_S = 5.0


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
    backing, commitlog = operations.backing, operations.commitlog
    backing.begin(chosen.table, extension.module, chosen.why_plain)
    refused = {} if chosen.taken_over else _refusing_disks(operations)
    if chosen.why_plain:
        log_event(log, logging.WARNING, "passthrough_off", reason=chosen.why_plain)
    if chosen.why_no_takeover:
        log_event(log, logging.WARNING, "takeover_impossible", reason=chosen.why_no_takeover)
    backing.state_lost = chosen.state_lost or chosen.table.epoch > 0
    incarnations = Incarnations(commitlog.disks.values(), backing)
    if chosen.taken_over:
        freed = 0
        if chosen.state_lost:
            backing.resume_without_state()
        else:
            served = (file for file in commitlog.files() if file.disk not in incarnations.renewed)
            freed = backing.resume(served, commitlog.disks.keys())
            operations.suspect_growth(commitlog.files())
            operations.disk_memory.restore(incarnations.returned)
        log_event(log, logging.INFO, "taken_over", state_lost=chosen.state_lost, ids_given_back=freed)
        assert extension.module is not None
        extension.module.resend()
        chosen.table.record_takeover()
        operations.invalidate_removed()
        report_returned(commitlog.disks.values(), incarnations.returned)
    incarnations.record()
    chosen.not_passed_through = [chosen.why_plain] if chosen.why_plain else []
    chosen.not_passed_through += [f"{path}: {reason}" for path, reason in refused.items()]
    return chosen


def _refusing_disks(operations: CommitLogOperations) -> dict[str, str]:
    """Whose files the kernel cannot serve by itself, by path, with the reason."""
    refused = {}
    for disk in _writable_disks(operations):
        reason = operations.backing.probe_disk(disk)
        operations.backing.record_disk(disk, reason)
        if reason:
            refused[disk.path] = reason
    return refused


def _writable_disks(operations: CommitLogOperations) -> list[Disk]:
    return [disk for disk in operations.commitlog.disks.values() if disk.state is DiskState.RW]


async def serve(operations: CommitLogOperations) -> None:
    """Answer requests until the filesystem is unmounted or `stop_serving`; then finish what was promised."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operations.background.run)
        nursery.start_soon(operations.freeing.run)
        nursery.start_soon(operations.retention.run)
        nursery.start_soon(operations.invalidation.run)
        nursery.start_soon(operations.disk_memory.run)
        nursery.start_soon(operations.member_records.run)
        nursery.start_soon(operations.sources.run)
        nursery.start_soon(operations.drains.run, operations.rebalancing.step)
        nursery.start_soon(operations.restores.run)
        nursery.start_soon(operations.recorded.find)
        nursery.start_soon(operations.checksums.run)
        nursery.start_soon(operations.lost_writes.run, operations.handles.may_be_open)
        nursery.start_soon(operations.verdicts.run)
        nursery.start_soon(operations.scrub.run)
        nursery.start_soon(operations.disk_checks.run, SUCCESSOR_DELAY_S if operations.backing.takeovers else 0.0)
        nursery.start_soon(_give_back_unknown, operations)
        if operations.backing.takeovers:
            for disk in _writable_disks(operations):
                if not disk.is_unresponsive:  # the thread would hold this daemon as long as the disk hangs
                    nursery.start_soon(_try_disk, operations, disk)
        await _answer_requests()
        await operations.background.drain()
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await operations.sources.finish()


async def _answer_requests() -> None:
    try:
        await pyfuse3.main(max_tasks=MAX_TASKS)
    except* ConnectionAbortedError:
        # The connection ended as a request was being read, often the last close of a file; at any other time
        # fuse_dev_do_read() gives ENODEV, which libfuse takes for the end by itself.
        log.debug("the connection ended during a read")


async def _try_disk(operations: CommitLogOperations, disk: Disk) -> None:
    """After a takeover, when requests are served: a disk that hangs must not hold up the others."""
    with contextlib.suppress(TimeoutError):
        reason = await operations.threads.run_within(
            disk.number, TRY_DISK_DEADLINE_S, lambda: operations.backing.probe_disk(disk)
        )
        operations.backing.record_disk(disk, reason)


async def _give_back_unknown(operations: CommitLogOperations) -> None:
    freed = await operations.backing.give_back_unknown()
    if freed:
        log_event(log, logging.INFO, "unknown_ids_given_back", count=freed)


def stop_serving() -> None:
    """Take no further requests, so that another process can: `serve` returns when those in hand are answered."""
    pyfuse3.terminate()


def close(operations: CommitLogOperations) -> None:
    """After `serve` has returned: the mount is gone already, or goes on without this process. Never unmount it from
    here (libfuse would do so lazily, under a running broker)."""
    operations.handles.close()
    operations.backing.close()
    pyfuse3.close(unmount=False)
