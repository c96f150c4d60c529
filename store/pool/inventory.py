"""All disks' scans put together: the catalog, what is kept out of it, and the findings. Pure."""

from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from commitlogfs.store import layout
from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.identity import DiskNumber
from commitlogfs.store.files.attributes import ino_of, nlink_of
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.pool import leftovers
from commitlogfs.store.pool.catalog import Catalog, Role, Segment, gaps_between
from commitlogfs.store.pool.scan import DiskScan
from commitlogfs.store.segment import BaseOffset, format_segment_name, show_name


@dataclass(slots=True)
class Inventory:
    catalog: Catalog
    temporaries: dict[bytes, Segment] = field(default_factory=dict)
    stale_temporaries: list[Segment] = field(default_factory=list)
    """Second names of segments or of other temporaries: a rename that a crash cut in half."""
    leftovers: list[Segment] = field(default_factory=list)
    """Empty files of failed disks: the segment lies elsewhere, or came and went meanwhile."""
    quarantined: dict[bytes, str] = field(default_factory=dict)
    """Names that are kept, not served, and cannot be created again, with the reason."""
    findings: list[Finding] = field(default_factory=list)


def is_empty(segment: Segment) -> bool:
    """Whether a file certainly holds no data, by its attributes alone."""
    return segment.size == 0 and nlink_of(segment.attributes) == 1


def take_inventory(
    scans: list[tuple[Disk, DiskScan]],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]] = frozenset(),
    holds_nothing: Callable[[Segment], bool] = is_empty,
    newest_missing: BaseOffset | None = None,
) -> Inventory:
    """`opened` are files, by disk and inode, that a mount goes on with. Whoever uses one puts a wrong size right,
    as a copy does. `holds_nothing` is asked about each of several copies of one segment; False in doubt. A disk
    that is missing may hold any segment up to `newest_missing`; None where no disk is missing."""
    inventory = Inventory(Catalog(segment_size))
    _place_segments(inventory, scans, segment_size, opened, holds_nothing, newest_missing)
    for disk, scan in scans:
        _place_temporaries(inventory, disk, scan)
        _report_strangers(inventory, disk, scan)
    _report_gaps(inventory)
    return inventory


def _place_segments(
    inventory: Inventory,
    scans: list[tuple[Disk, DiskScan]],
    segment_size: int,
    opened: Set[tuple[DiskNumber, int]],
    holds_nothing: Callable[[Segment], bool],
    newest_missing: BaseOffset | None,
) -> None:
    """Written for 60,000 segments without a fault: what is wrong is looked for in bulk, and told one by one."""
    paths = {disk.number: disk.path for disk, _ in scans}
    found = [Segment(base, disk.number, attributes) for disk, scan in scans for base, attributes in scan.segments]
    found.sort(key=attrgetter("base_offset"))
    doubled = _same_base_offset(found)
    kept = {
        base: leftovers.keep_one(copies, segment_size, opened, holds_nothing) for base, copies in doubled.items()
    }
    linked = _same_file(found)
    served, unsized, wrong = [], [], []
    for segment in found:
        if segment.base_offset in doubled and segment is not kept[segment.base_offset]:
            real, copies = kept[segment.base_offset], doubled[segment.base_offset]
            if real is not None:
                _set_leftover_aside(inventory, segment, paths, f"the segment lies on {paths[real.disk]}")
            elif segment is copies[0]:
                _quarantine_copies(inventory, copies, paths)
        elif (segment.disk, segment.ino) in linked:
            _quarantine_linked(inventory, segment, linked[segment.disk, segment.ino], paths)
        elif segment.size == segment_size or (segment.size and (segment.disk, segment.ino) in opened):
            served.append(segment)
        elif segment.size:
            wrong.append(segment)
        else:
            unsized.append(segment)
            served.append(segment)
    for segment in unsized[:]:
        may_be_leftover = newest_missing is not None and segment.base_offset <= newest_missing
        if may_be_leftover and (segment.disk, segment.ino) not in opened:
            unsized.remove(segment)
            served.remove(segment)
            _report_unproven(inventory, segment, paths)
    first_sized = next((segment.base_offset for segment in served if segment.size), None)
    for segment in unsized[:]:
        # Nobody gets at it: what was the log's beginning once has been removed, and this is no part of it.
        is_before = first_sized is not None and segment.base_offset < first_sized
        if is_before and is_empty(segment) and (segment.disk, segment.ino) not in opened:
            unsized.remove(segment)
            served.remove(segment)
            _set_leftover_aside(inventory, segment, paths, "the log begins after it")
    inventory.catalog = Catalog(segment_size, served)
    if wrong:
        remedy = _remedy_for_wrong_sizes(wrong, all_of_them=len(served) == len(unsized))
        for segment in wrong:
            _quarantine_wrong_size(inventory, segment, segment_size, paths, remedy)
    if unsized:
        last_sized = max((segment.base_offset for segment in served if segment.size), default=-1)
        for segment in unsized:
            _report_unsized(inventory, segment, paths, is_last=segment.base_offset > last_sized)


def _same_base_offset(found: list[Segment]) -> dict[BaseOffset, list[Segment]]:
    """Segments that lie on more than one disk, by base offset."""
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
            f"holds no data, and {reason}: left by a disk that failed, or by a copy that a power cut undid",
            "nothing to do: the mount removes it while the disk is writable",
        )
    )


def _quarantine_copies(inventory: Inventory, copies: list[Segment], paths: dict[DiskNumber, str]) -> None:
    name = copies[0].name
    where = [paths[segment.disk] for segment in copies]
    inventory.quarantined[name] = "it lies on more than one disk"
    inventory.findings.append(
        Finding(
            FindingCode.DUPLICATE_SEGMENT,
            Severity.REFUSES,
            where[0],
            name.decode(),
            f"the same segment lies on {' and '.join(where)}",
            "compare the two (cmp), keep the one with the newer messages, move the other away",
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
            "its first message's physical offset tells which name is right: move the other away",
        )
    )


def _remedy_for_wrong_sizes(wrong: list[Segment], *, all_of_them: bool) -> str:
    """Where no segment has the pool's size and all have the same other one, the pool is more likely to be wrong."""
    if all_of_them and len(wrong) > 1 and len({segment.size for segment in wrong}) == 1:
        return (
            "all segments have this size; if it is the broker's mappedFileSizeCommitLog, the pool was made with a "
            f"wrong segment_size: remove its identity (setfattr -x {layout.XATTR_IDENTITY} DISK) from each disk, "
            f"write segment_size = {wrong[0].size}, and run `commitlogfs adopt`"
        )
    return "finish or repeat the copy that made it, or move it out of the folder"


def _quarantine_wrong_size(
    inventory: Inventory, segment: Segment, segment_size: int, paths: dict[DiskNumber, str], remedy: str
) -> None:
    inventory.quarantined[segment.name] = f"its size is {segment.size}, not {segment_size}"
    inventory.findings.append(
        Finding(
            FindingCode.WRONG_SIZE,
            Severity.REFUSES,
            paths[segment.disk],
            segment.name.decode(),
            f"size {segment.size} instead of {segment_size}",
            remedy,
        )
    )


def _report_unsized(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str], *, is_last: bool) -> None:
    if is_last:
        severity, message = Severity.NOTE, "created but never given its size"
        remedy = "nothing to do: the broker continues with it, or remove it"
    else:
        severity, message = Severity.WARNING, "empty, before segments with content"
        remedy = "a copy that a power cut undid? Repeat it, or remove the file"
    finding = Finding(
        FindingCode.UNSIZED_SEGMENT, severity, paths[segment.disk], segment.name.decode(), message, remedy
    )
    inventory.findings.append(finding)


def _report_unproven(inventory: Inventory, segment: Segment, paths: dict[DiskNumber, str]) -> None:
    """Not quarantined: as for every other segment of a missing disk, CommitLog refuses to create the name."""
    inventory.findings.append(
        Finding(
            FindingCode.UNSIZED_SEGMENT,
            Severity.WARNING,
            paths[segment.disk],
            segment.name.decode(),
            "empty, not served: a missing disk may hold the segment itself",
            "bring back the missing disk; nothing is removed before",
        )
    )


def _place_temporaries(inventory: Inventory, disk: Disk, scan: DiskScan) -> None:
    if not scan.temporaries:
        return
    named_inos = {ino_of(attributes) for _, attributes in scan.segments}
    for name, base, attributes in scan.temporaries:
        temporary = Segment(base, disk.number, attributes, Role.TEMPORARY, name)
        if temporary.ino in named_inos:
            inventory.stale_temporaries.append(temporary)
            continue
        named_inos.add(temporary.ino)
        if name in inventory.temporaries:
            inventory.quarantined[name] = "it lies on more than one disk"
            del inventory.temporaries[name]
        elif name not in inventory.quarantined:
            inventory.temporaries[name] = temporary
        inventory.findings.append(
            Finding(
                FindingCode.UNFINISHED_COPY,
                Severity.NOTE,
                disk.path,
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
                f"a {kind} with the name of a segment, never followed",
                "find out who made it and remove it",
            )
        )
    for name in scan.aliens:
        inventory.findings.append(
            Finding(
                FindingCode.ALIEN_FILE,
                Severity.WARNING,
                disk.path,
                show_name(name),
                "no segment of this pool, not served",
                "move it away: a native broker would refuse to start on it",
            )
        )


def _report_gaps(inventory: Inventory) -> None:
    size = inventory.catalog.segment_size
    sized = (segment.base_offset for segment in inventory.catalog if segment.size)
    for start, end in gaps_between(sized, size):
        count = (end - start) // size
        last = format_segment_name(end - size).decode()
        names = format_segment_name(start).decode() + (f" to {last}" if count > 1 else "")
        inventory.findings.append(
            Finding(
                FindingCode.GAP,
                Severity.REFUSES,
                "",
                names,
                f"{count} segment{'s are' if count > 1 else ' is'} missing in the middle of the log",
                "bring back the disk or files that hold them (a file without size counts as missing)",
            )
        )
