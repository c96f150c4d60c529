"""The directories of a pool's disks, before they are known to be its disks: opened, and checked."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from commitlogfs.store import layout
from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import is_read_only, open_directory
from commitlogfs.store.disks.identity import DiskIdentity, Joining
from commitlogfs.store.errors import DirectoryError, PoolError
from commitlogfs.store.files import filesystem
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.findings import REPAIR_DISK, Finding, FindingCode, Severity
from commitlogfs.store.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """One disk as the operator configured it."""

    path: str
    thresholds: Thresholds
    readonly: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class OpenDirectory:
    """A disk's open directory, before it is known to be a member. The owner of the object closes `dirfd`."""

    spec: DiskSpec
    dirfd: int
    device: int
    ino: int
    filesystem: FilesystemKind
    identity: DiskIdentity | None
    joining: Joining | None = None
    """Which pool it is to become a disk of, if `disk add` has prepared it."""


def open_spec(spec: DiskSpec, *, may_be_destroyed: bool = False) -> OpenDirectory:
    """The disk's open directory. Raises DirectoryError if it cannot be used, PoolError for a damaged identity, or
    one that `destroy` has begun to clear."""
    dirfd = open_directory(spec.path)
    try:
        st = os.fstat(dirfd)
        return OpenDirectory(
            spec,
            dirfd,
            st.st_dev,
            st.st_ino,
            filesystem.identify(dirfd),
            identity.read_identity(dirfd, spec.path, may_be_destroyed=may_be_destroyed),
            identity.read_joining(dirfd),
        )
    except OSError as error:
        os.close(dirfd)
        reason = f"cannot be read ({os.strerror(error.errno or 0)})"
        raise DirectoryError(spec.path, reason, REPAIR_DISK) from error
    except BaseException:
        os.close(dirfd)
        raise


def compare_directories(directories: list[OpenDirectory]) -> list[Finding]:
    """Findings about the directories: one directory twice, shared filesystems, unsuitable filesystems."""
    findings: list[Finding] = []
    seen: dict[tuple[int, int], str] = {}
    filesystems: dict[int, str] = {}
    for directory in directories:
        path = directory.spec.path
        findings += _check_filesystem(directory)
        first = seen.setdefault((directory.device, directory.ino), path)
        if first != path:
            findings.append(
                Finding(
                    FindingCode.DISK_TWICE,
                    Severity.REFUSES_ALWAYS,
                    path,
                    "",
                    f"the same directory as {first} (by a symlink or a bind mount)",
                    "name each disk once",
                )
            )
            continue
        neighbour = filesystems.setdefault(directory.device, path)
        if neighbour != path:
            findings.append(
                Finding(
                    FindingCode.DISKS_SHARE_FILESYSTEM,
                    Severity.WARNING,
                    path,
                    "",
                    f"on the same filesystem as {neighbour}",
                    "check whether a disk is not mounted: one filesystem adds neither space nor safety",
                )
            )
    return findings


def refuse_on(findings: list[Finding]) -> None:
    """Raises PoolError for the first finding that refuses a mount."""
    for finding in findings:
        if finding.severity >= Severity.REFUSES:
            raise PoolError(str(finding))


def require_writable(directory: OpenDirectory) -> None:
    """Raises PoolError for a directory in which no segment can be made."""
    path = directory.spec.path
    try:
        if is_read_only(directory.dirfd):
            raise PoolError(f"{path}: its filesystem is read-only; remount it read-write")
        missing = filesystem.missing_ability(directory.dirfd)
    except OSError as error:
        raise PoolError(f"{path}: cannot be written ({os.strerror(error.errno or 0)}); {REPAIR_DISK}") from error
    if missing is not None:
        raise PoolError(f"{path}: {directory.filesystem.name} is not supported ({missing}); use ext4 or xfs")


def first_entry(dirfd: int, is_known: Callable[[bytes], bool] = lambda _: False) -> str | None:
    """Name of an entry of a disk's directory that is not known; None if there is none. Raises OSError."""
    names = ((name, os.fsencode(name)) for name in os.listdir(dirfd))
    return min((name for name, raw in names if raw not in layout.IGNORED_NAMES and not is_known(raw)), default=None)


def _check_filesystem(directory: OpenDirectory) -> list[Finding]:
    kind = directory.filesystem
    if kind.suitability is Suitability.REFUSED:
        return [
            Finding(
                FindingCode.FILESYSTEM_UNSUITABLE,
                Severity.REFUSES_ALWAYS,
                directory.spec.path,
                "",
                f"is on {kind.name}: {kind.reason}",
                "use ext4 or xfs",
            )
        ]
    if kind.suitability is Suitability.FOR_TESTS:
        return [
            Finding(
                FindingCode.FILESYSTEM_FOR_TESTS,
                Severity.WARNING,
                directory.spec.path,
                "",
                f"is on {kind.name}: {kind.reason}",
                "use ext4 or xfs for data that matters; this is for tests and containers only",
            )
        ]
    return []
