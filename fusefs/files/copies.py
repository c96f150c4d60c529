"""Copies into the log, as rsync and cp make them: a finished temporary gets its segment's name."""

from collections.abc import Mapping

from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.disk_files import DiskFiles
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.pool.commitlog import CommitLog


class Copies:
    """Publishes finished copies."""

    def __init__(
        self,
        commitlog: CommitLog,
        disks: Mapping[DiskNumber, DiskFiles],
        changes: NameChanges,
        handles: Handles,
        attributes: BackingAttributes,
    ) -> None:
        self._commitlog = commitlog
        self._disks = disks
        self._changes = changes
        self._handles = handles
        self._attributes = attributes

    async def publish(self, old_name: bytes, new_name: bytes) -> None:
        """Rename a finished temporary onto its segment's name; durable when it returns.

        Raises as CommitLog.plan_publish_copy, DiskError; DiskFailedError after RequestTiming.rename_s, when the
        rename continues by itself.
        """
        async with self._changes.lock:
            file = self._commitlog.find_name(old_name)
            if file is not None:
                self._changes.require_at_rest(self._disks[file.disk], old_name, new_name)
                await self._attributes.refresh(file)
            await self._changes.settle(new_name)
            file = self._commitlog.plan_publish_copy(old_name, new_name)
            disk = self._disks[file.disk]

            async def work() -> None:
                async with self._handles.first_opens_held(file):
                    try:
                        attributes = await disk.rename_copy(old_name, new_name, file.ino)
                    except BaseException:
                        self._commitlog.names.record_uncertain(new_name, disk.number)
                        raise
                    self._commitlog.record_copy_published(file, new_name, attributes)
                self._changes.record(disk.number)

            deadline_s = self._commitlog.timing.requests.rename_s
            await self._changes.finish(disk, "rename", (old_name, new_name), work, deadline_s)
