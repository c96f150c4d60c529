"""Times of the daemon and its keeper: intervals, patiences and paces, with their defaults.

Here is each time after which one of them does something: it tries or checks again, gives up, or continues. Not here
are the limits of RocketMQ and of the configuration file, which have their own types, thresholds for what was
measured, and the waits of single commands, which stay beside their only use. Of the exporter, the wait for a client
is here, because its tests need another one.

All times are in seconds. Tests and simulations pass another Timing; an operator has no reason to. Times that
contradict each other raise ValueError.
"""

from dataclasses import dataclass, field


def _require_less(section: object, shorter: str, longer: str) -> None:
    """Raises ValueError unless the first of these times of a section is shorter than the second."""
    less, more = getattr(section, shorter), getattr(section, longer)
    if less >= more:
        raise ValueError(f"{shorter} is {less:g}; it has to be less than {longer}, which is {more:g}")


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Requests of the kernel (fusefs/files)."""

    create_s: float = 4.5
    """For a create as a whole, because the broker gives up after 5 s. Its parts share it:"""
    commit_s: float = 0.25
    """Wait until the segment before is durable. What a power cut may leave after it: docs/architecture.md."""
    reclaim_s: float = 2.0
    """Time of a create that is left for forced deletion, after disks were waited for that do not answer."""
    hedge_s: float = 0.25
    """The next disk is asked, too, when one has not made the segment by then. The answer of the first still counts
    if no other one has made it."""
    round_s: float = 0.25
    """Time between two rounds of a create beside disks that do not answer. A measurement has as much in it, and so
    has the disk that makes the file after a forced deletion."""
    link_s: float = 1.0
    """Time of a create that is left for the name of the file: no disk is asked later."""
    remove_s: float = 3.0
    prepare_s: float = 2.0
    """How long a removal waits for what its segment's moves require; with `remove_s`, a broker's patience of 5 s is
    enough."""
    resize_s: float = 0.25
    """A disk that has not given a new segment its size by then is left, if another one can take the segment, and
    nobody has written to it."""
    flush_s: float = 3.0
    """For a close of a file that has to be synced. The sync continues; a caller's own fsync has no limit."""
    open_s: float = 3.0
    change_s: float = 3.0
    """For a change of mode, owner or times, and of the size of a segment that cannot be given up."""
    rename_s: float = 3.0
    stat_s: float = 1.0
    """For attributes of a file that have to be those on the disk. The last known ones count for a disk that has not
    answered by then."""
    refresh_s: float = 0.05
    """How long an answer about files, the directory or the filesystem waits for a disk. After that it is given from
    memory, and so are all others until the disk has answered."""
    leftover_s: float = 3.0
    """For the removal of a leftover."""
    usage_s: float = 0.5
    """For a measurement of a disk's usage."""
    usage_age_s: float = 0.1
    """Age of such measurements that a change of a segment accepts."""
    statfs_age_s: float = 1.0
    """The same, for statfs."""
    no_disk_s: float = 0.1
    """How long the answer holds that no disk takes a segment: the broker tries again about every millisecond."""
    freed_s: float = 0.05
    """How long to wait until a removed file's blocks show as free. xfs frees them in the background, within
    milliseconds, and a broker that measures before that deletes more than it needs."""
    recent_s: float = 60.0
    """A file that was changed within this time may have grown under a former daemon. Longer than a takeover takes,
    even after some failed starts."""
    freeing_s: float = 1.0
    """Time between two checks for removed files that nobody holds open any more, if nothing reminds of them."""
    try_disk_s: float = 5.0
    """For the attempt to pass a disk's files through to the kernel."""

    def __post_init__(self) -> None:
        _require_less(self, "link_s", "create_s")  # otherwise no disk is asked
        _require_less(self, "resize_s", "change_s")  # otherwise no segment is given up
        if self.patience_s <= 0:
            raise ValueError(
                f"link_s and reclaim_s are {self.link_s + self.reclaim_s:g} together; "
                f"they have to be less than create_s, which is {self.create_s:g}"
            )
        if 2 * self.round_s > self.reclaim_s:
            raise ValueError(
                f"round_s is {self.round_s:g}; "
                f"it has to be at most the half of reclaim_s, which is {self.reclaim_s:g}"
            )

    @property
    def patience_s(self) -> float:
        """How long a create waits for disks that do not answer before space is reclaimed beside them: as long as it
        can."""
        return self.create_s - self.link_s - self.reclaim_s


@dataclass(frozen=True, slots=True)
class HealthTiming:
    """Disks in trouble (store/disks/health.py)."""

    full_s: float = 1.0
    """How long a disk is tried last after a refusal for lack of space. Short, as the broker may have deleted
    segments meanwhile."""
    read_only_s: float = 10.0
    """The same, for a disk that is read-only."""
    failed_s: float = 30.0
    """The same, for any other error. Only a new attempt shows whether the disk is well: statvfs shows an ext4 that
    aborted its journal as writable."""
    suspect_s: float = 60.0
    """How long the fill level of a disk that does not answer still counts after a failure."""
    lost_after_s: float = 300.0
    """When the segments of an unreadable disk count as absent. Longer than the switch-over of a path to a disk, or
    the restart of a controller."""
    remembered_s: float = 1.0
    """Time between two records of the states for the next daemon."""
    fruitless_s: float = 3600.0
    """Time after which one more removal is tried on a disk where removals free nothing."""


@dataclass(frozen=True, slots=True)
class CheckTiming:
    """Checks of disks without a request (store/checks, fusefs/disks)."""

    interval_s: float = 7.0
    """Time between two checks of a disk. A skipped one and the time until a hang is proven have to fit into 30 s,
    also on a busy machine."""
    confirm_s: float = 2.0
    """Time until the next check after one that has found something."""
    observe_s: float = 1.0
    """Time between two observations of a check without an answer."""
    first_s: float = 0.0
    """Time until the first check of a daemon that has mounted."""
    successor_s: float = 3.0
    """The same, of a daemon that has taken a mount over: it answers requests first."""
    probe_s: float = 1.0
    """For a probe that makes and removes a file, or reads a segment."""
    child_start_s: float = 5.0
    """How long a check waits for the first child to start."""
    child_restart_s: float = 60.0
    """Time until another child is started for one that has ended."""
    child_end_s: float = 0.2
    look_s: float = 5.0
    """How long one check of a disk's path waits for an answer; the next one takes the same answer."""
    hung_s: float = 2.0
    """A thread that waits for a disk as long holds its process. A request asks for that, and then it gives a disk
    MemberTiming.record_s, or a successor DaemonTiming.successor_s."""
    hung_look_s: float = 0.1
    """Time between two looks whether threads wait."""


@dataclass(frozen=True, slots=True)
class SlownessTiming:
    """Slow disks (store/slowness)."""

    window_s: float = 10.0
    """Length of a window over which the operations of a device are compared."""
    probe_after_s: float = 600.0
    """Time until a slow disk is probed."""


@dataclass(frozen=True, slots=True)
class MemberTiming:
    """Lists of members on the disks (fusefs/disks/member_records.py)."""

    record_s: float = 2.0
    """How long a change waits for one step on a disk. Two of them fit into the patience of a command."""
    answer_s: float = 0.2
    """Time of a request that is left for its answer: a change that might take longer is refused."""
    retry_s: float = 30.0
    compare_s: float = 1.0
    """Time between two comparisons of the list with the log."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast background work goes without a rate (store/moves/throttle.py)."""

    idle_share: float = 0.15
    """Part of the idle time for which such work keeps its disks busy."""
    smallest_share: float = 0.03
    """Part of the time, on a machine without idle time: a drain that never ends helps nobody."""
    longest_pause_s: float = 0.5
    """After this a new rate, or the end of the work, takes effect."""
    load_s: float = 1.0
    """Period over which the machine's load is measured. The kernel counts the processors' time in ticks of some
    milliseconds, so a shorter one tells little."""
    look_s: float = 0.2
    """Time between two checks whether the work of a disk may continue."""
    state_s: float = 0.1
    """The same, for work that is paused."""
    longest_cost_s: float = 5.0
    """A disk that takes longer for a chunk hangs, and does not work meanwhile. It would rest for hours
    afterwards."""


@dataclass(frozen=True, slots=True)
class MoveTiming:
    """Moves of segments, and the drains and rebalancings that order them (fusefs/moves)."""

    publish_s: float = 3.0
    """For the step at which the copy takes the segment's place."""
    chunk_s: float = 30.0
    """A disk that takes longer for one step of a copy counts as hung; the move is given up."""
    close_s: float = 3.0
    """How long the next move waits for the files of this one to be closed."""
    source_s: float = 5.0
    """Time between two attempts to remove a source whose disk has refused."""
    look_s: float = 1.0
    """Time between two looks for work of a drain."""
    retry_s: float = 30.0
    """Time until a segment is tried again after its move has failed."""
    unreadable_retry_s: float = 600.0
    """The same, if nothing of it could be read, or if it differs from its checksum."""
    usage_age_s: float = 1.0
    """Age of a measurement of the disks that a choice of the target accepts."""
    rate_window_s: float = 60.0
    """Latest time of which the rate that `status` shows is the mean."""
    life_left_s: float = 600.0
    """A segment that is expected to leave the log within this time is not moved any more, but from a failing
    disk."""


@dataclass(frozen=True, slots=True)
class ChecksumTiming:
    """Checksums of sealed segments (fusefs/integrity/checksums.py)."""

    start_s: float = 1.0
    """A daemon that has just started has more urgent work."""
    look_s: float = 1.0
    """Time between two looks for a segment without checksum."""
    sweep_s: float = 600.0
    """Time between two checks whether segments with a checksum were changed: with passthrough, nobody reports
    that."""
    batch_pause_s: float = 0.1
    """Pause between two parts of such a check."""
    at_rest_s: float = 2.0
    """A file that was changed within this time is not hashed: a second change could leave the same mtime."""
    changed_retry_s: float = 30.0
    """Time until a segment that was changed while it was read is tried again."""
    failed_retry_s: float = 3600.0
    """The same, if its disk could not read it, or refused the checksum."""
    life_left_s: float = 600.0
    """A segment that is expected to leave the log within this time gets no checksum any more."""


@dataclass(frozen=True, slots=True)
class ScrubTiming:
    """Scrubs (fusefs/integrity/scrub.py)."""

    start_s: float = 2.0
    """A daemon that has just started has more urgent work."""
    look_s: float = 1.0
    """Time between two looks whether a disk still works."""
    schedule_s: float = 10.0
    """Time between two checks of the schedule."""
    retry_s: float = 60.0
    """Time until a disk that could not be read is tried again."""
    record_s: float = 2.0
    """How long an order waits until the disks have recorded it."""
    give_up_s: float = 1800.0
    """Time without an answer after which a disk is left out. Longer than a disk takes for the repeated reads of
    some bad blocks, and than the restart of a controller."""
    longest_step_s: float = 10.0
    """More time between two observations of a disk does not count: the daemon was stopped, not the disk."""


@dataclass(frozen=True, slots=True)
class VerdictTiming:
    """Verdicts on damaged segments, and other findings that disks keep (fusefs/integrity)."""

    load_s: float = 3.0
    """How long the start of a mount waits for what the disks have kept."""
    record_s: float = 10.0
    """For the record of a verdict on its disk."""
    clear_s: float = 4.0
    """How long an order to clear verdicts waits for the disks: a control request has 5 s."""
    finish_s: float = 2.0
    """How long the orderly end of a daemon waits until the disks have recorded the last verdicts; less than
    DaemonTiming.hand_over_s."""
    retry_s: float = 30.0
    start_s: float = 1.0
    """A daemon that has just started has more urgent work than to look for findings beside the segments."""
    longest_retry_s: float = 600.0
    """Each retry on a disk that is dead costs the kernel one error for each file."""


@dataclass(frozen=True, slots=True)
class LostWriteTiming:
    """Writes that a disk has lost (fusefs/integrity/lost_writes.py)."""

    look_s: float = 2.0
    """Time between two questions to the kernel."""
    written_after_s: float = 60.0
    """Time after which the kernel has written what was stored to a segment before it left the newest ones: twice
    the default of vm.dirty_expire_centisecs."""
    examined_again_s: float = 60.0
    """Time until a segment is compared with its disk once more, if writes still fail."""


@dataclass(frozen=True, slots=True)
class RetentionTiming:
    """Forced deletion (fusefs/files/retention.py)."""

    pause_s: float = 0.1
    """Pause between two removals of a cycle (RocketMQ's deleteCommitLogFilesInterval)."""
    usage_age_s: float = 0.05
    """Largest age of a measurement after a removal, which has recorded its own disk's."""


@dataclass(frozen=True, slots=True)
class DaemonTiming:
    """The daemon around its mount (mount/daemon, mount/journal, mount/status)."""

    probe_s: float = 10.0
    """For the first probe of a new mount."""
    status_s: float = 10.0
    """Time between two lines for the service manager. Also the longest time between two measurements of the log's
    growth."""
    status_age_s: float = 1.0
    """Age of a report that the control files still show."""
    oldest_message_s: float = 0.5
    """For a read of the log's first message."""
    growth_s: float = 0.5
    """To find out how far the newest segment is written."""
    store_root_s: float = 1.0
    """For the usage of the filesystem of the broker's other files."""
    state_s: float = 1.0
    """For the state of segments that a map shows."""
    lock_s: float = 1.0
    """When a successor starts, a child of the daemon that died may still have copies of its descriptors."""
    answer_s: float = 0.01
    """Time for the answers to others that have requested the same hand-over."""
    hand_over_s: float = 3.0
    """A daemon that has not ended by then stays."""
    successor_s: float = 2.5
    """A successor that takes longer to load is started as usual, when this process has ended."""
    free_s: float = 2.5
    """How long an answer waits until a slow disk has freed closed files. Together with MemberTiming.record_s for
    the directory, it is less than a peer waits."""
    returns_look_s: float = 5.0
    """Time between two looks for disks that are back."""
    returns_retry_s: float = 300.0
    """Time until the same disks are tried again: what prevents it may last, and each hand-over lets requests
    wait."""
    former_end_s: float = 3.0
    """How long a daemon that was killed may take to end if no disk holds it: it has much memory to give back."""
    former_living_s: float = 1.0
    """How long a daemon that ends by itself may take for that."""
    former_look_s: float = 5.0
    """How long a disk may take to answer before it counts as one that holds a former daemon."""
    keeper_first_s: float = 0.1
    """Time until another keeper is started for one that has died; twice as long each time, up to the longest:"""
    keeper_longest_s: float = 60.0
    keeper_steady_s: float = 10.0
    """After this lifetime, a keeper's death is not taken for a fault of its start."""
    journal_s: float = 1.0
    """Time between two checks of the disks for the journal. It may miss a state that begins and ends within it."""
    journal_usage_age_s: float = 10.0
    """Age of a measurement for it: requests and reports measure the disks more often while the mount is used."""
    journal_repeat_s: float = 60.0
    """How long an equal refusal or failure is only counted: a broker repeats a create every 0.1 s."""


@dataclass(frozen=True, slots=True)
class KeeperTiming:
    """The keeper (mount/keeper)."""

    lock_s: float = 5.0
    """A keeper that ends releases the name a moment after its daemon."""
    called_s: float = 3.0
    """Time for a standby from its call to its first message."""
    start_s: float = 60.0
    """Time for a daemon from its start, or from its receipt of a standby's call, to READY."""
    stopping_s: float = 60.0
    """Time for a daemon from STOPPING to its end."""
    aborted_s: float = 0.5
    """Time for its end after SIGABRT. A process that is stopped does not see SIGABRT, and a broker waits."""
    killed_s: float = 5.0
    """Time for its end after SIGKILL."""
    first_delay_s: float = 0.05
    """Time until a daemon is started for one that has died; twice as long after each failed start, up to the
    longest:"""
    longest_delay_s: float = 5.0
    refused_delay_s: float = 5.0
    """The same, after a start that was refused."""
    silence_s: float = 30.0
    """Longest time for which a daemon that computes may be silent."""
    standby_s: float = 0.2
    """Time until a standby is loaded after READY: the requests that waited for the present daemon come first."""
    standby_again_s: float = 60.0
    """After the death of a standby: where memory is short, the next one would die, too."""
    holders_s: float = 2.0
    """For the search for processes that hold a mount."""
    detached_look_s: float = 5.0
    """Time between two looks whether a detached keeper's mount is still there."""


@dataclass(frozen=True, slots=True)
class ExporterTiming:
    """The exporter's HTTP server (exporter/impatient.py)."""

    request_s: float = 10.0
    """A connection that has not brought a whole request for that long, or takes nothing of an answer, is closed."""


@dataclass(frozen=True, slots=True)
class Timing:
    """All of them."""

    requests: RequestTiming = field(default_factory=RequestTiming)
    health: HealthTiming = field(default_factory=HealthTiming)
    checks: CheckTiming = field(default_factory=CheckTiming)
    slowness: SlownessTiming = field(default_factory=SlownessTiming)
    members: MemberTiming = field(default_factory=MemberTiming)
    pace: Pace = field(default_factory=Pace)
    moves: MoveTiming = field(default_factory=MoveTiming)
    checksums: ChecksumTiming = field(default_factory=ChecksumTiming)
    scrub: ScrubTiming = field(default_factory=ScrubTiming)
    verdicts: VerdictTiming = field(default_factory=VerdictTiming)
    lost_writes: LostWriteTiming = field(default_factory=LostWriteTiming)
    retention: RetentionTiming = field(default_factory=RetentionTiming)
    daemon: DaemonTiming = field(default_factory=DaemonTiming)
    keeper: KeeperTiming = field(default_factory=KeeperTiming)
    exporter: ExporterTiming = field(default_factory=ExporterTiming)


DEFAULT = Timing()
