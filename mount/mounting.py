"""From a configuration to an open pool and back to words: what `mount`, `check`, `init` and `adopt` share."""

from commitlogfs.mount.config import Config
from commitlogfs.mount.errors import RefusedError
from commitlogfs.store.membership import DiskSpec
from commitlogfs.store.pool import OnMissing, Pool, PoolRefusedError


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


def refusal(error: PoolRefusedError, name: str) -> RefusedError:
    """The one readable report of a refused mount."""
    lines = str(error).splitlines()
    if len(lines) == 1:
        return RefusedError(f"{name}: not mounted: {lines[0]}")
    return RefusedError(f"{name}: not mounted, {len(lines)} reasons:" + "".join(f"\n  {line}" for line in lines))


def describe_pool(pool: Pool) -> str:
    count = len(pool.inventory.catalog)
    return f"{count} segment{'' if count == 1 else 's'} on {len(pool.disks)} disks"
