"""All disks' scans put together: the catalog, what is kept out of it, and the findings. Pure."""

from collections import defaultdict
from dataclasses import dataclass, field

from commitlogfs.store.attributes import ino_of, size_of
from commitlogfs.store.catalog import Catalog, Role, Segment
from commitlogfs.store.disk import Disk
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.scan import DiskScan
from commitlogfs.store.segment import BaseOffset, format_segment_name


@dataclass(slots=True)
class Inventory:
    catalog: Catalog
    temporaries: dict[bytes, Segment] = field(default_factory=dict)
    stale_temporaries: list[Segment] = field(default_factory=list)
    """Second names of files that already are segments: a rename that a crash cut in half."""
    quarantined: dict[bytes, str] = field(default_factory=dict)
    """Names that are kept, not served, and cannot be created again, with the reason."""
    findings: list[Finding] = field(default_factory=list)


def take_inventory(scans: list[tuple[Disk, DiskScan]], segment_size: int) -> Inventory:
    inventory = Inventory(Catalog(segment_size))
    _place_segments(inventory, scans, segment_size)
    for disk, scan in scans:
        _place_temporaries(inventory, disk, scan)
        _report_strangers(inventory, disk, scan)
    _report_gaps(inventory)
    return inventory


def _place_segments(inventory: Inventory, scans: list[tuple[Disk, DiskScan]], segment_size: int) -> None:
    copies: dict[BaseOffset, list[Segment]] = defaultdict(list)
    disks = {disk.number: disk for disk, _ in scans}
    for disk, scan in scans:
        for base, attributes in scan.segments:
            copies[base].append(Segment(base, disk.number, attributes))
    for base in sorted(copies):
        segments = copies[base]
        name = format_segment_name(base)
        if len(segments) > 1:
            inventory.quarantined[name] = "it lies on more than one disk"
            paths = " and ".join(disks[segment.disk].path for segment in segments)
            inventory.findings.append(
                Finding(
                    FindingCode.DUPLICATE_SEGMENT,
                    Severity.REFUSES,
                    disks[segments[0].disk].path,
                    name.decode(),
                    f"the same segment lies on {paths}",
                    "compare the two (cmp), keep the one with the newer messages, move the other away",
                )
            )
            continue
        (segment,) = segments
        size = size_of(segment.attributes)
        if size not in (0, segment_size):
            inventory.quarantined[name] = f"its size is {size}, not {segment_size}"
            inventory.findings.append(
                Finding(
                    FindingCode.WRONG_SIZE,
                    Severity.REFUSES,
                    disks[segment.disk].path,
                    name.decode(),
                    f"size {size} instead of {segment_size}",
                    "finish or repeat the copy that made it, or move it out of the folder",
                )
            )
            continue
        if size == 0:
            inventory.findings.append(
                Finding(
                    FindingCode.UNSIZED_SEGMENT,
                    Severity.NOTE,
                    disks[segment.disk].path,
                    name.decode(),
                    "created but never given its size",
                    "nothing to do: the broker continues with it, or remove it",
                )
            )
        inventory.catalog.add(segment)


def _place_temporaries(inventory: Inventory, disk: Disk, scan: DiskScan) -> None:
    segment_inos = {ino_of(attributes) for _, attributes in scan.segments}
    for name, base, attributes in scan.temporaries:
        temporary = Segment(base, disk.number, attributes, Role.TEMPORARY, name)
        if temporary.ino in segment_inos:
            inventory.stale_temporaries.append(temporary)
            continue
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
                name.decode(errors="backslashreplace"),
                "no segment of this pool, not served",
                "move it away: a native broker would refuse to start on it",
            )
        )


def _report_gaps(inventory: Inventory) -> None:
    sized = Catalog(inventory.catalog.segment_size)
    for segment in inventory.catalog:
        if segment.size:
            sized.add(segment)
    size = sized.segment_size
    for start, end in sized.gaps():
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
                'bring back the disk or files that hold them, or set on_missing = "degraded" to serve the rest',
            )
        )
