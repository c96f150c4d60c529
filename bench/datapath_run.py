"""The data path: all targets mounted side by side on the same disks, workload after workload, in rounds."""

from contextlib import ExitStack
from pathlib import Path

from commitlogfs.bench import datapath_workloads as workloads
from commitlogfs.bench import targets
from commitlogfs.bench.catalog_figures import make_sparse_segments
from commitlogfs.bench.datapath_readers import read_at_once
from commitlogfs.bench.datapath_rounds import Collected, Series, Tell, in_turn
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.datapath_workloads import Workload
from commitlogfs.bench.served import CommandFailedError
from commitlogfs.bench.targets import DataTarget
from commitlogfs.bench.targets_disks import BenchDisks

LISTED_SEGMENT_BYTES = 64 << 10

DATA_WORKLOADS = (
    Workload("append-sync", "MB/s", "16 KiB stores into a map, msync after each", workloads.append_sync),
    Workload("append", "MB/s", "16 KiB stores into a map, msync every 4 MiB", workloads.append),
    Workload("read-cold", "MB/s", "sequential, 1 MiB at a time, cold", workloads.read_cold),
    Workload("read-warm", "MB/s", "the same, from the page cache", workloads.read_warm),
    Workload("random-cold", "reads/s", "4 KiB at random, cold", workloads.random_cold),
    Workload("readers-cold", "MB/s", "processes that each read another segment, cold", read_at_once),
    Workload("create", "creates/s", "create, reserve, set the size, first 16 KiB", workloads.create),
)
LIST_WORKLOAD = Workload("list", "segments/s", "list all segments with stat", workloads.list_and_stat)


def needed_bytes(settings: Settings) -> int:
    """Required size of one disk: the segments of all targets, and free space for the thresholds."""
    per_target = (settings.readers + 2) * settings.segment_bytes
    return max(5 * per_target * 3 // 2 // settings.disks, 2 * settings.segment_bytes) + (384 << 20)


def measure_data_path(work: Path, disks: BenchDisks, settings: Settings, tell: Tell, found: Collected) -> None:
    """Run all workloads. Raises WrongResultError, CommandFailedError, OSError."""
    with ExitStack() as stack:
        mounted = _data_targets(stack, work / "data", disks, settings, found.left_out)
        found.about |= {target.name: target.description for target in mounted}
        for target in mounted:
            tell(f"{target.name}: writing the segments that will be read")
            workloads.fill_for_readers(target, settings)
        for workload in DATA_WORKLOADS:
            found.series.append(_rounds(workload, mounted, disks, settings, tell))
    with ExitStack() as stack:
        listed = _listed_targets(stack, work / "listed", disks, settings, found.left_out)
        found.series.append(_rounds(LIST_WORKLOAD, listed, disks, settings, tell))


def _rounds(
    workload: Workload, found: list[DataTarget], disks: BenchDisks, settings: Settings, tell: Tell
) -> Series:
    series = Series(workload.name, workload.unit, workload.about)
    for turn in range(settings.rounds):
        for target in in_turn(found, turn):
            tell(f"{workload.name}: round {turn + 1} of {settings.rounds}, {target.name}")
            disks.commit()
            series.add(target.name, workload.measure(target, settings))
    return series


def _data_targets(
    stack: ExitStack, work: Path, disks: BenchDisks, settings: Settings, left_out: dict[str, str]
) -> list[DataTarget]:
    size = settings.segment_bytes
    found = [targets.native(disks.paths, size), targets.native(disks.paths, size, targets.CONTROL)]
    for name in (targets.MOUNT, targets.PLAIN):
        try:
            found.append(stack.enter_context(targets.served(name, work / name, disks.paths, size)))
        except CommandFailedError as error:
            if name == targets.PLAIN:
                raise
            left_out[name] = str(error)
    if targets.mergerfs_version():
        found.append(stack.enter_context(targets.mergerfs(work / targets.MERGERFS, disks.paths, size)))
    else:
        left_out[targets.MERGERFS] = "not installed; apt-get install mergerfs"
    return found


def _listed_targets(
    stack: ExitStack, work: Path, disks: BenchDisks, settings: Settings, left_out: dict[str, str]
) -> list[DataTarget]:
    """The same targets with many small segments, which are made in the disks' directories before."""
    size = LISTED_SEGMENT_BYTES
    paths = [disk / "listed" for disk in disks.paths]
    for path in paths:
        path.mkdir()
    names = [targets.NATIVE, targets.CONTROL, targets.MOUNT, targets.PLAIN, targets.MERGERFS]
    for name in (name for name in names if name not in left_out):
        make_sparse_segments([path / name for path in paths], settings.listed, size)
    found = [targets.native(paths, size), targets.native(paths, size, targets.CONTROL)]
    for name in (targets.MOUNT, targets.PLAIN):
        if name not in left_out:
            served = targets.served(name, work / name, paths, size, adopt=True)
            found.append(stack.enter_context(served))
    if targets.MERGERFS not in left_out:
        found.append(stack.enter_context(targets.mergerfs(work / targets.MERGERFS, paths, size)))
    return found
