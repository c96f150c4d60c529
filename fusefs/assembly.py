"""The parts that serve a pool, wired together. Here is the only place that knows which part needs which other one.

A part is constructed after those that it calls. Where two need each other, the later one is passed as a callback.
"""

import trio

from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.check_child import CheckChild
from commitlogfs.fusefs.disks.disk_checks import DiskChecks
from commitlogfs.fusefs.disks.disk_memory import DiskMemory
from commitlogfs.fusefs.disks.disk_places import DiskPlaces
from commitlogfs.fusefs.disks.disk_probes import DiskProbes
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.member_records import MemberRecords
from commitlogfs.fusefs.disks.reminders import Reminders
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files import xattrs
from commitlogfs.fusefs.files.attempts import AttemptsUnderWay
from commitlogfs.fusefs.files.backing_attributes import BackingAttributes
from commitlogfs.fusefs.files.copies import Copies
from commitlogfs.fusefs.files.creation import Creation
from commitlogfs.fusefs.files.disk_files import files_of_disks
from commitlogfs.fusefs.files.freeing import Freeing
from commitlogfs.fusefs.files.handles import Handles
from commitlogfs.fusefs.files.listing import Listing
from commitlogfs.fusefs.files.name_changes import NameChanges
from commitlogfs.fusefs.files.removal import Removals
from commitlogfs.fusefs.files.resizing import Resizing
from commitlogfs.fusefs.files.retention import Retention
from commitlogfs.fusefs.integrity.checksums import Checksums
from commitlogfs.fusefs.integrity.lost_writes import LostWrites
from commitlogfs.fusefs.integrity.recorded import Recorded
from commitlogfs.fusefs.integrity.scrub import Scrub
from commitlogfs.fusefs.integrity.verdicts import Verdicts
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.link import KernelLink
from commitlogfs.fusefs.kernel.observer import Observer
from commitlogfs.fusefs.moves.drains import Drains
from commitlogfs.fusefs.moves.mover import Mover
from commitlogfs.fusefs.moves.readings import Readings
from commitlogfs.fusefs.moves.rebalancing import Rebalancing
from commitlogfs.fusefs.moves.restores import Restores
from commitlogfs.fusefs.moves.salvaged import Salvaged
from commitlogfs.fusefs.moves.sources import Sources
from commitlogfs.store.pool.catalog import Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.retention.statfs import DiskShare, StatfsFigures, compose
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.segment import SegmentState
from commitlogfs.store.slowness.load import THIS_MACHINE, Machine


class Parts:
    """All parts of one open CommitLog; clock and times are the log's. Everything here runs in the event loop."""

    def __init__(
        self,
        commitlog: CommitLog,
        rules: RetentionRules,
        scrub_rules: ScrubRules,
        observer: Observer,
        kernel: KernelLink,
        *,
        threads: DiskThreads | None = None,
        child: CheckChild | None = None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        """The last three wait for the disks, or examine the machine: a simulation gives its own."""
        clock, timing = commitlog.clock, commitlog.timing
        self.commitlog = commitlog
        self.observer = observer
        self.kernel = kernel
        self.threads = DiskThreads(commitlog.disks) if threads is None else threads
        self.background = BackgroundSync(commitlog, self.threads)
        self.backing = Backing(observer)
        self.usage = UsageMonitor(commitlog, self.threads, observer)
        self.disk_memory = DiskMemory(commitlog, self.backing)
        self.member_records = MemberRecords(commitlog, self.threads)
        disks = files_of_disks(commitlog.disks.values(), self.threads, observer, clock, timing.requests)
        self.disk_files = disks
        self.to_free = Reminders(commitlog.disks)
        self.changes = NameChanges(commitlog, disks, self.background)
        self.verdicts = Verdicts(commitlog, self.threads, self.changes.is_in_flight)
        self.lost_writes = LostWrites(commitlog, self.threads, observer, self.member_records, self.verdicts)
        self.handles = Handles(
            commitlog, disks, self.threads, self.backing, self.to_free, self.lost_writes.release, kernel.holds
        )
        self.attributes = BackingAttributes(commitlog, disks, self.handles, self.backing, self.changes)
        self.listing = Listing(commitlog, disks, self.attributes)
        self.readings = Readings(commitlog, self.threads, lambda number: self.mover.is_working_on(number), machine)
        self.sources = Sources(
            commitlog,
            disks,
            self.changes,
            self.handles,
            self.verdicts,
            self.readings,
            self.to_free,
            kernel.invalidate,
        )
        self.salvaged = Salvaged(commitlog)
        self.recorded = Recorded(commitlog, self.threads, self.verdicts, self.salvaged.record_found)
        self.mover = Mover(
            commitlog,
            disks,
            self.threads,
            self.changes,
            self.handles,
            self.sources,
            self.salvaged,
            self.verdicts,
            self.lost_writes.may_lack_writes,
            kernel.invalidate,
            lambda: self.scrub,
            observer.decisions,
            machine,
        )
        self.checksums = Checksums(
            commitlog,
            self.threads,
            observer,
            self.verdicts,
            self.mover.is_working_on,
            self.sources.is_unproven,
            self.lost_writes.may_lack_writes,
            self.attributes.refresh,
            machine,
        )
        self.scrub = Scrub(
            commitlog,
            self.threads,
            observer,
            self.verdicts,
            self.mover.is_working_on,
            scrub_rules,
            machine,
        )
        self.drains = Drains(commitlog, self.mover, self.usage)
        self.rebalancing = Rebalancing(commitlog, self.drains, self.member_records)
        self.restores = Restores(commitlog, disks, self.mover, self.drains, self.verdicts)
        self.removals = Removals(
            commitlog,
            disks,
            self.changes,
            self.handles,
            self.to_free,
            kernel.invalidate,
            self.sources,
            self.member_records.record_removals,
            lambda removal, error: self.retention.record_refused(removal, error),
            lambda: self.latest_figures().shown_percent,
            observer,
        )
        self.freeing = Freeing(commitlog, disks, self.handles, self.to_free, self.sources.put_back_if_changed)
        probes = DiskProbes(commitlog, self.threads, observer, self.disk_memory.save)
        child = CheckChild(commitlog.disks.values(), timing.checks) if child is None else child
        self.disk_checks = DiskChecks(
            commitlog, child, probes, observer, self.disk_memory.save, self.threads, machine
        )
        self.disk_places = DiskPlaces(commitlog, child, self.threads)
        self.attempts = AttemptsUnderWay(commitlog)
        self.retention = Retention(
            rules,
            commitlog,
            self.changes,
            self.removals,
            self.freeing,
            self.attributes,
            self.usage,
            self.listing.refresh,
            probes,
            self.backing,
            self.verdicts.lost_writes,
            self.attempts.silent,
        )
        self.creation = Creation(
            commitlog,
            disks,
            self.changes,
            self.handles,
            self.usage,
            self.background,
            observer,
            self.attempts,
            self.retention.reclaim,
        )
        self.copies = Copies(commitlog, disks, self.changes, self.handles, self.attributes)
        self.resizing = Resizing(
            commitlog,
            disks,
            self.changes,
            self.handles,
            self.attributes,
            self.backing,
            self.usage,
            self.background,
            kernel.invalidate,
            observer.decisions,
        )

    def start(self, nursery: trio.Nursery, *, is_successor: bool) -> None:
        """Start what the parts do without a request; it runs until the nursery is cancelled."""
        nursery.start_soon(self.background.run)
        nursery.start_soon(self.freeing.run)
        nursery.start_soon(self.retention.run)
        nursery.start_soon(self.kernel.run)
        nursery.start_soon(self.disk_memory.run)
        nursery.start_soon(self.member_records.run)
        nursery.start_soon(self.sources.run)
        nursery.start_soon(self.readings.run)
        nursery.start_soon(self.drains.run, self.rebalancing.step)
        nursery.start_soon(self.restores.run)
        nursery.start_soon(self.recorded.find)
        nursery.start_soon(self.checksums.run)
        nursery.start_soon(self.lost_writes.run, self.handles.may_be_open)
        nursery.start_soon(self.verdicts.run)
        nursery.start_soon(self.scrub.run)
        checks = self.commitlog.timing.checks
        nursery.start_soon(self.disk_checks.run, checks.successor_s if is_successor else checks.first_s)

    async def finish(self) -> None:
        """At the orderly end of a daemon, while what `start` has started still runs: record what this daemon alone
        knows, as far as the disks do so soon."""
        self.disk_memory.save()  # the process may end during the wait
        with trio.move_on_after(self.commitlog.timing.verdicts.finish_s):
            await self.lost_writes.finish()
            await self.verdicts.finish()
            await self.member_records.finish()
        self.disk_memory.save()
        await self.background.drain()

    def close(self) -> None:
        """After the last request: close what is still open, but for the log itself."""
        self.handles.close()
        self.backing.close()

    # --- what concerns several of them ---------------------------------------------------------------

    async def statfs_figures(self) -> StatfsFigures:
        """The figures that statfs shows, RequestTiming.statfs_age_s old at most, but for disks that do
        not answer soon."""
        requests = self.commitlog.timing.requests
        await self.usage.refresh_soon(requests.statfs_age_s, requests.refresh_s)
        return self.latest_figures()

    def latest_figures(self) -> StatfsFigures:
        """The same, by the latest measurements."""
        shares = tuple(
            DiskShare(
                disk.present_state,
                self.commitlog.space.usage(disk.number),
                self.commitlog.space.freeable_bytes(disk.number),
                disk.thresholds,
            )
            for disk in self.commitlog.disks.values()
        )
        rules = self.retention.rules
        return compose(shares, rules.trigger, rules.mode, forced_are_open=self.retention.forced_are_open)

    async def segment_state(self, file: Segment, deadline_s: float) -> SegmentState:
        """State of a segment, by the first bytes of it and of the next two. `deadline_s` is for each of them.
        Raises OSError, StaleInodeError, DiskSilentError."""

        async def has_data(segment: Segment) -> bool:
            return await self.disk_files[segment.disk].has_data(segment.path, deadline_s)

        own = await has_data(file)
        successor = False
        for segment in xattrs.successors(self.commitlog, file):
            successor = successor or await has_data(segment)
        return xattrs.state_of(file, own, successor)
