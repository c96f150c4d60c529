"""Opening the directories of a pool, for the checks of `check`, `mount`, `init` and `adopt`."""

import os
from dataclasses import dataclass

from commitlogfs.store.disks import identity
from commitlogfs.store.disks.disk import open_directory
from commitlogfs.store.disks.identity import DiskIdentity
from commitlogfs.store.errors import DirectoryError
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


def open_spec(spec: DiskSpec) -> OpenDirectory:
    """The disk's open directory. Raises DirectoryError if it cannot be used, PoolError for a damaged identity."""
    dirfd = open_directory(spec.path)
    try:
        st = os.fstat(dirfd)
        return OpenDirectory(
            spec,
            dirfd,
            st.st_dev,
            st.st_ino,
            filesystem.identify(dirfd),
            identity.read_identity(dirfd, spec.path),
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
