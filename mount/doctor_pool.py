"""`doctor` on one configuration: its disks, its mountpoint, the store root around it."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from commitlogfs.mount import mountinfo
from commitlogfs.mount.config import Config
from commitlogfs.mount.diagnosis import Check, Level, from_finding, ok
from commitlogfs.mount.doctor_broker import find_broker, judge_locale, judge_mappings, judge_open_files
from commitlogfs.mount.doctor_machine import dead_mount, judge_allow_other
from commitlogfs.mount.errors import RefusedError
from commitlogfs.mount.guard import BareState, check_bare, is_immutable
from commitlogfs.mount.mounting import disk_specs
from commitlogfs.mount.probe import probe_mount
from commitlogfs.mount.words import approximate_size, count_of
from commitlogfs.store.errors import FolderError, PoolError
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.membership import OpenFolder, compare_folders, open_spec
from commitlogfs.store.thresholds import Thresholds
from commitlogfs.store.usage import DiskUsage, measure_usage

_PROBE_TIMEOUT_S: Final = 3.0
_SPARE_INODES: Final = 64


def examine_pool(config: Config) -> list[Check]:
    with contextlib.ExitStack() as stack:
        folders, checks = _open_disks(config, stack)
        capacities: dict[int, int] = {}
        for folder in folders:
            usage = measure_usage(folder.dirfd)
            capacities[folder.device] = segments_possible(usage, config.segment_size)
            checks += [_judge_disk(folder, usage), *_judge_mode(folder), *_judge_inodes(folder, usage, config)]
        checks += [from_finding(finding) for finding in compare_folders(folders)]
        checks += _judge_identities(folders)
    capacity = sum(capacities.values())
    broker = find_broker(config.mountpoint)
    return [
        *checks,
        check_mountpoint(config.mountpoint),
        check_store_root(config.mountpoint, config.thresholds),
        judge_allow_other(wanted=config.allow_other, root=os.geteuid() == 0, fuse_conf=_read("/etc/fuse.conf")),
        judge_open_files(capacity, broker),
        judge_mappings(capacity, int(_read("/proc/sys/vm/max_map_count") or 65530)),
        judge_locale(broker),
    ]


def segments_possible(usage: DiskUsage, segment_size: int) -> int:
    """How many segments fit on a disk that holds nothing else."""
    return usage.total_bytes // segment_size


# --- disks -----------------------------------------------------------------------------------------------


def _open_disks(config: Config, stack: contextlib.ExitStack) -> tuple[list[OpenFolder], list[Check]]:
    folders: list[OpenFolder] = []
    checks: list[Check] = []
    for spec in disk_specs(config):
        try:
            folder = open_spec(spec)
        except FolderError as error:
            checks.append(Check("disk", Level.PROBLEM, f"{error.path}: {error.reason}", error.remedy))
        except PoolError as error:
            checks.append(Check("disk", Level.PROBLEM, str(error), ""))
        else:
            stack.callback(os.close, folder.dirfd)
            folders.append(folder)
    return folders, checks


def _judge_disk(folder: OpenFolder, usage: DiskUsage) -> Check:
    text = f"{folder.spec.path}: {folder.filesystem.name}, {approximate_size(usage.total_bytes)}, "
    text += f"{usage.used_percent:.1f} % used"
    if os.fstatvfs(folder.dirfd).f_flag & os.ST_RDONLY:
        return Check(
            "disk", Level.NOTE, f"{text}, read-only", "no new segments go here; remount it if not intended"
        )
    return ok("disk", text)


def _judge_mode(folder: OpenFolder) -> list[Check]:
    mode = stat.S_IMODE(os.fstat(folder.dirfd).st_mode)
    if not mode & 0o077:
        return []
    path = folder.spec.path
    message = f"{path}: mode {mode:04o} lets other users in past the mount"
    return [Check(FindingCode.FOLDER_OPEN_TO_OTHERS.value, Level.NOTE, message, f"chmod 0700 {path}")]


def _judge_inodes(folder: OpenFolder, usage: DiskUsage, config: Config) -> list[Check]:
    st = os.fstatvfs(folder.dirfd)
    wanted = usage.available_bytes // config.segment_size + _SPARE_INODES
    if not st.f_files or st.f_favail >= wanted:
        return []
    message = f"{folder.spec.path}: {count_of(st.f_favail, 'inode')} free, fewer than segments would fit"
    return [Check("inodes", Level.WARNING, message, "remove other files from that filesystem")]


def _judge_identities(folders: list[OpenFolder]) -> list[Check]:
    bare = [folder.spec.path for folder in folders if folder.identity is None]
    if not bare:
        return []
    if len(bare) == len(folders):
        message = f"{', '.join(bare)}: no pool yet, or the disks are not mounted"
        return [
            Check("identity", Level.WARNING, message, "`commitlogfs init` makes a pool, `adopt` takes a store over")
        ]
    return [
        Check(
            FindingCode.DISK_WITHOUT_IDENTITY.value,
            Level.PROBLEM,
            f"{path}: carries no identity, unlike the others",
            "most likely its disk is not mounted: mount it",
        )
        for path in bare
    ]


# --- where it is mounted -----------------------------------------------------------------------------------


def check_mountpoint(path: str) -> Check:
    entry = mountinfo.find_mount(path)
    if entry is not None and mountinfo.is_commitlogfs(entry):
        return _check_mount(path)
    try:
        bare = check_bare(path)
    except (OSError, RefusedError) as error:
        return Check("mountpoint", Level.PROBLEM, f"{path}: cannot be looked at: {error}", "look at it as root")
    match bare.state:
        case BareState.GUARDED:
            protection = "immutable" if _is_immutable(path) else "by its file alone: files can still be made there"
            return ok("guard", f"{path}: not mounted, guarded ({protection})")
        case BareState.EMPTY:
            message = f"{path}: not mounted, no guard: a broker started now deletes its consumequeue"
            return Check("guard", Level.WARNING, message, "mount it once: the guard is made then, and stays")
        case BareState.ABSENT:
            message = f"{path}: not there yet, so no guard: a broker started now begins an empty log there"
            return Check("guard", Level.NOTE, message, "mount it once: folder and guard are made then")
        case BareState.MOUNTED:
            return Check("mountpoint", Level.PROBLEM, bare.message, "unmount that, or choose another mountpoint")
        case _:
            return Check("mountpoint", Level.PROBLEM, bare.message, "nothing can be mounted here as it is")


def _check_mount(path: str) -> Check:
    stacked = mountinfo.stacked_count(path)
    if stacked > 1:
        message = f"{path}: {stacked} mounts lie on top of each other"
        return Check(
            "mountpoint", Level.WARNING, message, "stop the broker, unmount until none is left, mount once"
        )
    probed = probe_mount(path, _PROBE_TIMEOUT_S)
    if not probed.ok:
        return dead_mount(path, probed.reason)
    return ok("mountpoint", f"{path}: mounted, and answers")


def check_store_root(mountpoint: str, thresholds: Thresholds) -> Check:
    path = str(Path(mountpoint).parent)
    entry = mountinfo.containing_mount(mountinfo.resolve_path(path))
    if entry is not None and mountinfo.is_fuse(entry):
        return Check(
            "store-root",
            Level.NOTE,
            f"store root {path}: on {entry.fstype}, not looked at",
            "keep it on a local disk",
        )
    try:
        usage = measure_usage(path)
    except OSError as error:
        message = f"store root {path}: cannot be measured ({os.strerror(error.errno or 0)})"
        return Check("store-root", Level.NOTE, message, "the broker makes it at its first start")
    return judge_store_root(path, usage.used_percent, thresholds)


def judge_store_root(path: str, used_percent: float, thresholds: Thresholds) -> Check:
    """The broker applies the limits of the commitlog to the disk of its consumequeue as well."""
    text = f"store root {path}: {used_percent:.1f} % used"
    remedy = "free space there, or give the consumequeue a larger disk"
    if used_percent > thresholds.force:
        reason = (
            f"above {thresholds.force} % the broker deletes commitlog segments, because its consumequeue is there"
        )
        return Check("store-root", Level.WARNING, f"{text}: {reason}", remedy)
    if used_percent > thresholds.clean:
        reason = f"above {thresholds.clean} % the broker deletes expired commitlog segments at once"
        return Check("store-root", Level.NOTE, f"{text}: {reason}", remedy)
    return ok("store-root", text)


def _is_immutable(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_immutable(fd)
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
