"""The life of disks and a model of it, side by side: disks join, drain, leave, get lost and return in any order,
while a broker writes, and while daemons die.

The model knows the segments of the log, and what an operator has decided about each disk. Where a segment goes is
the daemon's choice: the model only requires that its file lies on one disk that may have it. A sequence that found
a fault lives on as a plain test in test_disk_life_cases.py.
"""

import contextlib
import errno
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import faults
from support.disk_life import (
    SIZE,
    BackingFile,
    DiskLife,
    read_disk,
    recorded_identity,
    recorded_newest,
    set_aside,
)
from support.faults import FaultPlan
from support.pools import segment_name
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

SOAK_EXAMPLES = int(os.environ.get("COMMITLOGFS_SOAK_EXAMPLES", "200"))
DISKS_AT_FIRST = 3
MOST_DISKS = 5
MOST_SEGMENTS = 16
NEWEST_KEPT = 3
"""The newest segments are not moved."""

STEPS_BETWEEN_STARTS = 3

REFUSED = 4
FINDINGS = 1
numbers = st.integers(0, 99)
deaths = st.one_of(st.none(), st.none(), st.integers(1, 45))
"""The step of the daemon before which it dies, counted from the beginning of the operation."""


@dataclass(eq=False)
class File:
    """One file with a segment's content. A moved segment has two until the last close of the former one."""

    content: bytearray


@dataclass(eq=False)
class Segment:
    file: File
    mtime_ns: int
    mode: int
    owner: tuple[int, int]
    place: Path | None = None
    """The disk where it was seen last."""


@dataclass(eq=False)
class Held:
    """An open descriptor, and the file that it must show until it is closed."""

    fd: int
    index: int
    file: File
    is_writable: bool


@dataclass(eq=False)
class Member:
    number: int
    path: Path
    is_cordoned: bool = False
    drain: str | None = None
    is_away: bool = False
    stale: set[int] = field(default_factory=set)
    """Segments of which it had the former file when it was lost; their copies are on other disks."""
    removed: set[int] = field(default_factory=set)
    """Segments that it has brought back, and that were removed from the log while it was away."""

    @property
    def hidden(self) -> Path:
        """Where its directory is while it is away."""
        return self.path.with_name(f"{self.path.name}.hidden")

    @property
    def takes_segments(self) -> bool:
        return not (self.is_away or self.is_cordoned or self.drain)

    @property
    def state(self) -> str:
        if self.drain is not None:
            return "draining"
        return "cordoned" if self.is_cordoned else "rw"


class DiskLifeModel(RuleBasedStateMachine):
    """`directory` and `faults` are set by the test that runs the machine."""

    directory: Path
    faults: FaultPlan | None
    examples: Iterator[int]

    def __init__(self) -> None:
        super().__init__()
        self.own = self.directory / f"{next(self.examples)}"
        self.log: dict[int, Segment] = {}
        """All segments, also those of disks that are away."""
        self.members: list[Member] = []
        self.given_up: list[Member] = []
        """Disks that were given up; their directories are away, and may return."""
        self.accepted: set[int] = set()
        """Segments that were given up."""
        self.held: list[Held] = []
        self.last_number = 0
        self.known_ids: dict[int, str] = {}
        self.high_water = -1
        """The newest segment there has ever been."""
        self.is_degraded_allowed = False
        self.serial = itertools.count(1)
        self.steps = self.started_at = 0

    # --- the model's own knowledge -------------------------------------------------------------------

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members if not member.is_away]

    @property
    def away(self) -> list[Member]:
        return [member for member in self.members if member.is_away]

    @property
    def visible(self) -> dict[int, Segment]:
        """The segments that the mount has to show, in order."""
        hidden = {member.path for member in self.away}
        return {index: self.log[index] for index in sorted(self.log) if self.log[index].place not in hidden}

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[first, end) of each range of segments that are missing in the middle of the visible log."""
        indexes = list(self.visible)
        return [(one + 1, other) for one, other in itertools.pairwise(indexes) if other > one + 1]

    @property
    def refuses_strictly(self) -> bool:
        """Whether a mount that is not to be degraded has to be refused."""
        return bool(self.away) or any(not self.accepted.issuperset(range(*gap)) for gap in self.gaps)

    @property
    def newest_is_away(self) -> bool:
        """Whether no daemon may start anew: the recorded newest segment may be on a disk that is away."""
        recorded = max(recorded_newest(member.path) for member in self.present)
        return bool(self.away) and recorded > max(self.visible, default=-1)

    @property
    def may_start(self) -> bool:
        """Whether another daemon is worth its time, which is that of many other steps."""
        return self.steps - self.started_at >= STEPS_BETWEEN_STARTS

    def others_take_segments(self, member: Member) -> bool:
        return any(other.takes_segments for other in self.present if other is not member)

    def pick(self, number: int, members: list[Member] | None = None) -> Member:
        choice = self.present if members is None else members
        return choice[number % len(choice)]

    def path(self, index: int) -> Path:
        return self.life.pool.mountpoint / segment_name(index, SIZE)

    def content_of(self, index: int) -> bytearray:
        """Differs between two lives of one segment, too."""
        word = b"%020d.%08d|" % (index, next(self.serial))
        return bytearray((word * (SIZE // len(word) + 1))[:SIZE])

    # --- the beginning and the end -------------------------------------------------------------------

    @initialize(passthrough=st.booleans(), count=st.integers(6, 10))
    def begin(self, passthrough: bool, count: int) -> None:
        self.life = DiskLife(self.own, DISKS_AT_FIRST, passthrough=passthrough, faults=self.faults)
        self.members = [Member(number, path) for number, path in enumerate(self.life.pool.disks, 1)]
        self.last_number = DISKS_AT_FIRST
        self.configure()
        self.life.start()
        for _ in range(count):
            self.create(False)

    def teardown(self) -> None:
        if not hasattr(self, "life"):
            return
        try:
            if sys.exc_info()[0] is not None:
                return  # the failure itself is what counts
            self.release_all()
            eventually(lambda: not any(set_aside(member.path) for member in self.present))
            self.stop_and_read_disks()
            assert "unexpected_error" not in self.life.pool.log_path.read_text()
        finally:
            self.release_all()
            self.life.end()
            shutil.rmtree(self.own, ignore_errors=True)

    def start(self) -> None:
        self.configure()
        self.life.start()

    def configure(self, *, is_degraded_allowed: bool | None = None) -> None:
        if is_degraded_allowed is not None:
            self.is_degraded_allowed = is_degraded_allowed
        self.life.use([member.path for member in self.members], is_degraded_allowed=self.is_degraded_allowed)

    # --- the broker ----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.log) < MOST_SEGMENTS)
    @rule(count=st.integers(1, 4), anew=st.booleans(), death=deaths)
    def append(self, count: int, anew: bool, death: int | None) -> None:
        with self.life.dying_at(death):
            for _ in range(count):
                self.create(anew)

    def create(self, anew: bool) -> None:
        """The segment after the newest; `anew`: as a broker that was started since disks were lost or cut off."""
        last = max(self.visible, default=-1)
        index = last + 1 if anew or not (self.away or self.accepted) else max(last, *self.log, *self.accepted) + 1
        allowed = self.errors_of_create(index)
        outcome, fd = 0, -1
        try:
            fd = os.open(self.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        except OSError as error:
            outcome = error.errno or -1
        assert outcome in allowed, (index, errno.errorcode.get(outcome), allowed)
        if outcome:
            return
        try:
            content = self.content_of(index)
            os.ftruncate(fd, SIZE)
            assert os.pwrite(fd, content, 0) == SIZE
            os.fsync(fd)
        finally:
            os.close(fd)
        mode, owner = (0o640, 0o600, 0o644)[index % 3], (1000 + index, 1001 + index)
        mtime_ns = 1_600_000_000_000_000_000 + next(self.serial)
        self.path(index).chmod(mode)
        os.chown(self.path(index), *owner)
        os.utime(self.path(index), ns=(mtime_ns, mtime_ns))
        self.log[index] = Segment(File(content), mtime_ns, mode, owner)
        holders = [member for member in self.present if (member.path / segment_name(index, SIZE)).exists()]
        assert [member.takes_segments for member in holders] == [True], [member.state for member in holders]
        self.high_water = max(self.high_water, index)

    def errors_of_create(self, index: int) -> set[int]:
        """The possible outcomes; 0 is success."""
        if self.away and index <= max((n for n in self.log if n not in self.visible), default=-1):
            return {errno.EEXIST}  # it may lie on a disk that is away
        if not any(member.takes_segments for member in self.present):
            return {errno.EROFS}
        return {0, errno.EEXIST} if self.away and index <= self.high_water else {0}

    @precondition(lambda self: self.visible)
    @rule(position=st.integers(0, SIZE - 100), by_held=st.booleans())
    def write_newest(self, position: int, by_held: bool) -> None:
        """Through its path, or through the descriptor that a process has kept."""
        index = max(self.visible)
        data = b"written %020d" % next(self.serial)
        of_newest = [held for held in self.held if held.index == index and held.is_writable]
        kept = of_newest[0] if by_held and len(of_newest) == 1 else None
        fd = os.open(self.path(index), os.O_RDWR) if kept is None else kept.fd
        segment = self.log[index]
        written = segment.file if kept is None else kept.file
        try:
            os.pwrite(fd, data, position)
            os.fsync(fd)
        finally:
            if kept is None:
                os.close(fd)
        written.content[position : position + len(data)] = data
        if written is not segment.file:
            segment.file = written  # the move was undone when the log was cut, or is undone now
        eventually(lambda: self.path(index).read_bytes() == segment.file.content, 15.0)
        segment.mtime_ns = self.path(index).stat().st_mtime_ns

    @precondition(lambda self: len(self.visible) > 1)
    @rule(count=st.integers(1, 4), death=deaths)
    def expire(self, count: int, death: int | None) -> None:
        """The broker deletes the oldest."""
        oldest = list(self.visible)[: min(count, len(self.visible) - 1)]
        with self.life.dying_at(death):
            for index in oldest:
                self.remove_segment(index)
        if self.away:  # if the daemon has died, its successor knows of its own removals only
            with contextlib.nullcontext() if death is None else contextlib.suppress(AssertionError):
                eventually(lambda: self.removed_before == oldest[-1] + 1, 3.0)

    @property
    def removed_before(self) -> int:
        """Index before which every segment was removed while a disk was away, as the disks record it."""
        return max(recorded_identity(m.path).get("removed_before", 0) // SIZE for m in self.present)

    @precondition(lambda self: len(self.visible) > 1)
    @rule(count=st.integers(1, 5), death=deaths)
    def cut(self, count: int, death: int | None) -> None:
        """The broker deletes the newest, as a slave whose master has another history: in ascending order."""
        indexes = list(self.visible)
        behind = indexes[max(1, len(indexes) - count) :]
        with self.life.dying_at(death):
            for index in behind:
                if not any(index in member.stale for member in self.away):  # else it would be back with that disk
                    self.remove_segment(index)

    def remove_segment(self, index: int) -> None:
        self.path(index).unlink()
        del self.log[index]
        with pytest.raises(FileNotFoundError):
            self.path(index).unlink()

    @precondition(lambda self: self.visible and len(self.held) < 6)
    @rule(number=numbers, writable=st.booleans())
    def hold(self, number: int, writable: bool) -> None:
        index = list(self.visible)[number % len(self.visible)]
        fd = os.open(self.path(index), os.O_RDWR if writable else os.O_RDONLY)
        self.held.append(Held(fd, index, self.log[index].file, writable))

    @precondition(lambda self: self.held)
    @rule(number=numbers)
    def release(self, number: int) -> None:
        os.close(self.held.pop(number % len(self.held)).fd)

    @precondition(lambda self: self.held)
    @rule()
    def release_all(self) -> None:
        while self.held:
            with contextlib.suppress(OSError):  # of a dead mount
                os.close(self.held.pop().fd)

    # --- decisions of the operator -------------------------------------------------------------------

    def change(
        self, death: int | None, done: Callable[[Any], bool], verb: str, *arguments: object, allowed: int = 0
    ) -> None:
        """A command that is not refused. If its daemon dies, it is repeated; the change is made once."""
        with self.life.dying_at(death):
            ran = self.life.disk(verb, *arguments)
        assert ran.status == 0 or death is not None, ran.err
        if ran.status != 0 and not done(self.life.status()):
            ran = self.life.disk(verb, *arguments)
            self.life.await_daemon()
            assert ran.status in (0, allowed), ran.err
        assert done(self.life.status()), (ran.err, self.facts())

    def refused(self, verb: str, *arguments: object, why: str) -> None:
        """A command that is refused, so that nothing changes."""
        before = self.facts()
        ran = self.life.disk(verb, *arguments)
        assert (ran.status, why in ran.err) == (REFUSED, True), (ran, why)
        assert self.facts() == before

    def facts(self) -> tuple[object, ...]:
        document = self.life.status()
        disks = [(disk["number"], disk["path"], disk["state"], disk["drain"] is None) for disk in document["disks"]]
        recorded = [recorded_identity(member.path)["members"] for member in self.present]
        return (disks, document["missing_disks"], self.life.pool.config.read_text(), recorded)

    @precondition(lambda self: len(self.members) < MOST_DISKS)
    @rule(death=deaths)
    def add(self, death: int | None) -> None:
        path = self.own / f"disk{next(self.serial)}"
        if len(self.present) == 1:  # with more, they share a filesystem, so that this one may, too
            self.refused("add", path, why="on the same filesystem")
            return
        if self.newest_is_away:
            self.refused("add", path, why="newest-segment-missing")
            return
        self.join(path, lambda done: self.change(death, done, "add", path, allowed=REFUSED), death)

    def join(self, path: Path, command: Callable[[Callable[[Any], bool]], None], death: int | None) -> None:
        command(lambda document: str(path) in [disk["path"] for disk in document["disks"]])
        (number,) = [disk["number"] for disk in self.life.status()["disks"] if disk["path"] == str(path)]
        assert number == self.last_number + 1 or (death is not None and number > self.last_number)
        self.last_number = number
        self.members.append(Member(number, path))

    def is_state(self, member: Member, document: Any, state: str) -> bool:
        return (member.number, state) in [(disk["number"], disk["state"]) for disk in document["disks"]]

    @rule(number=numbers, death=deaths)
    def cordon(self, number: int, death: int | None) -> None:
        member = self.pick(number)
        if not self.others_take_segments(member):
            self.refused("cordon", member.number, why="no other disk takes new segments")
            return
        member.is_cordoned = True
        self.change(death, lambda document: self.is_state(member, document, member.state), "cordon", member.number)

    @rule(number=numbers, death=deaths)
    def uncordon(self, number: int, death: int | None) -> None:
        member = self.pick(number)
        if member.drain is not None:
            self.refused("uncordon", member.number, why="`disk cancel` ends that")
            return
        member.is_cordoned = False
        self.change(death, lambda document: self.is_state(member, document, "rw"), "uncordon", member.path)

    @precondition(lambda self: self.away)
    @rule(verb=st.sampled_from(["cordon", "uncordon", "drain", "cancel"]), number=numbers)
    def change_a_missing_disk(self, verb: str, number: int) -> None:
        self.refused(verb, self.pick(number, self.away).number, why="is missing; bring it back")

    @rule(number=numbers, by_expiry=st.booleans(), death=deaths)
    def drain(self, number: int, by_expiry: bool, death: int | None) -> None:
        member = self.pick(number)
        if not self.others_take_segments(member):
            self.refused("drain", member.number, why="no other disk takes new segments")
            return
        member.drain = "expiry" if by_expiry else "copy"

        def is_done(document: Any) -> bool:
            (disk,) = [disk for disk in document["disks"] if disk["number"] == member.number]
            return disk["drain"] is not None and disk["drain"]["mode"] == member.drain

        self.change(death, is_done, "drain", member.number, *(["--by-expiry"] if by_expiry else []))

    @rule(number=numbers, death=deaths)
    def cancel(self, number: int, death: int | None) -> None:
        member = self.pick(number)
        member.drain = None
        self.change(death, lambda document: self.is_state(member, document, member.state), "cancel", member.number)

    @precondition(lambda self: any(member.drain == "copy" for member in self.present))
    @rule(number=numbers)
    def await_drain(self, number: int) -> None:
        """Everything but the newest is moved, as far as another disk takes it."""
        member = self.pick(number, [member for member in self.present if member.drain == "copy"])
        if not self.others_take_segments(member):
            return
        # A move that has failed, for a segment that changed, is tried again at once.
        ran = self.life.disk("drain", member.number, "--rate", next(self.serial) * 2**20 + 2**27)
        assert ran.status == 0, ran.err
        kept = set(list(self.visible)[-NEWEST_KEPT:]) | self.written_to | self.marked_as_from_missing(member)
        eventually(lambda: read_disk(member.path).keys() <= kept, 20.0, self.life.pool.log_path.read_text)

    def marked_as_from_missing(self, member: Member) -> set[int]:
        """Segments of a disk of which a missing one may have another file: they are not moved again."""
        files = read_disk(member.path).items() if self.away else []
        return {index for index, file in files if file.moved_from is not None}

    @property
    def written_to(self) -> set[int]:
        """Segments that the daemon may have put back: it does not move them again."""
        return {held.index for held in self.held}

    @precondition(lambda self: len(self.members) > 1)
    @rule(number=numbers, death=deaths)
    def remove(self, number: int, death: int | None) -> None:
        member = self.pick(number)
        self.await_rest()
        if os.listdir(member.path) and member.drain == "copy":
            self.cancel(number, None)  # else it may become empty at any moment
            self.await_rest()
        if os.listdir(member.path):
            self.refused("remove", member.path, why=": holds ")
        elif not self.others_take_segments(member):
            self.refused("remove", member.path, why="no other disk takes new segments")
        elif self.away:
            self.refused("remove", member.path, why="another disk is missing")
        else:
            # One that takes new segments is not safe to remove, but `disk remove` can take it out.
            expected = 0 if member.is_cordoned else FINDINGS
            eventually(lambda: self.life.disk("safe-to-remove", member.number).status == expected)

            def is_done(document: Any) -> bool:
                is_served = any(disk["number"] == member.number for disk in document["disks"])
                return not is_served and not os.listxattr(member.path)

            self.change(death, is_done, "remove", member.path, allowed=REFUSED)
            self.members.remove(member)

    def await_rest(self) -> None:
        """Until no move is under way."""
        eventually(lambda: self.life.status()["moves"]["current"] is None, 20.0)

    # --- disks that are lost -------------------------------------------------------------------------

    @precondition(lambda self: len(self.present) > 1 and len(self.away) < 2)
    @rule(
        number=numbers, how=st.sampled_from(["mount", "restart", "kill"]), try_strictly=st.booleans(), death=deaths
    )
    def lose(self, number: int, how: str, try_strictly: bool, death: int | None) -> None:
        member = self.pick(number)
        self.release_all()
        if self.newest_is_away:
            how = "kill"  # a mount that ends now could not begin again
        if how == "mount":
            self.stop_and_read_disks()
        self.configure(is_degraded_allowed=True)
        if how == "kill":
            self.kill_daemon(death)
        member.path.rename(member.hidden)
        if how == "kill":
            self.life.kept.go_on()
        elif how == "restart":
            self.life.restart()
        self.find_lost(member)
        if self.newest_is_away and how != "kill":
            if how == "mount":
                self.refused_mount("newest-segment-missing")
            self.undo_loss(member, how)
        elif how == "mount":
            if try_strictly:
                self.configure(is_degraded_allowed=False)
                self.refused_mount("disk-missing")
                self.configure(is_degraded_allowed=True)
            self.start()
        self.life.await_daemon()

    @precondition(lambda self: len(self.present) > 2 and not self.away)
    @rule(number=numbers, of_copy=st.booleans())
    def lose_within_a_move(self, number: int, of_copy: bool) -> None:
        """A drain begins, the daemon dies while a segment has two files, and the disk of either is lost. The drain
        continues without that disk."""
        drained = self.pick(number)
        self.release_all()
        movable = read_disk(drained.path).keys() - set(list(self.visible)[-NEWEST_KEPT:])
        if not movable or not self.others_take_segments(drained):
            return
        self.configure(is_degraded_allowed=True)
        drained.drain = "copy"
        index = self.life.kill_within_a_move(drained.number)
        if index is not None:
            files = [(one, read_disk(one.path).get(index)) for one in self.present]
            found = [(one, file) for one, file in files if file is not None]
            copy, _ = self.copy_among(found)
            member = copy if of_copy else next(one for one, _ in found if one is not copy)
            member.path.rename(member.hidden)
        self.life.kept.go_on()
        if index is not None:
            self.find_lost(member)
        self.life.await_daemon()
        if index is None:  # the daemon may have died before it recorded the drain
            ran = self.life.disk("drain", drained.number)
            assert ran.status == 0, ran.err

        def are_well() -> bool:  # a disk may have seemed slow beside the pauses of the daemon
            document = self.life.status()
            return all(self.is_state(member, document, member.state) for member in self.present)

        eventually(are_well, shown=lambda: f"{self.life.status()['disks']}")

    def find_lost(self, member: Member) -> None:
        """Record the content of a disk that has just been lost."""
        member.is_away = True
        elsewhere = {index for other in self.present for index in read_disk(other.path)}
        for index in read_disk(member.hidden):
            if index in elsewhere:
                member.stale.add(index)
            else:
                self.log[index].place = member.path
        for index, segment in self.log.items():
            if segment.place == member.path and index in elsewhere:
                segment.place = None

    def undo_loss(self, member: Member, how: str) -> None:
        member.hidden.rename(member.path)
        member.is_away = False
        member.stale.clear()
        if how == "mount":
            self.start()
        else:  # the daemon that refused to end may have seen that the disk was away
            eventually(lambda: self.is_state(member, self.life.status(), member.state))

    def refused_mount(self, code: str) -> None:
        ran = self.life.pool.cli("mount", self.life.pool.config)
        assert (ran.status, f"[{code}]" in ran.err) == (REFUSED, True), ran.err

    @precondition(lambda self: self.away)
    @rule(number=numbers, by_restart=st.booleans())
    def return_(self, number: int, by_restart: bool) -> None:
        """A disk that was lost is back, with the list of members that it knew."""
        member = self.pick(number, self.away)
        if not by_restart:
            self.release_all()
            self.stop_and_read_disks()
        self.come_back(member)
        if by_restart:
            self.restart()  # if that is refused, the daemon takes the disk back by itself
            self.life.await_disk(member.number)
        else:
            if self.newest_is_away:
                self.all_return()
            self.start()

    @precondition(lambda self: self.away)
    @rule(number=numbers, is_mounted=st.booleans(), death=deaths)
    def give_up(self, number: int, is_mounted: bool, death: int | None) -> None:
        member = self.pick(number, self.away)
        recorded = max(recorded_newest(other.path) for other in self.present)
        lost = {index for gap in self.gaps for index in range(*gap)}
        lost |= set(range(max(self.visible, default=-1) + 1, recorded + 1))
        arguments = (member.number, "--lost", "--yes", "--json")
        if is_mounted:
            self.change(
                death,
                lambda document: str(member.path) not in document["missing_disks"],
                "remove",
                *arguments,
                allowed=REFUSED,
            )
        else:
            self.release_all()
            self.stop_and_read_disks()
            ran = self.life.pool.cli("disk", "remove", arguments[0], self.life.pool.config, *arguments[1:])
            assert ran.status == 0, ran.err
            assert {i for start, end in ran.json()["lost"] for i in range(start // SIZE, end // SIZE)} == lost
        self.accepted |= lost
        self.log = {index: segment for index, segment in self.log.items() if segment.place != member.path}
        self.members.remove(member)
        self.given_up.append(member)
        assert f'"{member.path}"' not in self.life.pool.config.read_text()
        if not is_mounted:
            self.configure()
            if self.newest_is_away:
                self.refused_mount("newest-segment-missing")
                self.all_return()
            self.start()

    def come_back(self, member: Member) -> None:
        begin = self.removed_before
        member.hidden.rename(member.path)
        member.is_away = False
        member.stale.clear()
        member.removed = {index for index in read_disk(member.path) if index < begin}
        self.log = {
            index: segment
            for index, segment in self.log.items()
            if not (index in member.removed and segment.place == member.path)
        }

    def delete_removed(self) -> None:
        """As the finding `removed-segments` asks an operator to do."""
        for member in self.present:
            if member.removed:
                findings = self.life.status()["findings"]
                assert str(member.path) in [f["disk"] for f in findings if f["code"] == "removed-segments"]
            for index in member.removed:
                (member.path / segment_name(index, SIZE)).unlink()
            member.removed.clear()

    def all_return(self) -> None:
        for member in self.away:
            self.come_back(member)

    @precondition(lambda self: self.present)
    @rule(number=numbers)
    def give_up_a_disk_that_works(self, number: int) -> None:
        self.refused("remove", self.pick(number).number, "--lost", "--yes", why="not lost")

    @precondition(lambda self: self.given_up)
    @rule()
    def a_disk_that_was_given_up_returns(self) -> None:
        """It is no member, so nothing of it gets into the log; and it cannot join while it holds anything."""
        member = self.given_up.pop()
        member.hidden.rename(member.path)
        if os.listdir(member.path):
            self.refused("add", member.path, why="")
        self.life.use([*(m.path for m in self.members), member.path], is_degraded_allowed=False)
        ran = self.life.restart()
        assert ran.status == REFUSED, ran
        assert self.refuses_strictly or "disk-removed" in ran.err, ran.err
        if not self.newest_is_away:
            self.life.use([*(m.path for m in self.members), member.path], is_degraded_allowed=True)
            ran = self.life.restart()
            assert ran.status == 0, ran.err
            self.life.await_daemon()
            self.agrees()
        self.configure()
        if os.listdir(member.path):
            self.refused("remove", member.path, why="records this pool and is not empty")
            elsewhere = member.path.with_name(f"content of {member.path.name}")
            elsewhere.mkdir()
            for name in os.listdir(member.path):
                (member.path / name).rename(elsewhere / name)
        assert self.life.disk("remove", member.path).status == 0
        assert (os.listdir(member.path), os.listxattr(member.path)) == ([], [])

    @precondition(lambda self: len(self.members) < MOST_DISKS)
    @rule(number=numbers, death=deaths)
    def replace(self, number: int, death: int | None) -> None:
        member, path = self.pick(number), self.own / f"disk{next(self.serial)}"
        if len(self.present) == 1:
            self.refused("replace", member.number, path, why="on the same filesystem")
        elif self.newest_is_away:
            self.refused("replace", member.number, path, why="newest-segment-missing")
        else:  # also if no other disk takes new segments: the new one does
            member.drain = member.drain or "copy"

            def command(is_joined: Callable[[Any], bool]) -> None:
                with self.life.dying_at(death):
                    ran = self.life.disk("replace", member.number, path)
                assert ran.status == 0 or death is not None, ran.err
                if not is_joined(self.life.status()):
                    ran = self.life.disk("add", path)
                    assert ran.status == 0, ran.err
                if not self.is_state(member, self.life.status(), "draining"):
                    ran = self.life.disk("drain", member.number)
                    assert ran.status == 0, ran.err

            self.join(path, command, death)

    # --- daemons -------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        return any(member.drain == "copy" for member in self.present)

    def kill_daemon(self, death: int | None) -> None:
        """At any moment, or before a step of a move."""
        self.life.kill(death if self.is_moving else None)

    @precondition(lambda self: self.may_start)
    @rule(death=deaths)
    def kill(self, death: int | None) -> None:
        self.kill_daemon(death)
        self.life.kept.go_on()
        self.life.await_daemon()
        self.started_at = self.steps

    @precondition(lambda self: self.may_start)
    @rule()
    def restart(self) -> None:
        """A strict one is refused if anything is missing."""
        is_refused = self.newest_is_away or (self.refuses_strictly and not self.is_degraded_allowed)
        ran = self.life.restart()
        assert ran.status == (REFUSED if is_refused else 0), ran
        self.life.await_daemon()
        self.started_at = self.steps

    @precondition(lambda self: self.may_start)
    @rule(strictly=st.booleans())
    def mount_again(self, strictly: bool) -> None:
        self.release_all()
        if self.newest_is_away:
            return
        self.stop_and_read_disks()
        self.mount(strictly)

    @precondition(lambda self: self.may_start)
    @rule(death=deaths)
    def kill_all(self, death: int | None) -> None:
        """Daemon and keeper die at once, and with them the mount."""
        if self.newest_is_away:
            return
        self.life.kill_all(death if self.is_moving else None)
        self.release_all()
        self.life.unmount_dead()
        self.read_disks(is_clean=False)
        self.mount(False)

    def mount(self, strictly: bool) -> None:
        self.configure(is_degraded_allowed=not strictly)
        if strictly and self.refuses_strictly:
            self.refused_mount("disk-missing" if self.away else "gap")
            self.configure(is_degraded_allowed=True)
        self.start()
        self.started_at = self.steps

    # --- agreement -----------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not self.members:
            return
        self.steps += 1
        self.delete_removed()
        self.mount_agrees()
        self.status_agrees()
        with self.life.standing_still():
            self.read_disks(is_clean=False)
        self.lists_agree()

    def mount_agrees(self) -> None:
        visible = self.visible
        assert os.listdir(self.life.pool.mountpoint) == [segment_name(index, SIZE) for index in visible]
        for index, segment in visible.items():
            status = self.path(index).stat()
            assert self.path(index).read_bytes() == segment.file.content, index
            assert (status.st_mode & 0o7777, (status.st_uid, status.st_gid)) == (segment.mode, segment.owner), index
            assert (status.st_mtime_ns, status.st_size) == (segment.mtime_ns, SIZE), index
        for held in self.held:
            assert os.pread(held.fd, SIZE + 1, 0) == held.file.content, held.index

    def status_agrees(self) -> None:
        document = self.life.status()
        disks = [(disk["number"], disk["path"], disk["state"]) for disk in document["disks"]]
        assert disks == [(member.number, str(member.path), member.state) for member in self.present]
        assert sorted(document["missing_disks"]) == sorted(str(member.path) for member in self.away)
        assert document["degraded"] == bool(self.away)
        segments, visible = document["segments"], list(self.visible)
        assert (segments["count"], segments["unsized"]) == (len(visible), 0)
        assert segments["first_offset"] == (visible[0] * SIZE if visible else None)
        assert [(start // SIZE, end // SIZE) for start, end in segments["gaps"]] == self.gaps
        accepted = sum(self.accepted.issuperset(range(*gap)) for gap in self.gaps)
        assert segments["accepted_gaps"] == accepted

    def read_disks(self, *, is_clean: bool) -> None:
        """Each segment has its file on one disk. If a move may have been interrupted, also the file from which
        it was copied."""
        found: dict[int, list[tuple[Member, BackingFile]]] = {}
        for member in self.present:
            for index, file in read_disk(member.path).items():
                found.setdefault(index, []).append((member, file))
        visible = self.visible
        assert sorted(found) == list(visible)
        for index, files in found.items():
            member, file = files[0] if len(files) == 1 else self.copy_among(files)
            paths = [str(file.path) for _, file in files]
            assert len(files) == 1 or not is_clean, f"{paths}\n{self.life.pool.log_path.read_text()[-8000:]}"
            assert file.content == visible[index].file.content, file.path
            visible[index].place = member.path

    def copy_among(self, files: list[tuple[Member, BackingFile]]) -> tuple[Member, BackingFile]:
        """A finished copy among several files of one segment: the other ones are its source, or copies of that."""
        for member, copy in files:
            others = [(former, file) for former, file in files if file is not copy]
            if copy.moved_from is not None and all(
                copy.moved_from in ((former.number, file.ino, file.mtime_ns), file.moved_from)
                for former, file in others
            ):
                assert all(file.content == copy.content for _, file in others)
                return member, copy
        raise AssertionError(f"{[str(file.path) for _, file in files]} are files of one segment")

    def stop_and_read_disks(self) -> None:
        """A native broker would find the whole log, each segment once, and nothing else."""
        self.life.stop()
        self.read_disks(is_clean=True)
        assert [name for member in self.present for name in set_aside(member.path)] == []

    def settled_lists(self) -> list[dict[str, Any]]:
        """The list that each disk records. None is on its way from one disk to the others."""
        lists = [recorded_identity(member.path) for member in self.present]
        assert len({one.get("generation", 0) for one in lists}) == 1
        return lists

    def lists_agree(self) -> None:
        """Each disk records the same list, and no number ever means another disk."""
        lists = eventually(self.settled_lists)
        assert all(one["members"] == lists[0]["members"] for one in lists)
        assert [number for number, _, _ in lists[0]["members"]] == [member.number for member in self.members]
        for number, disk_id, _ in lists[0]["members"]:
            assert self.known_ids.setdefault(number, disk_id) == disk_id
        assert lists[0].get("last_number", DISKS_AT_FIRST) == self.last_number


def run_model(directory: Path, plan: FaultPlan | None, chosen: settings) -> None:
    attributes = {"directory": directory, "faults": plan, "examples": itertools.count()}
    machine = type("DiskLifeModelHere", (DiskLifeModel,), attributes)
    run_state_machine_as_test(machine, settings=settings(chosen, suppress_health_check=list(HealthCheck)))


@pytest.fixture
def plan(workdir: Path) -> FaultPlan | None:
    return None if faults.why_not() else FaultPlan(workdir)


def test_disks_and_model_agree(workdir: Path, plan: FaultPlan | None) -> None:
    """Always the same sequences. A failure is not shrunk here, which would take minutes: the soak does that."""
    run_model(workdir, plan, settings(max_examples=3, stateful_step_count=15, phases=[Phase.generate]))


@pytest.mark.soak
def test_disks_and_model_agree_for_long(workdir: Path, plan: FaultPlan | None) -> None:
    """New sequences in every run; a failure is shrunk and printed with a blob that reproduces it."""
    chosen = settings(max_examples=SOAK_EXAMPLES, stateful_step_count=30, derandomize=False, print_blob=True)
    run_model(workdir, plan, chosen)
