"""`init` and `adopt`: the only two ways a pool is born.

step                                    a crash here leaves
1 look at every folder, refuse or go on nothing
2 write each disk's identity, synced,   some folders with identity: a mount is refused (a member has none);
  and that the birth is unfinished      the same `init` or `adopt` again finishes the birth
3 it is finished: take that word away   a pool; the next mount takes it away
  from every disk

Without step 3, `init` or `adopt` would take a disk of a living pool that is not mounted just now for one that was
never reached, and make the bare folder a member in its place.
"""

import contextlib
import os
import stat
import uuid
from collections import Counter
from dataclasses import dataclass, field

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import Disk, is_read_only
from commitlogfs.store.disks.identity import LARGEST_DISK_NUMBER, DiskIdentity, DiskNumber, Member, RootAttributes
from commitlogfs.store.disks.membership import DiskSpec, OpenFolder, compare_folders, open_spec
from commitlogfs.store.errors import PoolError, PoolInUseError, SegmentSizeError
from commitlogfs.store.files import durable, filesystem
from commitlogfs.store.files.locks import take_lock
from commitlogfs.store.files.write_lease import is_open_elsewhere
from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.pool.inventory import Inventory, take_inventory
from commitlogfs.store.pool.scan import DiskScan, scan_folder, sizes_present
from commitlogfs.store.segment import BaseOffset, show_name


@dataclass(frozen=True, slots=True)
class BirthPlan:
    """What `init` or `adopt` would write: shown by `--dry-run`, carried out by `execute`."""

    pool_id: str
    segment_size: int
    root: RootAttributes
    members: tuple[Member, ...]
    segments: int
    newest: BaseOffset | None
    findings: tuple[Finding, ...]
    created: tuple[str, ...]
    """Folders that do not exist yet and will be made (mode 0700)."""
    _folders: tuple[OpenFolder, ...] = field(repr=False, default=())


def is_born(specs: tuple[DiskSpec, ...]) -> bool:
    """Whether any of these folders carries an identity. Raises PoolError; an absent folder carries none."""
    for spec in specs:
        if os.path.lexists(spec.path):
            folder = open_spec(spec)
            os.close(folder.dirfd)
            if folder.identity is not None:
                return True
    return False


def plan_init(
    specs: tuple[DiskSpec, ...], segment_size: int, root: RootAttributes, stack: contextlib.ExitStack
) -> BirthPlan:
    """Plan an empty pool. Folders may be absent if their parents exist. Changes nothing.

    Descriptors are registered on `stack`; keep it open until `execute`. Raises PoolError, PoolInUseError.
    """
    absent = tuple(spec.path for spec in specs if not os.path.lexists(spec.path))
    for path in absent:
        parent = os.path.dirname(os.path.normpath(path))
        if not os.path.isdir(parent):
            raise PoolError(f"{path}: neither it nor {parent} exists: mount the disk or make the folder first")
        above = open_spec(DiskSpec(parent, specs[0].thresholds))
        stack.callback(os.close, above.dirfd)
        _refuse_on(compare_folders([above]))
        _require_writable(above)
    folders = _open_all(tuple(spec for spec in specs if spec.path not in absent), stack)
    findings = compare_folders(folders)
    _refuse_on(findings)
    for folder in folders:
        _require_writable(folder)
        for name in os.listdir(folder.dirfd):
            if os.fsencode(name) not in layout.IGNORED_NAMES:
                raise PoolError(
                    f"{folder.spec.path}: not empty ({name!r} lies there): "
                    "use `adopt` for an existing commitlog, or an empty folder"
                )
    members, pool_id = _members(specs, folders)
    return BirthPlan(pool_id, segment_size, root, members, 0, None, tuple(findings), absent, tuple(folders))


def plan_adopt(
    specs: tuple[DiskSpec, ...],
    segment_size: int | None,
    root: RootAttributes | None,
    stack: contextlib.ExitStack,
) -> BirthPlan:
    """Plan to take over existing commitlog folders in place. Changes nothing.

    `segment_size` None is learnt from the files; `root` None is taken from the folder with the oldest
    segment. Descriptors are registered on `stack`. Raises PoolError, SegmentSizeError, PoolInUseError.
    """
    folders = _open_all(specs, stack)
    findings = compare_folders(folders)
    _refuse_on(findings)
    for folder in folders:
        _require_writable(folder)
    members, pool_id = _members(specs, folders)
    sizes = [sizes_present(folder.dirfd) for folder in folders]
    if segment_size is None:
        size = _learn_segment_size(folders, sizes)
    else:
        size = segment_size
        _require_right_size(size, sum(sizes, Counter()))
    inventory, scans = _take_inventory(folders, size)
    _refuse_native_mismatch(scans)
    findings += inventory.findings
    _refuse_on(findings)
    first, last = inventory.catalog.first, inventory.catalog.last
    if first is None or last is None:
        raise PoolError("no segment in any of the folders: nothing to adopt, use `init` for a new pool")
    newest_folder = folders[last.disk - 1]
    if is_open_elsewhere(newest_folder.dirfd, last.path):
        raise PoolInUseError(
            f"{newest_folder.spec.path}/{last.name.decode()}: open in another process: stop the broker first"
        )
    if root is None:
        st = os.fstat(folders[first.disk - 1].dirfd)
        root = RootAttributes(stat.S_IMODE(st.st_mode) & 0o777, st.st_uid, st.st_gid)
    return BirthPlan(
        pool_id,
        size,
        root,
        members,
        len(inventory.catalog),
        last.base_offset,
        tuple(findings),
        (),
        tuple(folders),
    )


def execute(plan: BirthPlan, specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack) -> list[Finding]:
    """Write every identity; warnings about the folders as they are now. Raises PoolError."""
    folders = {folder.spec.path: folder for folder in plan._folders}
    for spec in specs:
        if spec.path in plan.created:
            os.mkdir(spec.path, 0o700)
            folder = open_spec(spec)
            stack.callback(os.close, folder.dirfd)
            folders[spec.path] = folder
    for member in plan.members:
        folder = folders[member.path]
        document = DiskIdentity(plan.pool_id, member.disk_id, member.number, plan.segment_size, plan.members)
        try:
            os.setxattr(folder.dirfd, layout.XATTR_ROOT, identity.format_root(plan.root))
            os.setxattr(folder.dirfd, layout.XATTR_NEWEST, identity.format_newest(plan.newest))
            os.setxattr(folder.dirfd, layout.XATTR_BIRTH, b"unfinished")
            durable.write_xattr(folder.dirfd, layout.XATTR_IDENTITY, identity.format_identity(document))
        except OSError as error:
            raise PoolError(
                f"{member.path}: cannot keep the disk's identity ({os.strerror(error.errno or 0)}): "
                "the filesystem must allow extended user attributes"
            ) from error
    for member in plan.members:
        try:
            durable.remove_xattr(folders[member.path].dirfd, layout.XATTR_BIRTH)
        except OSError as error:
            raise PoolError(f"{member.path}: {os.strerror(error.errno or 0)}: check the disk") from error
    return compare_folders([folders[spec.path] for spec in specs])


def _open_all(specs: tuple[DiskSpec, ...], stack: contextlib.ExitStack) -> list[OpenFolder]:
    if len(specs) > LARGEST_DISK_NUMBER:
        raise PoolError(f"{len(specs)} disks: a pool holds at most {LARGEST_DISK_NUMBER}")
    folders = []
    for spec in specs:
        folder = open_spec(spec)
        stack.callback(os.close, folder.dirfd)
        folders.append(folder)
    for folder in folders:
        # The same folder twice is reported as such, not as a lock conflict with ourselves.
        twin = any((f.device, f.ino) == (folder.device, folder.ino) for f in folders if f is not folder)
        if not twin and not take_lock(folder.dirfd):
            raise PoolInUseError(f"{folder.spec.path}: in use by a running commitlogfs: unmount it first")
    return folders


def _refuse_on(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.severity >= Severity.REFUSES:
            raise PoolError(str(finding))


def _require_writable(folder: OpenFolder) -> None:
    path = folder.spec.path
    try:
        if is_read_only(folder.dirfd):
            raise PoolError(f"{path}: its filesystem is read-only: remount it read-write")
        missing = filesystem.missing_ability(folder.dirfd)
    except OSError as error:
        raise PoolError(f"{path}: cannot be written ({os.strerror(error.errno or 0)}): check the disk") from error
    if missing is not None:
        raise PoolError(f"{path}: {folder.filesystem.name} will not do, {missing}: use ext4 or xfs")


def _members(specs: tuple[DiskSpec, ...], folders: list[OpenFolder]) -> tuple[tuple[Member, ...], str]:
    """Members and pool id of the new pool, or of exactly this pool's interrupted birth."""
    born = [folder for folder in folders if folder.identity is not None]
    paths = tuple(spec.path for spec in specs)
    if born:
        known = born[0].identity
        assert known is not None
        interrupted = len(born) < len(specs) and all(
            folder.identity is not None
            and durable.read_xattr(folder.dirfd, layout.XATTR_BIRTH) is not None
            and folder.identity.pool_id == known.pool_id
            and tuple(member.path for member in folder.identity.members) == paths
            for folder in born
        )
        if not interrupted:
            raise PoolError(
                f"{born[0].spec.path}: already a disk of pool {known.pool_id}: mount that pool, "
                f"or give it up with: setfattr -x {layout.XATTR_IDENTITY} {born[0].spec.path}"
            )
        return known.members, known.pool_id
    members = tuple(
        Member(DiskNumber(number), str(uuid.uuid4()), path) for number, path in enumerate(paths, start=1)
    )
    return members, str(uuid.uuid4())


def _take_inventory(folders: list[OpenFolder], segment_size: int) -> tuple[Inventory, list[tuple[Disk, DiskScan]]]:
    scans = []
    for number, folder in enumerate(folders, start=1):
        disk = Disk(
            DiskNumber(number), "", folder.spec.path, folder.dirfd, folder.filesystem, folder.spec.thresholds
        )
        try:
            scans.append((disk, scan_folder(folder.dirfd, segment_size)))
        except OSError as error:
            raise PoolError(f"{folder.spec.path}: cannot be read ({os.strerror(error.errno or 0)})") from error
    return take_inventory(scans, segment_size), scans


def _refuse_native_mismatch(scans: list[tuple[Disk, DiskScan]]) -> None:
    """A folder with alien files is not a commitlog that a broker would load: adopt only what is understood."""
    for disk, scan in scans:
        if scan.aliens:
            name = show_name(min(scan.aliens))
            raise PoolError(
                f"{disk.path}/{name}: {FindingCode.ALIEN_FILE.value}: no segment of this commitlog: "
                "move it out of the folder, or give the right --segment-size"
            )


def _require_right_size(given: int, sizes: Counter[int]) -> None:
    """Raises SegmentSizeError, before segments are taken for damaged ones or for alien files."""
    if not sizes:
        return
    found, number = sizes.most_common(1)[0]
    if found != given and number > sizes[given]:
        raise SegmentSizeError(given, found, number, sizes.total())


def _learn_segment_size(folders: list[OpenFolder], sizes: list[Counter[int]]) -> int:
    found: dict[int, str] = {}
    for folder, present in zip(folders, sizes, strict=True):
        for size in present:
            found.setdefault(size, folder.spec.path)
    if not found:
        raise PoolError("no segment in any of the folders: nothing to adopt, use `init` for a new pool")
    if len(found) > 1:
        described = ", ".join(f"{size} in {path}" for size, path in sorted(found.items()))
        raise PoolError(f"segments of different sizes ({described}): name the right one with --segment-size")
    return next(iter(found))
