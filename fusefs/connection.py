"""The FUSE connection: options, mount, request loop, close."""

import logging
import os
from dataclasses import dataclass

import pyfuse3
import trio

from commitlogfs.fusefs.operations import CommitLogOperations

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


def mount(operations: CommitLogOperations, options: ConnectionOptions) -> None:
    """Mount; requests wait until `serve` runs. Raises RuntimeError where the system refuses."""
    pyfuse3.init(operations, os.path.abspath(options.mountpoint), mount_options(options))


async def serve(operations: CommitLogOperations) -> None:
    """Answer requests until the filesystem is unmounted; then finish what was promised."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operations.background.run)
        await pyfuse3.main(max_tasks=MAX_TASKS)
        await operations.background.drain()
        nursery.cancel_scope.cancel()


def close(operations: CommitLogOperations) -> None:
    """After `serve` has returned: the mount is gone already, never unmount it from here (libfuse would do so
    lazily, under a running broker)."""
    operations.handles.close()
    pyfuse3.close(unmount=False)
