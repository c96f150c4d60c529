"""Directory listings: complete, or they fail as a whole.

Opening the directory refreshes the attributes of every segment, one system call batch per disk; the listing
itself is answered from the catalog, so a slow disk can neither cut it short nor stall it. The cookie is the
base offset just listed plus one: no state is kept between requests.
"""

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, ReaddirToken

from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.files import attrs
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.events import log_event
from commitlogfs.store.files.attributes import PackedAttributes, size_of, stat_changes
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import format_segment_name

log = logging.getLogger(__name__)

DEADLINE_S = 1.0

Reply = Callable[[ReaddirToken, bytes, EntryAttributes, int], bool]
readdir_reply = cast("Reply", pyfuse3.readdir_reply)
"""Under a type that spares a call of FileNameT() for each of 60,000 names. False: there is no room left."""


class Listing:
    def __init__(
        self,
        commitlog: CommitLog,
        threads: DiskThreads,
        observer: Observer,
        cut: Callable[[Segment], Awaitable[None]],
    ) -> None:
        """`cut` puts the size of a segment right that was written past its end: it belongs into the listing."""
        self._commitlog = commitlog
        self._cut = cut
        size = commitlog.segment_size
        self._too_long = [segment for segment in commitlog.catalog if segment.size > size]
        """As a former daemon has left them, and as refresh finds them."""
        self._threads = threads
        self._observer = observer

    async def refresh(self) -> None:
        """Look at every segment on every disk at once. What a disk does not answer stays as last known."""
        async with trio.open_nursery() as nursery:
            for number in self._commitlog.disks:
                nursery.start_soon(self._refresh_disk, number)
        too_long, self._too_long = self._too_long, []
        for segment in too_long:
            await self._cut(segment)

    def reply(self, token: ReaddirToken, cookie: int) -> None:
        """Answer one request with as many of the listed segments that follow `cookie` as fit; 0 begins."""
        entry = attrs.blank_entry()  # each reply copies it
        segment_size = self._commitlog.segment_size
        for segment in self._commitlog.catalog.after(cookie - 1):
            if attrs.fill_entry(entry, segment) != segment_size:
                continue  # not listed
            base = segment.base_offset
            if not readdir_reply(token, format_segment_name(base), entry, base + 1):
                break

    async def _refresh_disk(self, number: DiskNumber) -> None:
        disk = self._commitlog.disks[number]
        dirfd, segments = disk.dirfd, self._commitlog.catalog.on_disk(number)
        known = [segment.attributes for segment in segments]
        bases = [segment.base_offset for segment in segments]

        def look() -> list[tuple[int, PackedAttributes | int]]:
            return stat_changes(dirfd, [format_segment_name(base) for base in bases], known)

        try:
            changes = await self._threads.run_within(number, DEADLINE_S, look)
        except TimeoutError:
            self._observer.disk_error(disk.path, "stat", "ETIMEDOUT")
            return
        for index, outcome in changes:
            if isinstance(outcome, int):
                self._observer.disk_error(disk.path, "stat", errno.errorcode.get(outcome, "EIO"))
            elif size_of(outcome) > self._commitlog.segment_size:
                self._too_long.append(segments[index])
            elif not self._commitlog.record_look(segments[index], known[index], outcome):
                self._observer.disk_error(disk.path, "stat", "ESTALE")
                log_event(log, logging.ERROR, "file_replaced", disk=disk.path, segment=segments[index].name)
