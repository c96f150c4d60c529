"""Checks of one configuration: its disks, its mountpoint, the store root around it."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, Final

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.doctor.broker import check_locale, check_mappings, check_open_files, find_broker
from commitlogfs.mount.doctor.daemon import check_daemon, check_probe
from commitlogfs.mount.doctor.diagnosis import Check, Level, from_finding, ok
from commitlogfs.mount.doctor.disk_probe import Probed, probe_disks
from commitlogfs.mount.doctor.machine import check_allow_other, dead_mount
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.location.guard import BareState, check_bare, is_immutable
from commitlogfs.mount.location.store_root import examine_store_root, group_name, measure_store_root, user_name
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs
from commitlogfs.store.disks.capacity import compare_size, segments_fitting
from commitlogfs.store.disks.directories import OpenDirectory, compare_directories, open_spec
from commitlogfs.store.disks.eligibility import has_room
from commitlogfs.store.disks.identity import RootAttributes, read_root
from commitlogfs.store.errors import DirectoryError, PoolError
from commitlogfs.store.files.usage import DiskUsage, measure_usage
from commitlogfs.store.findings import REPAIR_DISK, FindingCode
from commitlogfs.store.pool.open import DEFAULT_ROOT, compare_segment_size
from commitlogfs.store.segment import looks_like_segment
from commitlogfs.store.thresholds import Thresholds

_PROBE_TIMEOUT_S: Final = 3.0
_SPARE_INODES: Final = 64
_SERVED: Final = ("rw", "failed", "unreadable", "unresponsive", "vanished", "slow")
"""States of disks on which the daemon makes segments, or would."""


def examine_pool(config: Config) -> list[Check]:
    document = _ask_daemon(config.mountpoint)
    with contextlib.ExitStack() as stack:
        directories, checks = _open_disks(config, _silent_disks(document), stack)
        capacities: dict[int, int] = {}
        probed: list[Probed] = []
        for directory in directories:
            try:
                usage = measure_usage(directory.dirfd)
            except OSError as error:
                message = f"{directory.spec.path}: cannot be measured ({os.strerror(error.errno or 0)})"
                checks.append(Check("disk", Level.PROBLEM, message, REPAIR_DISK))
                continue
            if directory.identity is not None:
                probed.append(_to_be_probed(directory, usage, document))
            capacities[directory.device] = segments_possible(usage, config.segment_size)
            checks += [
                *_check_disk(directory, usage, config.segment_size),
                *_check_mode(directory),
                *_check_inodes(directory, usage, config),
            ]
        checks += [from_finding(finding) for finding in compare_directories(directories)]
        checks += _check_identities(directories)
        checks += _check_segment_size(directories, config)
        checks += _check_owner(directories, config.mountpoint)
        for disk, probe in zip(probed, probe_disks(probed, _PROBE_TIMEOUT_S), strict=True):
            checks += check_probe(disk.path, probe)
    capacity = sum(capacities.values())
    broker = find_broker(config.mountpoint)
    return [
        *checks,
        *([] if document is None else check_daemon(document)),
        check_mountpoint(config.mountpoint),
        check_store_root(config.mountpoint, config.thresholds),
        check_allow_other(enabled=config.allow_other, root=os.geteuid() == 0, fuse_conf=_read("/etc/fuse.conf")),
        check_open_files(capacity, broker),
        check_mappings(capacity, int(_read("/proc/sys/vm/max_map_count") or 65530)),
        check_locale(broker),
    ]


def _ask_daemon(mountpoint: str) -> dict[str, Any] | None:
    """The status document of the daemon that serves the mountpoint; None without one, or if it does not answer."""
    entry = mountinfo.find_mount(mountpoint)
    if entry is None or not mountinfo.is_commitlogfs(entry):
        return None
    try:
        return find_target(mountpoint, of_others=True).status()
    except UserError:
        return None  # the check of the mountpoint reports the reason


def _silent_disks(document: dict[str, Any] | None) -> set[str]:
    """Disks that do not answer the daemon. They would not answer this process either, so they are not touched."""
    disks = [] if document is None else document["disks"]
    return {disk["path"] for disk in disks if disk["total_bytes"] is None}


def _to_be_probed(directory: OpenDirectory, usage: DiskUsage, document: dict[str, Any] | None) -> Probed:
    """The disk as it is to be probed. A segment is made only where the daemon makes some, and two have room."""
    assert directory.identity is not None
    path, size = directory.spec.path, directory.identity.segment_size
    known = {} if document is None else {disk["path"]: disk["state"] for disk in document["disks"]}
    is_served = known.get(path, "rw") in _SERVED and not directory.spec.readonly
    return Probed(path, directory.dirfd, size, may_write=is_served and usage.available_bytes >= 2 * size)


def segments_possible(usage: DiskUsage, segment_size: int) -> int:
    """How many segments fit on a disk that holds nothing else."""
    return usage.total_bytes // segment_size


# --- disks -----------------------------------------------------------------------------------------------


def _open_disks(
    config: Config, silent: set[str], stack: contextlib.ExitStack
) -> tuple[list[OpenDirectory], list[Check]]:
    directories: list[OpenDirectory] = []
    checks: list[Check] = []
    for spec in disk_specs(config):
        if spec.path in silent:
            continue
        try:
            directory = open_spec(spec)
        except DirectoryError as error:
            checks.append(Check("disk", Level.PROBLEM, f"{error.path}: {error.reason}", error.remedy))
        except PoolError as error:
            checks.append(Check("disk", Level.PROBLEM, str(error), ""))
        else:
            stack.callback(os.close, directory.dirfd)
            directories.append(directory)
    return directories, checks


def _check_disk(directory: OpenDirectory, usage: DiskUsage, configured: int) -> list[Check]:
    """`configured` is the segment size of a disk that has none of a pool yet."""
    text = f"{directory.spec.path}: {directory.filesystem.name}, {approximate_size(usage.total_bytes)}, "
    text += f"{usage.used_percent:.1f} % used"
    if os.fstatvfs(directory.dirfd).f_flag & os.ST_RDONLY:
        remedy = "it gets no new segments; remount it read-write if that is not intended"
        return [Check("disk", Level.NOTE, f"{text}, read-only", remedy)]
    spec, identity = directory.spec, directory.identity
    size = configured if identity is None else identity.segment_size
    too_small = [] if spec.readonly else compare_size(spec.path, usage, spec.thresholds, size)
    if too_small and not segments_fitting(usage, spec.thresholds, size):
        checks = []
    elif identity and not spec.readonly and not has_room(usage, spec.thresholds, identity.segment_size):
        checks = [Check("disk-full", Level.WARNING, f"{text}; it takes no new segments", "free space on that disk")]
    else:
        checks = [ok("disk", text)]
    return [*checks, *map(from_finding, too_small)]


def _check_mode(directory: OpenDirectory) -> list[Check]:
    mode = stat.S_IMODE(os.fstat(directory.dirfd).st_mode)
    if not mode & 0o077:
        return []
    path = directory.spec.path
    message = f"{path}: mode {mode:04o} lets other users reach the segments without the mount"
    return [Check(FindingCode.DIRECTORY_OPEN_TO_OTHERS.value, Level.NOTE, message, f"chmod 0700 {path}")]


def _check_inodes(directory: OpenDirectory, usage: DiskUsage, config: Config) -> list[Check]:
    st = os.fstatvfs(directory.dirfd)
    required = usage.available_bytes // config.segment_size + _SPARE_INODES
    if not st.f_files or st.f_favail >= required:
        return []
    message = (
        f"{directory.spec.path}: {count_of(st.f_favail, 'inode')} free, too few for the segments that have room"
    )
    return [Check("inodes", Level.WARNING, message, "remove other files from that filesystem")]


def _check_identities(directories: list[OpenDirectory]) -> list[Check]:
    bare = [directory.spec.path for directory in directories if directory.identity is None]
    if not bare:
        return []
    if len(bare) == len(directories):
        message = f"{', '.join(bare)}: no pool yet, or the disks are not mounted"
        remedy = "mount the disks, or make a pool: `commitlogfs init`, or `commitlogfs adopt` for an existing store"
        return [Check("identity", Level.WARNING, message, remedy)]
    return [
        Check(
            FindingCode.DISK_WITHOUT_IDENTITY.value,
            Level.PROBLEM,
            f"{path}: carries no identity, unlike the others; most likely its disk is not mounted",
            "mount the disk there",
        )
        for path in bare
    ]


def _check_segment_size(directories: list[OpenDirectory], config: Config) -> list[Check]:
    for directory in directories:
        if directory.identity is not None:
            pools, configured = directory.identity.segment_size, configured_segment_size(config)
            return [from_finding(found) for found in compare_segment_size(directory.spec.path, pools, configured)]
    return []


def _check_owner(directories: list[OpenDirectory], mountpoint: str) -> list[Check]:
    """Checks that depend on the owner of the mounted directory, which every disk of the pool records."""
    born = next((directory for directory in directories if directory.identity is not None), None)
    if born is None:
        return []
    owner = read_root(born.dirfd, DEFAULT_ROOT)
    names = (name for directory in directories for name in os.listdir(directory.dirfd))  # noqa: PTH208 - a descriptor
    has_segments = any(looks_like_segment(os.fsencode(name)) for name in names)
    return [check_access(mountpoint, owner), *check_store_root_access(mountpoint, owner, has_segments)]


def check_access(mountpoint: str, owner: RootAttributes) -> Check:
    """Check which users can enter the mounted directory."""
    user, group = user_name(owner.uid), group_name(owner.gid)
    text = f"{mountpoint}: mode {owner.mode:04o}, owner {user}, group {group}"
    if owner.mode & 0o007:
        return Check(
            "mount-open-to-others",
            Level.NOTE,
            f"{text}: every user of this machine can reach the segments, which brokers make readable to all (0644)",
            f"chmod o= {mountpoint} while it is mounted; readers join group {group} (docs/security.md)",
        )
    readers = f"{user} and group {group}" if owner.mode & 0o050 == 0o050 else f"{user} alone"
    return ok("mount-access", f"{text}: {readers} can read the messages")


# --- where it is mounted -----------------------------------------------------------------------------------


def check_mountpoint(path: str) -> Check:
    entry = mountinfo.find_mount(path)
    if entry is not None and mountinfo.is_commitlogfs(entry):
        return _check_mount(path)
    try:
        bare = check_bare(path)
    except (OSError, RefusedError) as error:
        return Check("mountpoint", Level.PROBLEM, f"{path}: cannot be read ({error})", "run as root")
    match bare.state:
        case BareState.GUARDED:
            protection = (
                "immutable" if _is_immutable(path) else "by the guard file only: other files can be made there"
            )
            return ok("guard", f"{path}: not mounted, guarded ({protection})")
        case BareState.EMPTY:
            message = f"{path}: not mounted and without a guard; a broker that starts now deletes its consumequeue"
            return Check("guard", Level.WARNING, message, "mount it once: that makes the guard, which stays")
        case BareState.ABSENT:
            message = f"{path}: does not exist, so it has no guard; a broker that starts now begins an empty log"
            return Check("guard", Level.NOTE, message, "mount it once: that makes the directory and the guard")
        case BareState.MOUNTED:
            return Check("mountpoint", Level.PROBLEM, bare.message, "unmount it, or choose another mountpoint")
        case _:
            return Check(
                "mountpoint",
                Level.PROBLEM,
                bare.message,
                "correct the directory, or choose another mountpoint: a mount would be refused",
            )


def _check_mount(path: str) -> Check:
    stacked = mountinfo.stacked_count(path)
    if stacked > 1:
        message = f"{path}: {stacked} mounts lie on top of each other"
        return Check("mountpoint", Level.WARNING, message, "stop the broker, unmount all of them, and mount once")
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
            f"store root {path}: on {entry.fstype}, not checked",
            "keep the store root on a local disk",
        )
    try:
        path, usage = measure_store_root(path)
    except OSError as error:
        message = f"store root {path}: cannot be measured ({os.strerror(error.errno or 0)})"
        return Check(
            "store-root", Level.NOTE, message, "nothing to do if the broker has not started yet: it makes it"
        )
    return inspect_store_root(path, usage.used_percent, thresholds)


def check_store_root_access(mountpoint: str, owner: RootAttributes, has_segments: bool) -> list[Check]:
    name = "store-root-writable"
    root = examine_store_root(mountpoint, owner, has_segments=has_segments)
    if root.obstacle:
        return [Check(name, Level.PROBLEM, f"store root {root.path}: {root.obstacle}", root.remedy)]
    if root.other_user is not None:
        user = user_name(owner.uid)
        message = f"store root {root.path}: a broker of user {user_name(root.other_user)} has run here, "
        message += f"but the mounted directory belongs to {user}"
        remedy = f"run the broker as one user: chown -R {user} {root.path} (outside the mount), or chown the mount"
        return [Check(name, Level.WARNING, message, remedy)]
    return [ok(name, f"store root {root.path}: nothing keeps user {user_name(owner.uid)} from writing there")]


def inspect_store_root(path: str, used_percent: float, thresholds: Thresholds) -> Check:
    """Check the fill level of the store root's disk. The broker applies its thresholds to this disk, too."""
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
