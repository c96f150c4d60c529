"""What follows a change of names: each disk's record of the newest segment, written only where it changes."""

import os

import trio
from support.pooled import open_parts

from commitlogfs.fusefs.background import BackgroundSync
from commitlogfs.store import identity, layout
from commitlogfs.store.allocate import Owner
from commitlogfs.store.segment import format_segment_name

SIZE = 4096
OWNER = Owner(os.geteuid(), os.getegid(), 0o644)


def names(count):
    return [format_segment_name(index * SIZE) for index in range(count)]


def records(parts):
    return [os.getxattr(folder, layout.XATTR_NEWEST) for folder in parts.folders]


def test_every_disk_records_the_newest_segment(workdir):
    async def main():
        for name in names(4):
            await parts.namespace.create(name, OWNER)
            background.request(parts.commitlog.catalog.last.disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(3 * SIZE)] * 3

    with open_parts(workdir) as parts:
        background = BackgroundSync(parts.commitlog, parts.threads)
        trio.run(main)


def test_a_removed_old_segment_touches_its_own_disk_only(workdir):
    async def main():
        for name in names(4):
            await parts.namespace.create(name, OWNER)
        background.request(parts.commitlog.catalog.last.disk)
        await background.drain()
        mark = b"12345"
        for folder in parts.folders:
            os.setxattr(folder, layout.XATTR_NEWEST, mark)
        disk = parts.commitlog.catalog.first.disk
        await parts.namespace.remove(names(1)[0])
        background.request(disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(3 * SIZE), mark, mark]

        # The newest one removed: every record changes.
        await parts.namespace.remove(names(4)[3])
        background.request(disk)
        await background.drain()
        assert records(parts) == [identity.format_newest(2 * SIZE)] * 3

    with open_parts(workdir) as parts:
        background = BackgroundSync(parts.commitlog, parts.threads)
        trio.run(main)
