"""Inventory of a pool from the scans of all disks: the catalog, the files that are not in it, the findings.
Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import attrgetter

from commitlogfs.store import layout
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.losses import Loss, is_accepted
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import ino_of, nlink_of, unpack
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.gaps import gaps_between
from commitlogfs.store.moves.former import Damage
from commitlogfs.store.moves.mark import MarkedFile, Source, may_replace, source_of
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Catalog, Role, Segment
from commitlogfs.store.pool.scan import DiskScan
from commitlogfs.store.segment import BaseOffset, format_segment_name, show_name

MADE_AHEAD = 2
"""Number of segments without data that a broker may have made after the one that it writes."""


@dataclass(slots=True)
class Inventory:
    catalog: Catalog
    temporaries: dict[bytes, Segment] = field(default_factory=dict)
    stale_temporaries: list[Segment] = field(default_factory=list)
    """Second names of segments or of other temporaries, left by a rename that a crash interrupted."""
    moved: list[Segment] = field(default_factory=list)
    """Files whose segments were copied to other disks by a move that a crash interrupted just before its end."""
    leftovers: list[Segment] = field(default_factory=list)
    """Empty files of segments or copies that are on another disk, or of segments that were removed meanwhile."""
    quarantined: dict[bytes, str] = field(default_factory=dict)
    """Files that are not served, with the reason. They stay where they are; their names cannot be created."""
    findings: list[Finding] = field(default_factory=list)


def is_empty(segment: Segment) -> bool:
    """Whether the attributes of a file alone show that it holds no data."""
    return segment.size == 0 and nlink_of(segment.attributes) == 1


def take_inventory(
    scans: list[tuple[Disk, DiskScan]],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]] = frozenset(),
    holds_nothing: Callable[[Segment], bool] = is_empty,
    mark_of: Callable[[Segment], Source | None] = lambda _: None,
    damage_of: Callable[[Segment], Damage] = lambda _: Damage(),
    newest_missing: BaseOffset | None = None,
    *,
    is_served: bool = False,
    losses: Sequence[Loss] = (),
    removed_before: int = 0,
    undone_after: int | None = None,
    without_data: Set[tuple[DiskNumber, int]] = frozenset(),
) -> Inventory:
    """Inventory of the pool whose disks have these scans.

    `opened` are files, by disk and inode, that were open in the mount that is taken over. They are served whatever
    their size: the program that has one open, such as a copy, completes it. `holds_nothing` is called for each of
    several files of one segment; it returns False in doubt. So is `mark_of`, which returns the mark of a copy that
    was moved here, or None, and `damage_of`, as ContentRecord.damage. A missing disk may hold any segment up to
    `newest_missing`, which is None if no disk is missing. `is_served`: a running daemon serves the pool. It cuts
    off what is written past a segment's end, at the latest when the file is closed: a longer file counts as whole.
    Gaps of accepted `losses` are noted only. Segments before `removed_before` were removed while the disk that has
    them was away; they are set aside. A power cut may have undone the creation of segments after `undone_after`;
    None if it cannot have, or if a disk is missing. `without_data` are the files before `newest_missing`, by disk
    and inode, that have a size and certainly no data.
    """
    inventory = Inventory(Catalog(segment_size))
    sorting = _SegmentSorting(
        inventory,
        scans,
        segment_size,
        opened,
        holds_nothing,
        mark_of,
        damage_of,
        newest_missing,
        is_served=is_served,
        losses=losses,
        removed_before=removed_before,
        undone_after=undone_after,
        without_data=without_data,
    )
    sorting.run()
    paths = {disk.number: disk.path for disk, _ in scans}
    for copies in _find_temporaries(inventory, scans).values():
        kept = leftovers.keep_one(copies, segment_size, opened, holds_nothing) if len(copies) > 1 else copies[0]
        _place_temporaries(inventory, copies, kept, paths)
    for disk, scan in scans:
        _report_strangers(inventory, disk, scan)
    sized = (segment.base_offset for segment in inventory.catalog if segment.size)
    inventory.findings += gap_findings(gaps_between(sized, segment_size), segment_size, losses)
    return inventory


class _SegmentSorting:
    """Decides of every file with a segment's name whether it is served, a leftover or quarantined.

    Written for 60,000 segments without a fault: faults are searched for in bulk, and reported one by one.
    """

    def __init__(
        self,
        inventory: Inventory,
        scans: list[tuple[Disk, DiskScan]],
        segment_size: int,
        opened: Set[tuple[DiskNumber, int]],
        holds_nothing: Callable[[Segment], bool],
        mark_of: Callable[[Segment], Source | None],
        damage_of: Callable[[Segment], Damage],
        newest_missing: BaseOffset | None,
        *,
        is_served: bool,
        losses: Sequence[Loss],
        removed_before: int,
        undone_after: int | None,
        without_data: Set[tuple[DiskNumber, int]],
    ) -> None:
        """As for take_inventory."""
        self._inventory = inventory
        self._newest_missing = newest_missing
        self._is_served = is_served
        self._losses = losses
        self._undone_after = undone_after
        self._without_data = without_data
        self._segment_size = segment_size
        self._opened = opened
        self._holds_nothing = holds_nothing
        self._paths = {disk.number: disk.path for disk, _ in scans}
        self._found = [
            Segment(base, disk.number, attributes) for disk, scan in scans for base, attributes in scan.segments
        ]
        self._found.sort(key=attrgetter("base_offset"))
        if removed_before:
            removed = [one for one in self._found if one.size and one.base_offset < removed_before]
            _quarantine_removed(inventory, removed, self._paths)
            self._found = [one for one in self._found if not (one.size and one.base_offset < removed_before)]
        self._copies = _same_base_offset(self._found)
        self._moved = {
            base: copy
            for base, copies in self._copies.items()
            if (copy := _moved_copy(copies, segment_size, mark_of, damage_of)) is not None
        }
        """The copies among files of one segment that a move has left."""
        self._kept = {
            base: self._moved.get(base) or leftovers.keep_one(copies, segment_size, opened, holds_nothing)
            for base, copies in self._copies.items()
        }
        self._linked = _same_file(self._found)
        self._served: list[Segment] = []
        self._unsized: list[Segment] = []
        """Those of the served segments that have no size."""
        self._wrong: list[Segment] = []
        """Segments of a wrong size."""

    def run(self) -> None:
        for segment in self._found:
            self._sort(segment)
        if self._newest_missing is not None:
            self._leave_out_unproven(self._newest_missing)
        if self._undone_after is not None:
            self._set_aside_after_undone(self._undone_after)
        self._set_aside_before_beginning()
        self._inventory.catalog = Catalog(self._segment_size, self._served)
        self._report_wrong_sizes()
        self._report_unsized()

    def _is_opened(self, segment: Segment) -> bool:
        return (segment.disk, segment.ino) in self._opened

    def _sort(self, segment: Segment) -> None:
        if segment.base_offset in self._copies and segment is not self._kept[segment.base_offset]:
            self._sort_copy(segment)
        elif group := self._linked.get((segment.disk, segment.ino)):
            _quarantine_linked(self._inventory, segment, group, self._paths)
        elif self._is_wrong_size(segment):
            self._wrong.append(segment)
        else:
            self._served.append(segment)
            if not segment.size:
                self._unsized.append(segment)

    def _is_wrong_size(self, segment: Segment) -> bool:
        if segment.size in (0, self._segment_size) or self._is_opened(segment):
            return False
        return segment.size < self._segment_size or not self._is_served

    def _sort_copy(self, segment: Segment) -> None:
        kept, copies = self._kept[segment.base_offset], self._copies[segment.base_offset]
        if kept is not None and segment.base_offset in self._moved:
            _report_moved(self._inventory, segment, self._paths, self._paths[kept.disk])
        elif kept is not None:
            reason = f"the segment is on {self._paths[kept.disk]}"
            _set_leftover_aside(self._inventory, segment, self._paths, reason)
        elif segment is copies[0]:  # one finding for all copies
            _quarantine_copies(self._inventory, copies, self._paths)

    def _leave_out_unproven(self, newest_missing: BaseOffset) -> None:
        """Files without data: the messages may be on the missing disk. Only the newest segment can be whole without
        data, since a broker makes one ahead."""
        whole = [
            segment
            for segment in self._served
            if (segment.disk, segment.ino) in self._without_data and segment.base_offset < newest_missing
        ]
        empty = [one for one in self._unsized if one.base_offset <= newest_missing]
        unproven = [segment for segment in (*whole, *empty) if not self._is_opened(segment)]
        self._leave_out(unproven)
        for segment in unproven:
            _report_unproven(self._inventory, segment, self._paths)

    def _set_aside_after_undone(self, undone_after: int) -> None:
        """Segments made ahead, without data, after one whose creation a power cut has undone: two disks commit in
        any order. The log ends before the gap, and a broker makes them again."""
        newest = list(islice((segment for segment in reversed(self._served) if segment.size), MADE_AHEAD + 1))
        for count, (after, before) in enumerate(pairwise(newest), 1):
            start, end = before.base_offset + self._segment_size, after.base_offset
            if start < end:
                ahead = newest[:count]
                break
        else:
            return
        is_loss = is_accepted(self._losses, start, end, self._segment_size)
        if is_loss or not self._was_undone(start, end, undone_after):
            return
        if any(self._is_opened(segment) or not self._holds_nothing(segment) for segment in ahead):
            return
        self._leave_out(ahead)
        for segment in reversed(ahead):
            _set_leftover_aside(self._inventory, segment, self._paths, "a power cut has undone the one before it")

    def _was_undone(self, start: int, end: int, undone_after: int) -> bool:
        """Whether a power cut can have undone all segments of a gap, or their sizes."""
        empty = {segment.base_offset for segment in self._unsized}
        found = {segment.base_offset for segment in self._found}
        bases = range(start, end, self._segment_size)
        return all(base in empty or (base > undone_after and base not in found) for base in bases)

    def _set_aside_before_beginning(self) -> None:
        """Empty files before the first segment with content: the segments of these names have been removed."""
        first_sized = next((segment.base_offset for segment in self._served if segment.size), None)
        if first_sized is None:
            return
        removed = [
            segment
            for segment in self._unsized
            if segment.base_offset < first_sized and is_empty(segment) and not self._is_opened(segment)
        ]
        self._leave_out(removed)
        for segment in removed:
            _set_leftover_aside(self._inventory, segment, self._paths, "the log begins after it")

    def _leave_out(self, segments: list[Segment]) -> None:
        """Serve these segments no longer."""
        left_out = frozenset(segments)
        self._served = [segment for segment in self._served if segment not in left_out]
        self._unsized = [segment for segment in self._unsized if segment not in left_out]

    def _report_wrong_sizes(self) -> None:
        if not self._wrong:
            return
        remedy = _remedy_for_wrong_sizes(self._wrong, all_of_them=len(self._served) == len(self._unsized))
        for segment in self._wrong:
            _quarantine_wrong_size(self._inventory, segment, self._segment_size, self._paths, remedy)

    def _report_unsized(self) -> None:
        last_sized = max((segment.base_offset for segment in self._served if segment.size), default=-1)
        for segment in self._unsized:
            is_last = segment.base_offset > last_sized
            _report_unsized(self._inventory, segment, self._paths, is_last=is_last)


def _same_base_offset(found: list[Segment]) -> dict[BaseOffset, list[Segment]]:
    """Segments that are on more than one disk, by base offset."""
    groups: dict[BaseOffset, list[Segment]] = defaultdict(list)
    for one, other in pairwise(found):
        if one.base_offset == other.base_offset:
            group = groups[one.base_offset]
            group += [other] if group else [one, other]
    return groups


def _same_file(found: list[Segment]) -> dict[tuple[DiskNumber, int], list[Segment]]:
    """Files with more than one segment's name (hard links), by disk and inode."""
    groups: dict[tuple[DiskNumber, int], list[Segment]] = defaultdict(list)
    for segment in found:
        if nlink_of(segment.attributes) > 1:
            groups[segment.disk, segment.ino].append(segment)
    return {key: group for key, group in groups.items() if len(group) > 1}


def _set_leftover_aside(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str], reason: str) -> None:
    segment.role = Role.GIVEN_UP
    inventory.leftovers.append(segment)
    inventory.findings.append(
        Finding(
            FindingCode.EMPTY_LEFTOVER,
            Severity.NOTE,
            paths[segment.disk],
            segment.name.decode(),
            f"holds no data, and {reason} (left by a disk that failed, or by a power cut)",
            "nothing to do: the mount removes it while the disk is writable",
        )
    )


def _moved_copy(
    copies: list[Segment],
    segment_size: int,
    mark_of: Callable[[Segment], Source | None],
    damage_of: Callable[[Segment], Damage],
) -> Segment | None:
    """The one of several files of one segment that is the segment, because moves have left the others; None if it
    is not clear which. Of equal copies it is the best one, and of those that seem equally good the latest: that was
    the segment while the disks of the others were away, which may come back as bad copies of themselves.

    The mark of a copy does not fit a source that was written to since. Then it is not clear which file is right.
    """
    if any(copy.size != segment_size for copy in copies):
        return None
    marked = [MarkedFile(source_of(copy.disk, unpack(copy.attributes)), mark_of(copy)) for copy in copies]
    possible = [
        at
        for at, file in enumerate(marked)
        if all(may_replace(file, other) for other in marked if other is not file)
    ]
    if len({marked[at].mark for at in possible}) != 1:
        return None
    found = [copies[at] for at in possible]
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda copy: (damage_of(copy), -unpack(copy.attributes).ctime_ns))


def _report_moved(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str], where: str) -> None:
    segment.role = Role.MOVED
    inventory.moved.append(segment)
    inventory.findings.append(
        Finding(
            FindingCode.UNFINISHED_MOVE,
            Severity.NOTE,
            paths[segment.disk],
            segment.name.decode(),
            f"was moved to {where}, where its copy is complete and verified; this file is not served",
            "nothing to do: the mount compares the two, and removes this one if it is not needed and its disk is "
            "writable; before a native broker uses the disks, run `commitlogfs check --repair`",
        )
    )


def _quarantine_copies(inventory: Inventory, copies: list[Segment], paths: dict[DiskNumber, str]) -> None:
    name = copies[0].name
    where = [paths[segment.disk] for segment in copies]
    inventory.quarantined[name] = "it is on more than one disk"
    inventory.findings.append(
        Finding(
            FindingCode.DUPLICATE_SEGMENT,
            Severity.REFUSES,
            where[0],
            name.decode(),
            f"the same segment is on {' and '.join(where)}",
            "compare them with `cmp`: if they are equal, move all but one away, "
            "else those that hold zeros from the first difference on",
        )
    )


def _quarantine_linked(
    inventory: Inventory, segment: Segment, group: list[Segment], paths: dict[DiskNumber, str]
) -> None:
    others = " and ".join(other.name.decode() for other in group if other is not segment)
    inventory.quarantined[segment.name] = f"it is the same file as {others}"
    inventory.findings.append(
        Finding(
            FindingCode.DUPLICATE_SEGMENT,
            Severity.REFUSES,
            paths[segment.disk],
            segment.name.decode(),
            f"the same file as {others} (a hard link)",
            "keep the name that equals the physical offset of its first message; move the other away",
        )
    )


def _quarantine_removed(inventory: Inventory, removed: list[Segment], paths: dict[DiskNumber, str]) -> None:
    """One finding for each disk."""
    by_disk: dict[DiskNumber, list[Segment]] = defaultdict(list)
    for segment in removed:
        inventory.quarantined[segment.name] = f"the log removed it while {paths[segment.disk]} was away"
        by_disk[segment.disk].append(segment)
    for disk, segments in by_disk.items():
        first, last = segments[0].name.decode(), segments[-1].name.decode()
        names, verb = (first, "was") if len(segments) == 1 else (f"{first} to {last}", "were")
        count = "a segment" if len(segments) == 1 else f"{len(segments):,} segments"
        inventory.findings.append(
            Finding(
                FindingCode.REMOVED_SEGMENTS,
                Severity.WARNING,
                paths[disk],
                names,
                f"{count} of the log that {verb} removed while this disk was away; kept, and not served",
                "delete the files of these names on this disk: the log begins after them",
            )
        )


def _remedy_for_wrong_sizes(wrong: list[Segment], *, all_of_them: bool) -> str | None:
    """Remedy if all segments have the same other size, as the pool's size is then probably wrong; else None."""
    if all_of_them and len(wrong) > 1 and len({segment.size for segment in wrong}) == 1:
        return (
            "all segments have this size; if it is the broker's mappedFileSizeCommitLog, the pool was made with a "
            f"wrong segment_size: remove its identity (setfattr -x {layout.XATTR_IDENTITY} DISK) from each disk, "
            f"write segment_size = {wrong[0].size}, and run `commitlogfs adopt`"
        )
    return None


def _quarantine_wrong_size(
    inventory: Inventory, segment: Segment, segment_size: int, paths: dict[DiskNumber, str], remedy: str | None
) -> None:
    if segment.size > segment_size and remedy is None:
        remedy = f"cut off what was written past its end: `truncate -s {segment_size} FILE`"
    inventory.quarantined[segment.name] = f"its size is {segment.size}, not {segment_size}"
    inventory.findings.append(
        Finding(
            FindingCode.WRONG_SIZE,
            Severity.REFUSES,
            paths[segment.disk],
            segment.name.decode(),
            f"size {segment.size} instead of {segment_size}",
            remedy or "complete or repeat the copy that made it, or move it out of the directory",
        )
    )


def _report_unsized(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str], *, is_last: bool) -> None:
    if is_last:
        severity, message = Severity.NOTE, "created, but without its size"
        remedy = "nothing to do: the broker continues with it; without a broker, remove it"
    else:
        severity, message = (
            Severity.WARNING,
            "empty, before segments with content (perhaps a copy undone by a power cut)",
        )
        remedy = "repeat the copy, or remove the file"
    finding = Finding(
        FindingCode.UNSIZED_SEGMENT, severity, paths[segment.disk], segment.name.decode(), message, remedy
    )
    inventory.findings.append(finding)


def _report_unproven(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str]) -> None:
    """Report an empty file that may be a leftover. No quarantine: CommitLog refuses to create the name anyway."""
    inventory.findings.append(
        Finding(
            FindingCode.UNSIZED_SEGMENT,
            Severity.WARNING,
            paths[segment.disk],
            segment.name.decode(),
            "without data, not served: a missing disk may hold the segment itself",
            "bring back the missing disk; the file stays until then",
        )
    )


def _find_temporaries(
    inventory: Inventory, scans: list[tuple[Disk, DiskScan]]
) -> defaultdict[bytes, list[Segment]]:
    """The temporaries by name, without second names of segments or of other temporaries."""
    found: defaultdict[bytes, list[Segment]] = defaultdict(list)
    for disk, scan in scans:
        if not scan.temporaries:
            continue
        named_inos = {ino_of(attributes) for _, attributes in scan.segments}
        for name, base, attributes in scan.temporaries:
            temporary = Segment(base, disk.number, attributes, Role.TEMPORARY, name)
            if temporary.ino in named_inos:
                inventory.stale_temporaries.append(temporary)
            else:
                named_inos.add(temporary.ino)
                found[name].append(temporary)
    return found


def _place_temporaries(
    inventory: Inventory, copies: list[Segment], kept: Segment | None, paths: dict[DiskNumber, str]
) -> None:
    """`copies` have the same name on different disks. `kept` is the one of them that is served, or None."""
    name = copies[0].name
    if kept is None:
        inventory.quarantined[name] = "it is on more than one disk"
    else:
        inventory.temporaries[name] = kept
    for temporary in copies:
        if kept is not None and temporary is not kept:
            _set_leftover_aside(inventory, temporary, paths, f"the copy is on {paths[kept.disk]}")
            continue
        inventory.findings.append(
            Finding(
                FindingCode.UNFINISHED_COPY,
                Severity.NOTE,
                paths[temporary.disk],
                name.decode(),
                "a copy that was not finished",
                "repeat the copy, then remove this file through the mount",
            )
        )


def _report_strangers(inventory: Inventory, disk: Disk, scan: DiskScan) -> None:
    for name, kind in scan.irregular:
        inventory.quarantined[name] = f"it is a {kind} on {disk.path}"
        inventory.findings.append(
            Finding(
                FindingCode.NOT_A_REGULAR_FILE,
                Severity.WARNING,
                disk.path,
                name.decode(),
                f"a {kind} with the name of a segment; it is not served",
                "find out which program made it, and remove it",
            )
        )
    for name in scan.aliens:
        inventory.findings.append(
            Finding(
                FindingCode.ALIEN_FILE,
                Severity.WARNING,
                disk.path,
                show_name(name),
                "not a segment of this pool; it is not served",
                "move it away: a native broker would refuse to start",
            )
        )


def gap_findings(gaps: Iterable[tuple[BaseOffset, BaseOffset]], size: int, losses: Sequence[Loss]) -> list[Finding]:
    """The findings for gaps [start, end) of a log with this segment size. Those of accepted losses are notes."""
    findings = []
    for start, end in gaps:
        count = (end - start) // size
        last = format_segment_name(end - size).decode()
        names = format_segment_name(start).decode() + (f" to {last}" if count > 1 else "")
        accepted = is_accepted(losses, start, end, size)
        findings.append(
            Finding(
                FindingCode.ACCEPTED_LOSS if accepted else FindingCode.GAP,
                Severity.NOTE if accepted else Severity.REFUSES,
                "",
                names,
                f"{count} segment{'s are' if count > 1 else ' is'} missing in the middle of the log",
                "nothing to do: a disk that held them was given up"
                if accepted
                else "bring back the disk or the files (an empty file counts as missing)",
            )
        )
    return findings
