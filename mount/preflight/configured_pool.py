"""Conversions between a configuration and a pool, and the report of a refused mount, for several verbs."""

from pathlib import Path

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.findings import Finding, FindingCode
from commitlogfs.store.pool.open import OnMissing, PoolRefusedError

_SHOWN_OF_A_KIND = 5
_GROUPS_SHOWN = 10


def disk_specs(config: Config) -> tuple[DiskSpec, ...]:
    return tuple(
        DiskSpec(path=disk.path, thresholds=disk.thresholds, readonly=disk.readonly, weight=disk.weight)
        for disk in config.disks
    )


def on_missing(config: Config) -> OnMissing:
    return OnMissing(config.on_missing)


def configured_segment_size(config: Config) -> int | None:
    """The segment size in the configuration file; None if it has none, so that the pool's own size applies."""
    return config.segment_size if "segment_size" in config.given else None


def require_separate(config: Config) -> None:
    """Raises RefusedError for a mountpoint inside a disk, even through links or bind mounts. Raises OSError.

    (A disk inside the mountpoint is refused later, because the mountpoint is then not empty.)
    """
    resolved = Path(mountinfo.resolve_path(config.mountpoint))
    above = {
        identity for directory in (resolved, *resolved.parents) if (identity := _identity(directory)) is not None
    }
    for disk in config.disks:
        if _identity(Path(disk.path)) in above:
            raise RefusedError(
                f"{config.mountpoint}: is inside the disk {disk.path}; choose a mountpoint outside of all disks"
            )


def _identity(directory: Path) -> tuple[int, int] | None:
    """Device and inode of a directory; None if it cannot be reached."""
    try:
        st = directory.stat()
    except OSError:
        return None
    return st.st_dev, st.st_ino


def refusal(error: PoolRefusedError, name: str) -> RefusedError:
    """Report of a refused mount, short even for a lost disk that leaves thousands of gaps.

    Findings that nothing can override come first; equal remedies are shown once, and of many findings a few.
    """
    groups: dict[tuple[FindingCode, str], list[Finding]] = {}
    for finding in error.blocking:
        groups.setdefault((finding.code, finding.remedy), []).append(finding)
    override = ', or set on_missing = "degraded" to serve what is there' if error.degraded_helps else ""
    if len(error.blocking) == 1:
        return RefusedError(f"{name}: not mounted: {error.blocking[0]}{override}")
    lines = []
    for (code, remedy), findings in list(groups.items())[:_GROUPS_SHOWN]:
        if len(findings) == 1:
            lines.append(str(findings[0]))
            continue
        lines += [finding.text for finding in findings[:_SHOWN_OF_A_KIND]]
        more = len(findings) - _SHOWN_OF_A_KIND
        if more > 0:
            lines.append(f"and {more:,} more of this kind ({code.value}): `commitlogfs check` shows them all")
        lines.append(f"-> {remedy} [{code.value}]")
    if len(groups) > _GROUPS_SHOWN:
        lines.append(f"and {len(groups) - _GROUPS_SHOWN:,} other kinds: `commitlogfs check` shows them all")
    heading = f"{name}: not mounted, {len(error.blocking):,} reasons; correct them{override}:"
    return RefusedError(heading + "".join(f"\n  {line}" for line in lines))
