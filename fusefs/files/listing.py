"""Directory listings: complete, or they fail as a whole.

Opening the directory refreshes the attributes of every segment, all disks at once, and does not wait for a disk
that does not answer. The listing itself is answered from the catalog, so a slow disk can neither cut it short nor
stall it. The cookie is the base offset just listed plus one: no state is kept between requests.
"""

from collections.abc import Callable, Mapping
from typing import cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, ReaddirToken

from commitlogfs.fusefs.files import attrs
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import PackedAttributes, size_of
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.segment import format_segment_name

Reply = Callable[[ReaddirToken, bytes, EntryAttributes, int], bool]
readdir_reply = cast("Reply", pyfuse3.readdir_reply)
"""With a type that saves a call of FileNameT() for each of 60,000 names. It returns False when the reply is
full."""


class Listing:
    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        attributes: BackingAttributes,
    ) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._attributes = attributes
        size = commitlog.segment_size
        self._too_long = [segment for segment in commitlog.catalog if segment.size > size]
        """Segments that were written past their end, as a former daemon has left them and as refresh finds them.
        They belong into the listing, so they are cut to their size first."""

    async def refresh(self) -> None:
        """Read the attributes of every segment, all disks at once. What a disk does not answer stays as last
        known."""
        async with trio.open_nursery() as nursery:
            for disk in self._disks.values():
                nursery.start_soon(self._refresh_disk, disk)
        too_long, self._too_long = self._too_long, []
        async with trio.open_nursery() as nursery:
            for segment in too_long:
                nursery.start_soon(self._attributes.refresh, segment)
        size = self._commitlog.segment_size
        self._too_long += [segment for segment in too_long if segment.size > size]  # their disks do not answer

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

    async def _refresh_disk(self, disk: DiskFiles) -> None:
        segments = self._commitlog.catalog.on_disk(disk.number)
        known = [segment.attributes for segment in segments]

        def record(index: int, seen: PackedAttributes) -> None:
            if size_of(seen) > self._commitlog.segment_size:
                self._too_long.append(segments[index])
            else:
                self._attributes.record(segments[index], known[index], seen)

        await disk.stat_segments([segment.base_offset for segment in segments], known, record)
