"""From a configuration to an open pool and back to words: what `mount`, `check`, `init` and `adopt` share."""

from pathlib import Path

from commitlogfs.mount import mountinfo
from commitlogfs.mount.config import Config
from commitlogfs.mount.errors import RefusedError
from commitlogfs.store.findings import Finding, FindingCode
from commitlogfs.store.membership import DiskSpec
from commitlogfs.store.pool import OnMissing, Pool, PoolRefusedError

_SHOWN_OF_A_KIND = 5


def disk_specs(config: Config) -> tuple[DiskSpec, ...]:
    return tuple(
        DiskSpec(path=disk.path, thresholds=disk.thresholds, readonly=disk.readonly, weight=disk.weight)
        for disk in config.disks
    )


def on_missing(config: Config) -> OnMissing:
    return OnMissing(config.on_missing)


def configured_segment_size(config: Config) -> int | None:
    """None where the file is silent: the pool's own size holds."""
    return config.segment_size if "segment_size" in config.given else None


def demand_separate(config: Config) -> None:
    """Refuse a mountpoint inside a disk, or a disk inside the mountpoint, whatever links or bind mounts hide it.

    For a mountpoint with nothing mounted. Raises RefusedError, OSError.
    """
    above_mountpoint = _folders_upwards(config.mountpoint)
    for disk in config.disks:
        above_disk = _folders_upwards(disk.path)
        if above_disk[0] is not None and above_disk[0] in above_mountpoint:
            raise RefusedError(
                f"{config.mountpoint}: lies inside the disk {disk.path}: choose a mountpoint outside all disks"
            )
        if above_mountpoint[0] is not None and above_mountpoint[0] in above_disk:
            raise RefusedError(
                f"{disk.path}: lies inside the mountpoint {config.mountpoint}, which would hide it: "
                "keep disks outside the mountpoint"
            )


def _folders_upwards(path: str) -> list[tuple[int, int] | None]:
    """(device, inode) of a folder and all folders above it; None for one that does not exist."""
    resolved = Path(mountinfo.resolve_path(path))
    found: list[tuple[int, int] | None] = []
    for folder in (resolved, *resolved.parents):
        try:
            st = folder.stat()
        except OSError:
            found.append(None)
        else:
            found.append((st.st_dev, st.st_ino))
    return found


def refusal(error: PoolRefusedError, name: str) -> RefusedError:
    """The one readable report of a refused mount: a lost disk of many leaves thousands of gaps, a few are shown."""
    by_code: dict[FindingCode, list[Finding]] = {}
    for finding in error.blocking:
        by_code.setdefault(finding.code, []).append(finding)
    lines = []
    for code, findings in by_code.items():
        lines += [str(finding) for finding in findings[:_SHOWN_OF_A_KIND]]
        more = len(findings) - _SHOWN_OF_A_KIND
        if more > 0:
            lines.append(f"and {more} more of this kind ({code.value}): `commitlogfs check` shows them all")
    if len(lines) == 1:
        return RefusedError(f"{name}: not mounted: {lines[0]}")
    heading = f"{name}: not mounted, {len(error.blocking)} reasons:"
    return RefusedError(heading + "".join(f"\n  {line}" for line in lines))


def describe_pool(pool: Pool) -> str:
    count = len(pool.inventory.catalog)
    return f"{count} segment{'' if count == 1 else 's'} on {len(pool.disks)} disks"
