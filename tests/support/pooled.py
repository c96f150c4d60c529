"""An open CommitLog on plain directories, with the adapter's parts around it but without a mount."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from commitlogfs.fusefs.disks.background import BackgroundSync
from commitlogfs.fusefs.disks.disk_threads import DiskThreads
from commitlogfs.fusefs.disks.usage_monitor import UsageMonitor
from commitlogfs.fusefs.files.namespace import Namespace
from commitlogfs.fusefs.kernel.backing import Backing
from commitlogfs.fusefs.kernel.observer import SilentObserver
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.disks.membership import DiskSpec
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool import birth
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.thresholds import Thresholds


@dataclass(slots=True)
class Parts:
    folders: list[Path]
    commitlog: CommitLog
    threads: DiskThreads
    namespace: Namespace
    background: BackgroundSync


@contextmanager
def open_parts(workdir: Path, count: int = 3, segment_size: int = 4096) -> Iterator[Parts]:
    """A new pool of `count` directories in `workdir`."""
    folders = [workdir / f"disk{number}" for number in range(1, count + 1)]
    specs = tuple(DiskSpec(str(folder), Thresholds()) for folder in folders)
    with ExitStack() as stack:
        birth.execute(birth.plan_init(specs, segment_size, RootAttributes(0o755, 0, 0), stack), specs, stack)
    commitlog = CommitLog(open_pool(specs, segment_size), POLICIES["round-robin"])
    threads = DiskThreads(commitlog.disks)
    observer = SilentObserver()
    usage = UsageMonitor(commitlog, threads, observer)
    background = BackgroundSync(commitlog, threads)
    backing = Backing(observer)
    namespace = Namespace(commitlog, threads, usage, background, backing, observer)
    try:
        yield Parts(folders, commitlog, threads, namespace, background)
    finally:
        namespace.handles.close()
        backing.close()
        commitlog.close()
